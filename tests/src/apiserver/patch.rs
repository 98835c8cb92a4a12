//! Merge patches (RFC 7396) and strategic ones, as far as a node agent needs them. Values only.

use serde_json::{Value, json};

/// Lists that a strategic patch merges by the key of their items (`patchMergeKey` of Kubernetes
/// `staging/src/k8s.io/api/core/v1/types.go`). Others are replaced, as in a merge patch.
const LISTS: &[(&str, &str)] = &[("conditions", "type")];

/// A merge patch.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    merge_with(target, patch, &[]);
}

/// A strategic merge patch.
pub(super) fn strategic(target: &mut Value, patch: &Value) {
    merge_with(target, patch, LISTS);
}

fn merge_with(target: &mut Value, patch: &Value, lists: &[(&str, &str)]) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (field, value) in fields {
        let key = lists.iter().find(|(list, _)| list == field);
        match (value, key) {
            (Value::Null, _) => {
                target.as_object_mut().map(|object| object.remove(field));
            }
            (Value::Array(items), Some((_, key))) => {
                merge_list(&mut target[field], items, key, lists);
            }
            _ => merge_with(&mut target[field], value, lists),
        }
    }
}

fn merge_list(target: &mut Value, patch: &[Value], key: &str, lists: &[(&str, &str)]) {
    let mut items = target.as_array().cloned().unwrap_or_default();
    for item in patch {
        match items.iter_mut().find(|own| own[key] == item[key]) {
            Some(own) => merge_with(own, item, lists),
            None => items.push(item.clone()),
        }
    }
    *target = items.into();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategic_patch_merges_conditions_and_a_merge_patch_replaces_them() {
        let pod = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Initialized"}],
            "containerStatuses": [{"name": "a"}, {"name": "b"}],
        }});
        let patch = json!({"status": {
            "phase": "Failed",
            "conditions": [{"type": "DisruptionTarget"}, {"type": "Ready", "reason": "Late"}],
            "podIP": null,
        }});
        let mut patched = pod.clone();
        strategic(&mut patched, &patch);
        assert_eq!(
            patched["status"],
            json!({
                "phase": "Failed",
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": "Late"},
                    {"type": "Initialized"},
                    {"type": "DisruptionTarget"},
                ],
                "containerStatuses": [{"name": "a"}, {"name": "b"}],
            })
        );
        let again = patched.clone();
        strategic(&mut patched, &patch);
        assert_eq!(patched, again);
        let mut patched = pod;
        merge(&mut patched, &patch);
        assert_eq!(
            patched["status"]["conditions"],
            patch["status"]["conditions"]
        );
    }
}
