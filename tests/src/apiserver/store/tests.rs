use serde_json::json;

use super::*;

fn key(name: &str) -> Key {
    ("pods", "shop".to_owned(), name.to_owned())
}

fn pod(node: &str) -> Value {
    json!({"spec": {"nodeName": node}, "status": {"phase": "Running"}})
}

fn wanted(selector: &str) -> Wanted {
    Wanted::parse("pods", None, selector).unwrap()
}

fn types(store: &Store, selector: &str, version: u64) -> Vec<&'static str> {
    let events = store.since(&wanted(selector), version);
    events.into_iter().map(|(kind, _)| kind).collect()
}

#[test]
fn every_write_has_a_version_of_its_own_and_a_watch_tells_them_in_order() {
    let mut store = Store::default();
    store.create(key("a"), pod("n1")).unwrap();
    store.create(key("b"), pod("n2")).unwrap();
    store
        .update(&key("a"), &Value::Null, |p| {
            p["status"]["phase"] = "Failed".into();
        })
        .unwrap();
    store.update(&key("a"), &Value::Null, |_| {}).unwrap();
    store.remove(&key("a")).unwrap();
    assert_eq!(store.version(), 4, "a change of nothing is no write");
    assert_eq!(
        types(&store, "", 0),
        ["ADDED", "ADDED", "MODIFIED", "DELETED"]
    );
    assert_eq!(
        types(&store, "spec.nodeName=n1", 1),
        ["MODIFIED", "DELETED"]
    );
    let events = store.since(&wanted(""), 0);
    let versions: Vec<_> = events
        .iter()
        .map(|(_, o)| o["metadata"]["resourceVersion"].clone())
        .collect();
    assert_eq!(versions, ["1", "2", "3", "4"]);
}

#[test]
fn an_object_comes_into_a_selection_and_leaves_it() {
    let mut store = Store::default();
    store.create(key("a"), pod("")).unwrap();
    store
        .update(&key("a"), &Value::Null, |p| {
            p["spec"]["nodeName"] = "n1".into();
        })
        .unwrap();
    store
        .update(&key("a"), &Value::Null, |p| {
            p["spec"]["nodeName"] = "n2".into();
        })
        .unwrap();
    assert_eq!(types(&store, "spec.nodeName=n1", 0), ["ADDED", "DELETED"]);
    assert_eq!(
        types(&store, "spec.nodeName!=n1", 0),
        ["ADDED", "DELETED", "ADDED"]
    );
    assert_eq!(store.list(&wanted("spec.nodeName=n1"), 0).unwrap().len(), 0);
    assert_eq!(
        store
            .list(&wanted("spec.nodeName=n2,status.phase=Running"), 0)
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn what_is_compacted_is_expired_and_what_is_not_yet_is_too_large() {
    let mut store = Store::default();
    store.create(key("a"), pod("n1")).unwrap();
    store.create(key("b"), pod("n1")).unwrap();
    store.compact();
    assert_eq!(store.can_begin(1).unwrap_err().code, 410);
    assert_eq!(store.can_begin(2), Ok(()));
    assert_eq!(store.can_begin(3).unwrap_err().code, 504);
    // A watch that has begun before goes on.
    assert_eq!(types(&store, "", 1), ["ADDED"]);
    assert_eq!(store.list(&wanted(""), 3).unwrap_err().code, 504);
}

#[test]
fn preconditions_and_names_are_kept() {
    let mut store = Store::default();
    let made = store.create(key("a"), pod("n1")).unwrap();
    assert_eq!(
        store.create(key("a"), pod("n1")).unwrap_err().reason,
        "AlreadyExists"
    );
    let uid = made["metadata"]["uid"].clone();
    let touch = |p: &mut Value| p["status"]["phase"] = "Failed".into();
    let refused = store
        .update(&key("a"), &json!({"uid": "another"}), touch)
        .unwrap_err();
    assert_eq!(refused.code, 409);
    store
        .update(
            &key("a"),
            &json!({"uid": uid, "resourceVersion": "1"}),
            touch,
        )
        .unwrap();
    let refused = store
        .update(&key("a"), &json!({"resourceVersion": "1"}), touch)
        .unwrap_err();
    assert_eq!(refused.reason, "Conflict");
    assert_eq!(
        store
            .update(&key("b"), &Value::Null, touch)
            .unwrap_err()
            .code,
        404
    );
    // Made anew, it is another one.
    store.remove(&key("a")).unwrap();
    let again = store.create(key("a"), pod("n1")).unwrap();
    assert_ne!(again["metadata"]["uid"], uid);
}

#[test]
fn fields_that_cannot_be_selected_are_refused() {
    for (selector, expected) in [
        (
            "spec.hostname=x",
            "field label not supported: spec.hostname",
        ),
        ("spec.nodeName", "can't understand 'spec.nodeName'"),
    ] {
        let refused = Wanted::parse("pods", None, selector).unwrap_err();
        assert!(refused.message.contains(expected), "{refused:?}");
    }
}
