//! Paths and verbs -> what is asked for.

use std::collections::BTreeMap;

use axum::http::{Method, Uri};

use super::refusal::Refusal;
use super::store::{Key, Wanted};

/// The parameters of a request, decoded.
#[derive(Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    fn parse(uri: &Uri) -> Self {
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        Self(pairs.map(|(k, v)| (decoded(k), decoded(v))).collect())
    }

    /// A parameter; empty where it is not there.
    pub(super) fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A number, 0 where it is not there.
    pub(super) fn number(&self, name: &str) -> Result<u64, Refusal> {
        match self.get(name) {
            "" => Ok(0),
            text => text
                .parse()
                .map_err(|_| Refusal::new(400, "BadRequest", format!("invalid {name}: {text}"))),
        }
    }

    /// A flag.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), "true" | "1")
    }
}

/// `application/x-www-form-urlencoded`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                if let (Some(high), Some(low)) = (hex(rest.next()), hex(rest.next())) {
                    bytes.push((high * 16 + low) as u8);
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is asked for.
#[derive(Debug)]
pub(super) enum Route {
    /// A whole resource.
    List(Wanted),
    /// What happens to it.
    Watch(Wanted),
    /// One object.
    Get(Key),
    /// A new one, in a namespace.
    Create(&'static str, String),
    /// Changes of an object, or of its status alone.
    Patch { key: Key, status: bool },
    /// Its end.
    Delete(Key),
    /// The end of a pod, if its disruption budget allows it.
    Evict(Key),
    /// Who has a token.
    TokenReview,
    /// What a user may get.
    AccessReview,
}

/// The verb and the resource, for the record, and what to do.
pub(super) type Routed = (&'static str, &'static str, Route, Query);

/// Understands a request.
pub(super) fn route(method: &Method, uri: &Uri) -> Result<Routed, Refusal> {
    let query = Query::parse(uri);
    let unknown = || {
        Refusal::new(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    };
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    match (method.as_str(), path.as_slice()) {
        ("POST", ["apis", "authentication.k8s.io", "v1", "tokenreviews"]) => {
            return Ok(("create", "tokenreviews", Route::TokenReview, query));
        }
        ("POST", ["apis", "authorization.k8s.io", "v1", "subjectaccessreviews"]) => {
            return Ok(("create", "subjectaccessreviews", Route::AccessReview, query));
        }
        _ => {}
    }
    let (namespace, rest) = match path.as_slice() {
        ["api", "v1", "namespaces", namespace, rest @ ..] if !rest.is_empty() => {
            (Some(*namespace), rest)
        }
        ["api", "v1", rest @ ..] => (None, rest),
        _ => return Err(unknown()),
    };
    let resource = match rest.first() {
        Some(&"pods") => "pods",
        Some(&"nodes") => "nodes",
        Some(&"events") => "events",
        _ => return Err(unknown()),
    };
    let key = |name: &str| {
        (
            resource,
            namespace.unwrap_or_default().to_owned(),
            name.to_owned(),
        )
    };
    let wanted = || Wanted::parse(resource, namespace, query.get("fieldSelector"));
    let (verb, sub, route) = match (method.as_str(), &rest[1..]) {
        ("GET", []) if query.flag("watch") => ("watch", "", Route::Watch(wanted()?)),
        ("GET", []) => ("list", "", Route::List(wanted()?)),
        ("GET", [name]) => ("get", "", Route::Get(key(name))),
        ("POST", []) => ("create", "", Route::Create(resource, key("").1)),
        ("PATCH", [name]) => (
            "patch",
            "",
            Route::Patch {
                key: key(name),
                status: false,
            },
        ),
        ("PATCH", [name, "status"]) => (
            "patch",
            "status",
            Route::Patch {
                key: key(name),
                status: true,
            },
        ),
        ("DELETE", [name]) => ("delete", "", Route::Delete(key(name))),
        ("POST", [name, "eviction"]) if resource == "pods" => {
            ("create", "eviction", Route::Evict(key(name)))
        }
        (_, [] | [_] | [_, "status"]) => {
            let message = "the server does not allow this method on the requested resource";
            return Err(Refusal::new(405, "MethodNotAllowed", message));
        }
        _ => return Err(unknown()),
    };
    let named = match (resource, sub) {
        ("pods", "status") => "pods/status",
        ("pods", "eviction") => "pods/eviction",
        ("nodes", "status") => "nodes/status",
        (resource, _) => resource,
    };
    Ok((verb, named, route, query))
}
