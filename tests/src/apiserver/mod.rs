//! A stand-in for the API server: pods, nodes and events as a node agent sees them, and the ways in which
//! a real one is unpleasant.
//!
//! | module | purpose |
//! |---|---|
//! | `store` | objects, versions, history; no network |
//! | `patch` | merge patches and strategic ones; values only |
//! | `check` | objects that are refused; values only |
//! | `route` | paths and verbs -> what is asked for |
//! | `serve` | answers, watches, and their faults |
//! | `review` | who clients are and what they may; values only |
//! | `outage` | ways of not answering at all |
//!
//! Left out: TLS, discovery, server-side apply, admission.

mod check;
mod outage;
mod patch;
mod refusal;
mod review;
mod route;
mod serve;
mod store;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::store::{Key, Store, Wanted};
use crate::harness::Server;

pub(crate) use self::outage::Outage;
pub(crate) use self::refusal::Refusal;
pub(crate) use self::review::Clients;

/// How the server is unpleasant.
#[derive(Debug, Clone)]
pub(crate) struct Manners {
    /// Bearer tokens that it knows; with none, every client is let in.
    pub(crate) tokens: BTreeSet<String>,
    /// Between two bookmarks.
    pub(crate) bookmarks: Duration,
    /// Watches are cut after up to this many events, some of them in the middle of a line.
    pub(crate) cut_after: Option<u32>,
    /// Every other event is told twice.
    pub(crate) repeat: bool,
    /// Each event is this late.
    pub(crate) late: Duration,
    /// Answers to the next requests, whatever they ask for.
    pub(crate) refuse: VecDeque<Refusal>,
    /// Evictions are refused with 429 while this is set, as by a disruption budget, until so many seconds
    /// have passed.
    pub(crate) budget_spent: Option<u32>,
    /// Pods, by name, that a disruption budget of their own keeps.
    pub(crate) kept: BTreeSet<String>,
    /// Evictions that were asked for by a dry run, by the pods' names.
    pub(crate) dry_runs: Vec<String>,
    /// What TokenReviews and SubjectAccessReviews go by.
    pub(crate) clients: Clients,
    /// It is away.
    outage: Option<Outage>,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            tokens: BTreeSet::new(),
            bookmarks: Duration::from_secs(60),
            cut_after: None,
            repeat: false,
            late: Duration::ZERO,
            refuse: VecDeque::new(),
            budget_spent: None,
            kept: BTreeSet::new(),
            dry_runs: Vec::new(),
            clients: Clients::default(),
            outage: None,
        }
    }
}

