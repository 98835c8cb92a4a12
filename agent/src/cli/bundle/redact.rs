//! A configuration without its secrets: values of headers, and user, password and query of URLs.

use serde_json::Value;

const REDACTED: &str = "(redacted)";

/// The configuration as JSON, which is YAML.
pub(super) fn configuration(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut value: Value = serde_saphyr::from_str(text)?;
    redact(&mut value, false);
    Ok(serde_json::to_vec_pretty(&value)?)
}

/// `secret`: every text in here is one.
fn redact(value: &mut Value, secret: bool) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                redact(value, secret || key == "staticPodURLHeader");
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| redact(value, secret)),
        Value::String(text) if secret => *text = REDACTED.to_owned(),
        Value::String(text) => {
            if let Some(bare) = bare_url(text) {
                *text = bare;
            }
        }
        _ => {}
    }
}

/// A URL without user, password, query and fragment; `None` where it has none of them, or is no URL.
fn bare_url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let (rest, hidden) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], true),
        None => (rest, false),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map(|(_, host)| host);
    if host.is_none() && !hidden {
        return None;
    }
    let after = if hidden { "?..." } else { "" };
    Some(format!(
        "{scheme}://{}{path}{after}",
        host.unwrap_or(authority)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_configuration_are_taken_out() {
        let text = "\
staticPodURL: https://user:pw@pods.example/a?token=t1
staticPodURLHeader: {Authorization: [Bearer t2], X: [t3]}
kubelet: {url: \"https://127.0.0.1:10250\", tokenFile: /etc/token}
mode: enforce
";
        let json = String::from_utf8(configuration(text).unwrap()).unwrap();
        for secret in ["user", "pw", "t1", "t2", "t3"] {
            assert!(!json.contains(secret), "{secret} in {json}");
        }
        for kept in [
            "https://pods.example/a?...",
            "https://127.0.0.1:10250",
            "/etc/token",
            "Authorization",
            "enforce",
        ] {
            assert!(json.contains(kept), "no {kept} in {json}");
        }
    }
}
