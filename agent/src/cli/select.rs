//! A pod by its name, namespace and name, or uid.

use podwarden_policy::Pod;

/// The pod of that uid, `namespace/name`, or name, where it is the only one.
pub(crate) fn pod<'a>(pods: &'a [Pod], text: &str) -> anyhow::Result<&'a Pod> {
    if let Some(pod) = pods.iter().find(|pod| pod.uid.as_str() == text) {
        return Ok(pod);
    }
    let (namespace, name) = match text.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, text),
    };
    let is_meant = |pod: &&Pod| pod.name == name && namespace.is_none_or(|n| n == pod.namespace);
    let found: Vec<_> = pods.iter().filter(is_meant).collect();
    match found[..] {
        [pod] => Ok(pod),
        [] => anyhow::bail!(
            "no pod is called `{text}` among {}; name it by NAME, NAMESPACE/NAME or uid",
            pods.len()
        ),
        _ => {
            let names: Vec<_> = found.iter().map(|pod| full_name(pod)).collect();
            anyhow::bail!(
                "several pods are called `{text}`: {}; name one by NAMESPACE/NAME or uid",
                names.join(", ")
            )
        }
    }
}

/// `namespace/name (uid)`: no two pods share it.
fn full_name(pod: &Pod) -> String {
    format!("{}/{} ({})", pod.namespace, pod.name, pod.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_each_of_its_names() {
        let named = |uid: &str, namespace: &str, name: &str| Pod {
            uid: uid.into(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Pod::default()
        };
        let pods = [
            named("u1", "a", "web"),
            named("u2", "b", "web"),
            named("u3", "b", "db"),
        ];
        let uid = |text| pod(&pods, text).map(|pod| pod.uid.as_str().to_owned());
        assert_eq!(uid("u2").unwrap(), "u2");
        assert_eq!(uid("a/web").unwrap(), "u1");
        assert_eq!(uid("db").unwrap(), "u3");
        assert!(
            uid("c/db")
                .unwrap_err()
                .to_string()
                .contains("`c/db` among 3")
        );
        let several = uid("web").unwrap_err().to_string();
        assert!(several.contains("a/web (u1), b/web (u2)"), "{several}");
    }
}
