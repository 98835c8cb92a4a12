//! What an API server keeps: objects, in one order of versions, and what happened to them. No network.
//!
//! True to etcd and the watch cache in what clients depend on: every write has a version of its own,
//! greater than all before; a watch from version N tells what came after N, whole and in order; what is
//! compacted is `Expired`.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};

/// Namespace (empty for nodes) and name, below their resource.
pub(crate) type Key = (&'static str, String, String);

/// What the server answers instead of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub(crate) code: u16,
    /// `reason` of the Status.
    pub(crate) reason: &'static str,
    /// `message` of the Status.
    pub(crate) message: String,
    /// Seconds, in `Retry-After` and in the Status.
    pub(crate) retry_after: Option<u32>,
}

impl Refusal {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            code,
            reason,
            message,
            retry_after: None,
        }
    }

    /// `NewResourceExpired` of apimachinery `pkg/api/errors`.
    fn expired(asked: u64, least: u64) -> Self {
        Self::new(
            410,
            "Expired",
            format!("too old resource version: {asked} ({least})"),
        )
    }

    /// `NewTooLargeResourceVersionError` of apiserver `pkg/storage/errors.go`.
    fn too_large(asked: u64, now: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {now}");
        Self {
            retry_after: Some(1),
            ..Self::new(504, "Timeout", message)
        }
    }

    fn conflict(key: &Key, why: &str) -> Self {
        let (resource, _, name) = key;
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        Self::new(409, "Conflict", message)
    }

    pub(crate) fn not_found(key: &Key) -> Self {
        let (resource, _, name) = key;
        Self::new(404, "NotFound", format!("{resource} \"{name}\" not found"))
    }

    /// As the server writes it.
    pub(crate) fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(seconds) = self.retry_after {
            status["details"] = json!({"retryAfterSeconds": seconds});
        }
        status
    }
}

/// One write.
#[derive(Debug, Clone)]
struct Change {
    version: u64,
    key: Key,
    before: Option<Value>,
    /// As it was last when it is gone, with the version of its end.
    after: Value,
    gone: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Store {
    version: u64,
    /// What happened up to here is forgotten.
    compacted: u64,
    objects: BTreeMap<Key, Value>,
    history: VecDeque<Change>,
}

impl Store {
    /// The version of the last write.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Forgets what happened until now: a watch that begins before is `Expired`. One that has begun is
    /// not: it has been told, or is being told, what came since.
    pub(crate) fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Refuses a version of the future.
    pub(crate) fn has_seen(&self, version: u64) -> Result<(), Refusal> {
        if version > self.version {
            return Err(Refusal::too_large(version, self.version));
        }
        Ok(())
    }

    /// Whether a watch can begin after `version`.
    pub(crate) fn can_begin(&self, version: u64) -> Result<(), Refusal> {
        self.has_seen(version)?;
        if version < self.compacted {
            return Err(Refusal::expired(version, self.compacted));
        }
        Ok(())
    }

    /// Moves the version on, as writes to other resources do.
    pub(crate) fn others_write(&mut self) {
        self.version += 1;
    }

    /// Makes an object; it gets a uid where it has none.
    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Result<Value, Refusal> {
        if self.objects.contains_key(&key) {
            let (resource, _, name) = &key;
            let message = format!("{resource} \"{name}\" already exists");
            return Err(Refusal::new(409, "AlreadyExists", message));
        }
        object["metadata"]["namespace"] = key.1.clone().into();
        object["metadata"]["name"] = key.2.clone().into();
        if object["metadata"]["uid"].as_str().is_none_or(str::is_empty) {
            object["metadata"]["uid"] = crate::harness::fresh_uid().into();
        }
        Ok(self.write(key, object))
    }

    /// One object.
    pub(crate) fn get(&self, key: &Key) -> Result<&Value, Refusal> {
        self.objects.get(key).ok_or_else(|| Refusal::not_found(key))
    }