/// A request as RBAC sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Seen {
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`.
    pub(crate) verb: &'static str,
    /// `pods`, `pods/status`, `pods/eviction`, `nodes`, `nodes/status`, `events`, `tokenreviews`,
    /// `subjectaccessreviews`.
    pub(crate) resource: &'static str,
}

/// A write that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Write {
    /// As in [`Seen`].
    pub(crate) verb: &'static str,
    /// As in [`Seen`].
    pub(crate) resource: &'static str,
    /// `metadata.uid` of the object, or of what an Event is about.
    pub(crate) about: String,
    /// `reason` of an Event; empty elsewhere.
    pub(crate) reason: String,
}

impl Write {
    /// What is written of an eviction, in [`Write::step`]s: that it happened, then the pod's end.
    pub(crate) const EVICTED: [(&str, &str, &str); 2] = [
        ("create", "events", "Evicted"),
        ("patch", "pods/status", ""),
    ];

    /// Verb, resource and reason.
    pub(crate) fn step(&self) -> (&str, &str, &str) {
        (self.verb, self.resource, &self.reason)
    }
}

/// Everything behind the requests.
#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    manners: Mutex<Manners>,
    seen: Mutex<Vec<Seen>>,
    written: Mutex<Vec<Write>>,
    /// Requests that came during an outage.
    turned_away: AtomicU64,
    /// Bytes of what watches told.
    watched: AtomicU64,
    /// The store's version, for those who wait for it to change.
    version: watch::Sender<u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Does something to the store and tells watches.
    fn write<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = locked(&self.store);
        let result = act(&mut store);
        self.version.send_replace(store.version());
        result
    }

    /// Notes a write that was carried out, and made `object` what it is.
    fn wrote(&self, verb: &'static str, resource: &'static str, object: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (about, reason) = match resource {
            "events" => (&object["involvedObject"]["uid"], &object["reason"]),
            _ => (&object["metadata"]["uid"], &Value::Null),
        };
        let (about, reason) = (text(about), text(reason));
        locked(&self.written).push(Write {
            verb,
            resource,
            about,
            reason,
        });
    }
}

/// A running server; its sockets are closed when it goes away.
#[derive(Debug)]
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    server: Server,
}

impl ApiServer {
    /// Starts it on a free port of the loopback.
    pub(crate) fn start() -> Result<Self> {
        let shared = Shared {
            store: Mutex::default(),
            manners: Mutex::default(),
            seen: Mutex::default(),
            written: Mutex::default(),
            turned_away: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            version: watch::Sender::new(0),
        };
        let mut server = Self {
            shared: Arc::new(shared),
            server: Server::stopped(),
        };
        server.resume()?;
        Ok(server)
    }

    /// Ends it as a crash does: every connection is cut. What it keeps is kept.
    pub(crate) fn stop(&mut self) {
        self.server.stop();
    }

    /// Starts it again on its port.
    pub(crate) fn resume(&mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let started = self.server.start(|listener| serve::serve(listener, shared));
        started.context("serve the API")
    }

    /// Is away from now on, in this way; what was connected is cut off.
    pub(crate) fn go_away(&mut self, outage: Outage) -> Result<()> {
        self.stop();
        self.manners(|m| m.outage = Some(outage));
        match outage {
            Outage::Refused => Ok(()),
            Outage::Silent | Outage::Unavailable | Outage::Cut => self.resume(),
        }
    }

    /// Ends an outage.
    pub(crate) fn come_back(&mut self) -> Result<()> {
        self.stop();
        self.manners(|m| m.outage = None);
        self.resume()
    }

    /// Requests that came during an outage so far.
    pub(crate) fn turned_away(&self) -> u64 {
        self.shared.turned_away.load(Ordering::Relaxed)
    }

    /// Bytes of what watches told since the last call.
    pub(crate) fn take_watched(&self) -> u64 {
        self.shared.watched.swap(0, Ordering::Relaxed)
    }

    /// Writes a kubeconfig for it, with a token where one is given.
    pub(crate) fn kubeconfig(&self, path: &Path, token: Option<&str>) -> Result<()> {
        let user = token.map_or_else(|| json!({}), |token| json!({"token": token}));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {"server": format!("http://{}", self.server.address())}}],
            "users": [{"name": "agent", "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "agent"}}],
        });
        fs::write(path, config.to_string()).with_context(|| format!("write {}", path.display()))
    }

    /// True where this was asked for since the last [`Self::take_seen`].
    pub(crate) fn has_seen(&self, verb: &str, resource: &str) -> bool {
        let seen = locked(&self.shared.seen);
        seen.iter()
            .any(|seen| seen.verb == verb && seen.resource == resource)
    }

    /// Changes its manners.
    pub(crate) fn manners(&self, change: impl FnOnce(&mut Manners)) {
        change(&mut locked(&self.shared.manners));
    }

    /// The requests since the last call.
    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *locked(&self.shared.seen))
    }

    /// The writes that clients had it carry out since the last call, in their order.
    pub(crate) fn take_written(&self) -> Vec<Write> {
        std::mem::take(&mut *locked(&self.shared.written))
    }

    /// Makes a pod, bound to `node`, out of a manifest.
    pub(crate) fn create_pod(&self, node: &str, mut manifest: Value) -> Result<Value> {
        let text = |value: &Value| value.as_str().unwrap_or("default").to_owned();
        let metadata = &manifest["metadata"];
        let key = pod_key(&text(&metadata["namespace"]), &text(&metadata["name"]));
        manifest["spec"]["nodeName"] = node.into();
        if manifest["status"].is_null() {
            manifest["status"] = json!({"phase": "Pending"});
        }
        self.answered(self.shared.write(|store| store.create(key, manifest)))
    }

    /// Makes a node with this status.
    pub(crate) fn create_node(&self, name: &str, status: &Value) -> Result<Value> {
        let node = json!({"metadata": {}, "status": status});
        self.answered(
            self.shared
                .write(|store| store.create(node_key(name), node)),
        )
    }

    /// A node as it is now.
    pub(crate) fn node(&self, name: &str) -> Result<Value> {
        let store = locked(&self.shared.store);
        self.answered(store.get(&node_key(name)).cloned())
    }

    /// Changes a node.
    pub(crate) fn change_node(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<Value> {
        let key = node_key(name);
        self.answered(
            self.shared
                .write(|store| store.update(&key, &Value::Null, change)),
        )
    }

    /// A pod as it is now.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Result<Value> {
        let store = locked(&self.shared.store);
        self.answered(store.get(&pod_key(namespace, name)).cloned())
    }

    /// All Events, by namespace and name.
    pub(crate) fn events(&self) -> Result<Vec<Value>> {
        let wanted = Wanted::parse("events", None, "");
        let wanted = wanted.map_err(|refusal| anyhow::anyhow!(refusal.message))?;
        let all = locked(&self.shared.store).list(&wanted, 0);
        let all = all.map_err(|refusal| anyhow::anyhow!(refusal.message))?;
        Ok(all.into_iter().map(|(_, event)| event).collect())
    }

    /// Changes a pod.
    pub(crate) fn change_pod(
        &self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<Value> {
        let key = pod_key(namespace, name);
        self.answered(
            self.shared
                .write(|store| store.update(&key, &Value::Null, change)),
        )
    }

    /// Removes a pod, as the kubelet does at the end of its grace.
    pub(crate) fn remove_pod(&self, namespace: &str, name: &str) -> Result<Value> {
        let key = pod_key(namespace, name);
        self.answered(self.shared.write(|store| store.remove(&key)))
    }

    /// Forgets what happened until now.
    pub(crate) fn compact(&self) {
        self.shared.write(|store| {
            // A version that none of our clients has seen, as any other object's write gives one.
            store.others_write();
            store.compact();
        });
    }

    fn answered(&self, result: Result<Value, Refusal>) -> Result<Value> {
        result.map_err(|refusal| anyhow::anyhow!("{}: {}", refusal.reason, refusal.message))
    }
}

fn pod_key(namespace: &str, name: &str) -> Key {
    ("pods", namespace.to_owned(), name.to_owned())
}

fn node_key(name: &str) -> Key {
    ("nodes", String::new(), name.to_owned())
}
