//! What an API server keeps: objects, in one order of versions, and what happened to them. No network.
//!
//! True to etcd and the watch cache in what clients depend on: every write has a version of its own,
//! greater than all before; a watch from version N tells what came after N, whole and in order; what is
//! compacted is `Expired`.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use super::refusal::Refusal;

/// Namespace (empty for nodes) and name, below their resource.
pub(crate) type Key = (&'static str, String, String);

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

    /// The kind of a list of it.
    pub(crate) fn list_kind(&self) -> &'static str {
        match self.resource {
            "pods" => "PodList",
            "nodes" => "NodeList",
            _ => "EventList",
        }
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
mod tests;