    /// Changes an object. `preconditions` are the uid and the version that it must have, where they are
    /// there. A change that changes nothing writes nothing.
    pub(crate) fn update(
        &mut self,
        key: &Key,
        preconditions: &Value,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value, Refusal> {
        let before = self.get(key)?;
        for (field, why) in [
            (
                "uid",
                "the uid in the precondition is not that of the object",
            ),
            (
                "resourceVersion",
                "the object has been modified; please apply your changes to the latest version and try again",
            ),
        ] {
            let wanted = &preconditions[field];
            if !wanted.is_null() && *wanted != before["metadata"][field] {
                return Err(Refusal::conflict(key, why));
            }
        }
        let mut after = before.clone();
        change(&mut after);
        if after == *before {
            return Ok(after);
        }
        Ok(self.write(key.clone(), after))
    }

    /// Removes an object.
    pub(crate) fn remove(&mut self, key: &Key) -> Result<Value, Refusal> {
        let mut after = self
            .objects
            .remove(key)
            .ok_or_else(|| Refusal::not_found(key))?;
        let before = after.clone();
        self.version += 1;
        stamp(&mut after, self.version);
        self.history.push_back(Change {
            version: self.version,
            key: key.clone(),
            before: Some(before),
            after: after.clone(),
            gone: true,
        });
        Ok(after)
    }

    fn write(&mut self, key: Key, mut after: Value) -> Value {
        self.version += 1;
        stamp(&mut after, self.version);
        let before = self.objects.insert(key.clone(), after.clone());
        self.history.push_back(Change {
            version: self.version,
            key,
            before,
            after: after.clone(),
            gone: false,
        });
        after
    }

    /// All objects that `wanted` selects, no older than `least`.
    pub(crate) fn list(&self, wanted: &Wanted, least: u64) -> Result<Vec<(Key, Value)>, Refusal> {
        if least > self.version {
            return Err(Refusal::too_large(least, self.version));
        }
        let all = self
            .objects
            .iter()
            .filter(|(key, object)| wanted.has(key, object));
        Ok(all
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect())
    }

    /// What happened after `version` to objects that `wanted` selects: type and object. One that is
    /// selected from now on is `ADDED`, one that no longer is `DELETED`.
    pub(crate) fn since(&self, wanted: &Wanted, version: u64) -> Vec<(&'static str, Value)> {
        let later = self.history.iter().filter(|c| c.version > version);
        later.filter_map(|change| wanted.event(change)).collect()
    }
}

fn stamp(object: &mut Value, version: u64) {
    object["metadata"]["resourceVersion"] = version.to_string().into();
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    resource: &'static str,
    namespace: Option<String>,
    /// Field, whether it is to be equal, value.
    fields: Vec<(String, bool, String)>,
}

/// Those that `ToSelectableFields` of Kubernetes `pkg/registry/core/pod/strategy.go` gives, without the
/// rarer ones.
const FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
];

impl Wanted {
    /// Objects of a resource, in a namespace or in all of them, that a `fieldSelector` selects.
    pub(crate) fn parse(
        resource: &'static str,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Self, Refusal> {
        let mut fields = Vec::new();
        for term in selector.split(',').filter(|term| !term.is_empty()) {
            let parts = [("!=", false), ("==", true), ("=", true)];
            let part = |(sign, equal)| term.split_once(sign).map(|(f, v)| (f, equal, v));
            let Some((field, equal, value)) = parts.into_iter().find_map(part) else {
                let message = format!("invalid selector: '{selector}'; can't understand '{term}'");
                return Err(Refusal::new(400, "BadRequest", message));
            };
            if !FIELDS.contains(&field) {
                let message = format!("field label not supported: {field}");
                return Err(Refusal::new(400, "BadRequest", message));
            }
            fields.push((field.to_owned(), equal, value.to_owned()));
        }
        let namespace = namespace.map(str::to_owned);
        Ok(Self {
            resource,
            namespace,
            fields,
        })
    }

    fn has(&self, key: &Key, object: &Value) -> bool {
        key.0 == self.resource
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| key.1 == *namespace)
            && self.fields.iter().all(|(field, equal, value)| {
                let path = format!("/{}", field.replace('.', "/"));
                let found = object
                    .pointer(&path)
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                (found == value) == *equal
            })
    }

    /// As `convertToWatchEvent` of apiserver `pkg/storage/cacher/cache_watcher.go`.
    fn event(&self, change: &Change) -> Option<(&'static str, Value)> {
        let before = change
            .before
            .as_ref()
            .filter(|before| self.has(&change.key, before));
        let now = !change.gone && self.has(&change.key, &change.after);
        match (before, now) {
            (None, true) => Some(("ADDED", change.after.clone())),
            (Some(_), true) => Some(("MODIFIED", change.after.clone())),
            (Some(before), false) => {
                // As it was last selected, with the version of the change.
                let mut object = before.clone();
                stamp(&mut object, change.version);
                Some(("DELETED", object))
            }
            (None, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
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
}
