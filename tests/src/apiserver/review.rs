//! Reviews of clients: who has a token, and which paths its user may get. As the real server answers them with
//! `--token-auth-file` and RBAC (1.36): 201 with the object, and what is false left out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::refusal::Refusal;

/// What reviews go by.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clients {
    /// Users by their tokens.
    pub(crate) users: BTreeMap<String, String>,
    /// User and path that it may `get`.
    pub(crate) may_get: BTreeSet<(String, String)>,
}

impl Clients {
    /// A TokenReview with its status.
    pub(super) fn token(&self, mut review: Value) -> Result<Value, Refusal> {
        let token = of_kind(&review, "TokenReview")?["token"].as_str();
        let Some(token) = token.filter(|token| !token.is_empty()) else {
            let message =
                "TokenReview.authentication.k8s.io \"\" is invalid: spec.token: Required value";
            return Err(Refusal::new(422, "Invalid", message));
        };
        review["status"] = match self.users.get(token) {
            Some(user) => json!({
                "authenticated": true,
                "user": {"username": user, "uid": format!("uid-of-{user}"), "groups": ["system:authenticated"]},
                "audiences": ["https://kubernetes.default.svc"],
            }),
            None => json!({"user": {}, "error": "[invalid bearer token, token lookup failed]"}),
        };
        Ok(review)
    }

    /// A SubjectAccessReview with its status.
    pub(super) fn access(&self, mut review: Value) -> Result<Value, Refusal> {
        let spec = of_kind(&review, "SubjectAccessReview")?;
        let (user, asked) = (spec["user"].as_str(), &spec["nonResourceAttributes"]);
        let (Some(user), Some(path), Some(verb)) =
            (user, asked["path"].as_str(), asked["verb"].as_str())
        else {
            let message = "SubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.user: Required value: at \
                           least one of user or group must be specified";
            return Err(Refusal::new(422, "Invalid", message));
        };
        let grouped = spec["groups"] == json!(["system:authenticated"]);
        let may =
            verb == "get" && grouped && self.may_get.contains(&(user.to_owned(), path.to_owned()));
        review["status"] = match may {
            true => {
                json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"reader\""})
            }
            false => json!({"allowed": false}),
        };
        Ok(review)
    }
}

fn of_kind<'a>(review: &'a Value, kind: &str) -> Result<&'a Value, Refusal> {
    if review["kind"] == kind {
        return Ok(&review["spec"]);
    }
    let message = format!("the object provided is no {kind}: {}", review["kind"]);
    Err(Refusal::new(400, "BadRequest", message))
}
