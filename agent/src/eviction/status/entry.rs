//! What the API server is to be told. Values only.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use podwarden_policy::promise;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    pressure_period::PressurePeriod,
    wording::{self, Sizes},
};
use crate::api::types::{Eviction, PodRef};

/// Of the entry's form.
const VERSION: u32 = 1;

/// In the place of a uid for what is about the node: no pod's has a slash in it.
pub(super) const NODE_KEY: &str = "node/";

/// One entry of the queue, as it is kept on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Entry {
    /// Of the form; an entry of another is set aside.
    version: u32,
    /// The same whenever it is made from the same eviction, and of no other.
    pub(super) id: String,
    /// When it happened, RFC 3339.
    pub(super) time: String,
    /// The object: a pod or the Node.
    pub(super) about: About,
    /// What is said.
    pub(super) message: String,
    /// The API server has its Event. Version 0.1.0 wrote `told`.
    #[serde(default, alias = "told")]
    pub(super) event_sent: bool,
    /// The API server has the pod's status. Version 0.1.0 wrote `marked`.
    #[serde(default, alias = "marked")]
    pub(super) status_written: bool,
    /// The pod's memory comes back with its teardown rather than with its processes. Version 0.1.0 does not read an
    /// entry that has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) frees_by_teardown: bool,
    /// Its status was written, and written over. Version 0.2.0 does not read an entry that has it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) written_over: bool,
    /// The time that the pod has to end, seconds; 0 where it was killed. Version 0.2.0 does not read an entry that has it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) grace_seconds: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(seconds: &u32) -> bool {
    *seconds == 0
}

/// The object: a pod or the Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum About {
    /// A pod that was evicted.
    Pod {
        /// The pod. Where only its cgroup was known it has no namespace: its name is looked up later.
        pod: PodRef,
        /// `metadata.uid` of its object, where that is known: a mirror has one of its own.
        object: Option<String>,
    },
    /// The node, which is short of memory, or was.
    Node {
        name: String,
        /// It is no longer; absent as long as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        past: Option<Past>,
        /// The message says why no pod is evicted, or few are.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        held_back: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Past {
    /// When it began, RFC 3339.
    pub(super) since: String,
    /// How often a level was reached.
    pub(super) crossings: u32,
}

impl Entry {
    /// For an eviction that took place at `time`.
    pub(super) fn of_eviction(
        time: &str,
        eviction: &Eviction,
        object: Option<String>,
        sizes: &Sizes,
    ) -> Self {
        let killed = eviction.timeline.killed_nanos.unwrap_or_default();
        Self {
            version: VERSION,
            id: id(&eviction.pod.uid, killed),
            time: time.to_owned(),
            about: About::Pod {
                pod: eviction.pod.clone(),
                object,
            },
            message: wording::eviction(eviction, sizes),
            event_sent: false,
            status_written: false,
            frees_by_teardown: promise::is_mostly_shared(
                eviction.victim_shared_bytes,
                eviction.victim_usage_bytes,
            ),
            written_over: false,
            grace_seconds: eviction.grace_seconds.unwrap_or_default(),
        }
    }

    /// For a node that is under pressure since `at`, `CLOCK_MONOTONIC` nanoseconds.
    pub(super) fn of_pressure(time: String, node: &str, at: u64, message: String) -> Self {
        let about = About::Node {
            name: node.to_owned(),
            past: None,
            held_back: false,
        };
        Self::of_node(id(node, at), time, about, message)
    }

    /// For a node at a level since `at` on which no pod is evicted, or few are.
    pub(super) fn of_held_back(time: String, node: &str, at: u64, message: String) -> Self {
        let about = About::Node {
            name: node.to_owned(),
            past: None,
            held_back: true,
        };
        let id = id(&format!("{NODE_KEY}held-back/{node}"), at);
        Self::of_node(id, time, about, message)
    }

    /// For a node that was under pressure, for the last time at `time`.
    pub(super) fn of_relief(time: String, node: &str, period: &PressurePeriod) -> Self {
        let about = About::Node {
            name: node.to_owned(),
            past: Some(Past {
                since: period.since.clone(),
                crossings: period.crossings,
            }),
            held_back: false,
        };
        // No node's name has a slash in it: the beginning has another id.
        let id = id(&format!("{NODE_KEY}{node}"), period.at);
        Self::of_node(id, time, about, wording::relief(period))
    }

    fn of_node(id: String, time: String, about: About, message: String) -> Self {
        Self {
            version: VERSION,
            id,
            time,
            about,
            message,
            event_sent: false,
            status_written: true,
            frees_by_teardown: false,
            written_over: false,
            grace_seconds: 0,
        }
    }

    /// The API server has all of it.
    pub(super) fn is_whole(&self) -> bool {
        self.event_sent && self.status_written
    }

