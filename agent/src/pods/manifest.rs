//! The text of one manifest file -> pods. No files here, so that it can be tested as values.

use k8s_openapi::api::core::v1;
use podwarden_policy::{Pod, qos};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Problem, QosClass, convert::Checked, typed::from_json};

/// Documents of one file that are read, empty ones included: a node has some hundred pods at most.
pub(crate) const MOST_DOCUMENTS: usize = 1024;

/// A document of a file: its number (from 1), and its pod or what is wrong with it.
pub type Parsed = (usize, Result<(Pod, QosClass), Problem>);

/// Reads every document of a file, YAML or JSON. A `PodList` or `List` counts as one document.
///
/// Documents are told apart before they are parsed, as kubectl does it, so that one that is not
/// YAML does not hide the others. Empty ones are skipped.
pub fn parse(text: &str) -> Vec<Parsed> {
    let mut all = Vec::new();
    for (number, document) in (1..).zip(documents(text)) {
        if number > MOST_DOCUMENTS {
            let limit = MOST_DOCUMENTS;
            all.push((number, Err(Problem::TooManyDocuments { limit })));
            break;
        }
        let options = serde_saphyr::options! { with_snippet: false };
        match serde_saphyr::from_str_with_options::<Value>(&document, options) {
            Ok(Value::Null) => {}
            Ok(value) => all.extend(pods(value).into_iter().map(|pod| (number, pod))),
            Err(error) => all.push((number, Err(Problem::Syntax(error.to_string())))),
        }
    }
    all
}

/// True for a text whose documents are all empty. An empty list is not: it means that there are no pods.
pub fn is_blank(text: &str) -> bool {
    let nothing = |document: &String| {
        let value = serde_saphyr::from_str::<Value>(document);
        value.is_ok_and(|value| value.is_null())
    };
    documents(text)
        .take(MOST_DOCUMENTS)
        .all(|document| nothing(&document))
}

/// The documents of a stream, one at a time, each with the lines before it blanked, so that the parser's line
/// numbers are the file's.
pub(crate) fn documents(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut lines = text.lines().enumerate();
    let mut begun = Some(String::new());
    let mut is_first = true;
    std::iter::from_fn(move || {
        loop {
            let mut document = begun.take()?;
            for (number, line) in lines.by_ref() {
                let separator = line.strip_prefix("---");
                if let Some(rest) = separator.filter(|r| r.is_empty() || r.starts_with([' ', '\t']))
                {
                    let mut next = "\n".repeat(number);
                    // What follows the separator on its line belongs to the document.
                    next.push_str(rest);
                    next.push('\n');
                    begun = Some(next);
                    break;
                }
                document.push_str(line);
                document.push('\n');
            }
            // A file commonly begins with a separator: what is before it is not a document.
            let before = std::mem::take(&mut is_first) && begun.is_some();
            if !(before && is_comment(&document)) {
                return Some(document);
            }
        }
    })
}

fn is_comment(text: &str) -> bool {
    text.lines()
        .all(|line| line.trim().is_empty() || line.starts_with('#'))
}

/// The pods of one document: a `Pod`, a `PodList` or a `List`.
pub(crate) fn pods(value: Value) -> Vec<Result<(Pod, QosClass), Problem>> {
    match kind_of(&value) {
        (Some("v1"), Some("Pod")) => vec![pod(value)],
        (Some("v1"), Some("PodList" | "List")) => items(value),
        _ => vec![Err(not_a_pod(&value))],
    }
}

fn kind_of(value: &Value) -> (Option<&str>, Option<&str>) {
    let text = |key| value.get(key).and_then(Value::as_str);
    (text("apiVersion"), text("kind"))
}

fn not_a_pod(value: &Value) -> Problem {
    let (api_version, kind) = kind_of(value);
    Problem::NotAPod {
        kind: kind.unwrap_or("(no kind)").to_owned(),
        api_version: api_version.unwrap_or("(no apiVersion)").to_owned(),
    }
}

/// The items of a list; those of a `PodList` need not repeat their kind.
fn items(mut list: Value) -> Vec<Result<(Pod, QosClass), Problem>> {
    let typed = kind_of(&list).1 == Some("PodList");
    let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
        return vec![Err(Problem::Missing("items".to_owned()))];
    };
    let one = |item: Value| match kind_of(&item) {
        (Some("v1"), Some("Pod")) => pod(item),
        (None, None) if typed => pod(item),
        _ => Err(not_a_pod(&item)),
    };
    items.into_iter().map(one).collect()
}

fn pod(value: Value) -> Result<(Pod, QosClass), Problem> {
    // A document may hold many, so an error says which.
    let text = |key| value.pointer(key).and_then(Value::as_str);
    let name = text("/metadata/name").map(|name| match text("/metadata/namespace") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    });
    typed(value).map_err(|problem| match name {
        Some(pod) => Problem::InPod {
            pod,
            problem: Box::new(problem),
        },
        None => problem,
    })
}

fn typed(mut value: Value) -> Result<(Pod, QosClass), Problem> {
    let uid = hash(&value);
    quantities_as_text(&mut value);
    // The list form leaves these out; the type requires them.
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".to_owned(), "v1".into());
        fields.insert("kind".to_owned(), "Pod".into());
    }
    let typed: v1::Pod = from_json(&value.to_string(), "")?;
    let pod = super::convert::pod(&typed, &uid, Checked::Here)?;
    let class = qos::classify(&pod);
    Ok((pod, class))
}

/// The uid of a pod that has none: the first 128 bits of the SHA-256 of its manifest, in hex.
///
/// Of the values, keys in order: layout and comments do not change it, any value does, as with the
/// kubelet's hash for static pods (`pkg/kubelet/config/common.go`, `applyDefaults`).
fn hash(value: &Value) -> String {
    // `Value`'s maps are ordered by key, and writing one back cannot fail.
    let digest = Sha256::digest(value.to_string());
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Quantities may be written as numbers (`cpu: 2`); the type has only text.
fn quantities_as_text(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("requests" | "limits" | "overhead", Value::Object(quantities)) => {
                        quantities.values_mut().for_each(number_as_text);
                    }
                    ("sizeLimit", value) => number_as_text(value),
                    (_, value) => quantities_as_text(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(quantities_as_text),
        _ => {}
    }
}

fn number_as_text(value: &mut Value) {
    if let Value::Number(number) = value {
        *value = Value::String(number.to_string());
    }
}