    /// Entries with the same key are delivered one after the other.
    pub(super) fn key(&self) -> &str {
        match &self.about {
            About::Pod { pod, .. } => &pod.uid,
            About::Node { .. } => NODE_KEY,
        }
    }

    /// How much of the pod's time to end is left.
    pub(super) fn time_left(&self, now: Timestamp) -> Duration {
        let grace = SignedDuration::from_secs(self.grace_seconds.into());
        let told: Timestamp = self.time.parse().unwrap_or(now);
        let left = grace - now.duration_since(told);
        // Also after a step of the clock.
        left.clamp(SignedDuration::ZERO, grace).unsigned_abs()
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let entry: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if entry.version != VERSION {
            return Err(format!("it has form {}, not {VERSION}", entry.version));
        }
        if entry.id.is_empty() || !entry.id.bytes().all(|c| c.is_ascii_hexdigit()) {
            return Err(format!("its id is {:?}", entry.id));
        }
        Ok(entry)
    }

    /// As it is written.
    pub(super) fn text(&self) -> Vec<u8> {
        // Strings and flags: there is nothing in it that cannot be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The id of the entry for an eviction. One pod is killed once at a time, and the clock has nanoseconds:
/// no two boots of a machine give the same.
pub(super) fn id_of(eviction: &Eviction) -> String {
    id(
        &eviction.pod.uid,
        eviction.timeline.killed_nanos.unwrap_or_default(),
    )
}

fn id(whom: &str, at: u64) -> String {
    let mut hash = Sha256::new();
    hash.update(whom.as_bytes());
    hash.update(at.to_be_bytes());
    let hash = hash.finalize();
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eviction(uid: &str, killed: u64) -> Eviction {
        let mut eviction = Eviction::default();
        eviction.pod.uid = uid.into();
        eviction.timeline.killed_nanos = Some(killed);
        eviction
    }

    #[test]
    fn an_eviction_has_one_id_whenever_it_is_looked_at() {
        let of = |uid: &str, killed| {
            let eviction = eviction(uid, killed);
            let entry = Entry::of_eviction("now", &eviction, None, &Sizes::default());
            assert_eq!(entry.id, id_of(&eviction));
            entry.id
        };
        assert_eq!(of("a", 7), of("a", 7));
        assert_ne!(of("a", 7), of("a", 8));
        assert_ne!(of("a", 7), of("b", 7));
        assert_eq!(of("a", 7).len(), 16);
    }

    #[test]
    fn the_time_to_end_is_what_is_left_of_it() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let left = |grace_seconds, after| {
            let entry = Entry {
                grace_seconds,
                ..Entry::of_eviction(
                    &start.to_string(),
                    &eviction("a", 7),
                    None,
                    &Sizes::default(),
                )
            };
            let read = Entry::parse(&entry.text()).unwrap();
            read.time_left(start + SignedDuration::from_secs(after))
                .as_secs()
        };
        assert_eq!([left(0, 0), left(0, -9)], [0, 0]);
        assert_eq!([0, 10, 30, 99].map(|after| left(30, after)), [30, 20, 0, 0]);
        // The clock was set back.
        assert_eq!(left(30, -3600), 30);
    }

    #[test]
    fn what_is_written_is_read() {
        let eviction = eviction("a", 1);
        let object = Some("mirror".to_owned());
        let entry = Entry::of_eviction("now", &eviction, object, &Sizes::default());
        assert_eq!(Entry::parse(&entry.text()).unwrap(), entry);
        let node = Entry::of_pressure("now".to_owned(), "n1", 3, "short".to_owned());
        assert_eq!(Entry::parse(&node.text()).unwrap(), node);
        let period = PressurePeriod {
            at: 3,
            ..PressurePeriod::default()
        };
        let relief = Entry::of_relief("later".to_owned(), "n1", &period);
        assert_eq!(Entry::parse(&relief.text()).unwrap(), relief);
        assert_ne!(relief.id, node.id);
        let held = Entry::of_held_back("now".to_owned(), "n1", 3, "daemon".to_owned());
        assert_eq!(Entry::parse(&held.text()).unwrap(), held);
        assert!(held.id != node.id && held.id != relief.id && held.is_whole() == node.is_whole());
        // As agents before this one wrote it.
        assert!(!String::from_utf8(node.text()).unwrap().contains("heldBack"));
        let text = String::from_utf8(entry.text()).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"time\"", "\"further\":1,\"time\""),
            (entry.id.as_str(), "../etc"),
        ] {
            let error = Entry::parse(text.replace(from, to).as_bytes());
            assert!(error.is_err(), "{from} -> {to}");
        }
        assert!(Entry::parse(&text.as_bytes()[..40]).is_err());
    }
}
