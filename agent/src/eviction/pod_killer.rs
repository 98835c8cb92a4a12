//! Takes down pods that are gone from every source, where podwarden owns the tree and no kubelet does so: through the
//! runtime, with the pod's grace period, its containers before its sandboxes (`killPod` of `pkg/kubelet/kubelet.go`).
//!
//! A pod that no source ever had is not taken down: it may be another program's, as one of `crictl`.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_policy::{PodUid, evict};

use super::pod_workers::{Job, JobError, Offers, PodWorkers, Work};
use crate::{
    api::types::{PodRef, SourceStats},
    base::{clock, worker::Task},
    pods::{Feed, PodSet, SourceError},
};

/// A pod is gone once no source has it for so long: one that moves from one source to another is away for a moment.
const SETTLE: Duration = Duration::from_secs(2);

/// Pods at a time.
const MOST: usize = 16;

/// A pod that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub pod: PodRef,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// Ends a pod in the container runtime, its sandbox last. Called again until it has done so; a pod that is unknown to
/// the runtime is success.
pub type TakeDown =
    Arc<dyn Fn(Gone) -> Pin<Box<dyn Future<Output = Result<(), JobError>> + Send>> + Send + Sync>;

/// See the module's text. Ends with this; pods that wait are taken down no further.
pub struct PodKiller {
    _following: Task,
    _workers: PodWorkers,
}

impl PodKiller {
    /// Begins to follow the pods of `feed`; the pod `own` is the agent's.
    pub fn start(feed: Feed, own: Option<PodUid>, take_down: TakeDown) -> Self {
        let (workers, offers) = PodWorkers::start(Arc::new(Killing(take_down)), MOST);
        let pods = Pods {
            own,
            ..Pods::default()
        };
        Self {
            _following: Task::spawn(follow(feed, pods, offers)),
            _workers: workers,
        }
    }
}

struct Killing(TakeDown);

impl Job for Killing {
    type Update = Gone;

    async fn run(&self, _uid: &str, work: Work<Gone>) -> Result<(), JobError> {
        match work {
            Work::Update(gone) => (self.0)(gone).await,
            // It is back.
            Work::Delete(_) => Ok(()),
        }
    }

    fn failed(&self, uid: &str, problem: &str) {
        tracing::warn!(uid, "a pod that is gone from its source runs on: {problem}");
    }
}

async fn follow(mut feed: Feed, mut pods: Pods, offers: Offers<Gone>) {
    loop {
        let set = feed.pods.borrow_and_update().clone();
        let trusted = is_trusted(&set, &feed.sources.borrow_and_update());
        let now = clock::of_timers();
        let Changes { gone, back } = pods.follow(&set, trusted, now);
        for gone in gone {
            let uid = gone.pod.uid.to_string();
            tracing::info!(
                pod = gone.pod.name.as_str(),
                namespace = gone.pod.namespace.as_str(),
                uid,
                grace = ?gone.grace,
                "no source has the pod any more: it is taken down"
            );
            offers.offer(&uid, Work::Update(gone));
        }
        for back in back {
            offers.offer(&back.pod.uid.to_string(), Work::Delete(back));
        }
        let changed = tokio::select! {
            changed = feed.pods.changed() => changed,
            changed = feed.sources.changed() => changed,
            () = clock::until(pods.due()) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Whether a pod that is missing is gone: every source has told its pods, none is in trouble, and no manifest that
/// cannot be used may be the pod's.
fn is_trusted(set: &PodSet, sources: &[SourceStats]) -> bool {
    let is_manifest = |error: &SourceError| matches!(error, SourceError::Manifest(_));
    set.waiting.is_empty()
        && !set.errors.iter().any(is_manifest)
        && sources.iter().all(|source| source.problem.is_none())
}

/// The pods that sources had. Values only: no clock.
#[derive(Debug, Default)]
struct Pods {
    own: Option<PodUid>,
    known: BTreeMap<PodUid, Gone>,
    /// Those that are missing, and since when.
    missing: BTreeMap<PodUid, Instant>,
    /// Those that are taken down.
    gone: BTreeMap<PodUid, Gone>,
}

/// What a look at the pods found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<Gone>,
    back: Vec<Gone>,
}

impl Pods {
    fn follow(&mut self, set: &PodSet, trusted: bool, now: Instant) -> Changes {
        let mut changes = Changes::default();
        for pod in set.pods.iter().chain(&set.ended).map(|known| &known.pod) {
            self.missing.remove(&pod.uid);
            changes.back.extend(self.gone.remove(&pod.uid));
            let grace = Duration::from_secs(evict::grace_seconds(pod, None).into());
            let known = Gone {
                pod: PodRef {
                    name: pod.name.as_str().into(),
                    namespace: pod.namespace.as_str().into(),
                    uid: pod.uid.clone(),
                },
                grace,
            };
            self.known.insert(pod.uid.clone(), known);
        }
        if !trusted {
            self.missing.clear();
            return changes;
        }
        let own = self.own.as_ref();
        for uid in self.known.keys() {
            let mut unusable = set.errors.iter().filter_map(SourceError::key);
            let is_unusable = unusable.any(|key| key == uid.as_str());
            if !set.mentions(uid) && !is_unusable && own != Some(uid) {
                self.missing.entry(uid.clone()).or_insert(now);
            }
        }
        let due = self
            .missing
            .extract_if(.., |_, since| *since + SETTLE <= now);
        for (uid, _) in due {
            if let Some(gone) = self.known.remove(&uid) {
                self.gone.insert(uid, gone.clone());
                changes.gone.push(gone);
            }
        }
        changes
    }

    /// When the next pod counts as gone.
    fn due(&self) -> Option<Instant> {
        self.missing.values().min().map(|since| *since + SETTLE)
    }
}

#[cfg(test)]
mod tests {
    use podwarden_policy::{Pod, QosClass};

    use super::*;
    use crate::pods::{Origin, Problem, Source, SourcedPod};

    fn set(pods: &[(&str, Option<u32>)]) -> PodSet {
        let pods = pods.iter().map(|(uid, grace_seconds)| {
            let pod = Pod {
                uid: (*uid).into(),
                grace_seconds: *grace_seconds,
                ..Pod::default()
            };
            let origin = Origin::Manifest {
                file: "/pods.yaml".into(),
                document: 1,
            };
            SourcedPod::of_manifest(pod, QosClass::BestEffort, origin)
        });
        PodSet {
            pods: pods.collect(),
            ..PodSet::default()
        }
    }

    fn gone(changes: &Changes) -> Vec<(&str, u64)> {
        let all = changes.gone.iter();
        all.map(|gone| (gone.pod.uid.as_str(), gone.grace.as_secs()))
            .collect()
    }

    #[test]
    fn a_pod_is_gone_after_a_while_with_the_grace_that_it_had_last() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        let all = set(&[("a", Some(7)), ("b", None), ("c", Some(0)), ("d", Some(9))]);
        assert_eq!(pods.follow(&all, true, start), Changes::default());
        pods.follow(&set(&[("d", Some(9)), ("a", Some(3))]), true, start);
        let left = set(&[("d", Some(9))]);
        assert_eq!(pods.follow(&left, true, start), Changes::default());
        assert_eq!(pods.due(), Some(start + SETTLE));
        let found = pods.follow(&left, true, start + SETTLE);
        assert_eq!(gone(&found), [("a", 3), ("b", 30), ("c", 1)]);
        assert_eq!(
            pods.follow(&left, true, start + 2 * SETTLE),
            Changes::default()
        );
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_source_that_is_in_trouble_or_has_told_nothing_takes_no_pod_down() {
        let (mut pods, start) = (Pods::default(), Instant::now());
        pods.follow(&set(&[("a", None)]), true, start);
        let none = set(&[]);
        pods.follow(&none, true, start);
        for later in 1..9 {
            let at = start + later * SETTLE;
            assert_eq!(pods.follow(&none, false, at), Changes::default());
            assert_eq!(pods.due(), None);
        }
        // It counts anew from then on.
        let end = start + 9 * SETTLE;
        assert_eq!(pods.follow(&none, true, end), Changes::default());
        assert_eq!(gone(&pods.follow(&none, true, end + SETTLE)), [("a", 30)]);
        let mut waiting = PodSet::default();
        waiting.waiting.push(Source::Apiserver);
        assert!(!is_trusted(&waiting, &[]));
        let mut unusable = PodSet::default();
        unusable.errors.push(SourceError::Object {
            by: Source::Apiserver,
            uid: "b".to_owned(),
            pod: "shop/b".to_owned(),
            problem: Problem::Missing("spec".to_owned()),
        });
        assert!(is_trusted(&unusable, &[]));
        pods.follow(&set(&[("b", None)]), true, end);
        pods.follow(&unusable, true, end);
        let found = pods.follow(&unusable, true, end + 3 * SETTLE);
        assert_eq!(found, Changes::default());
        let mut ill = SourceStats::default();
        assert!(is_trusted(&PodSet::default(), std::slice::from_ref(&ill)));
        ill.problem = Some("away".to_owned());
        assert!(!is_trusted(&PodSet::default(), &[ill]));
    }

    #[test]
    fn a_pod_that_is_back_is_left_alone_and_the_agents_own_always() {
        let start = Instant::now();
        let mut pods = Pods {
            own: Some("own".into()),
            ..Pods::default()
        };
        let all = set(&[("a", None), ("own", None)]);
        pods.follow(&all, true, start);
        pods.follow(&set(&[]), true, start);
        // From one source to the other.
        assert_eq!(pods.follow(&all, true, start + SETTLE), Changes::default());
        pods.follow(&set(&[]), true, start + SETTLE);
        let found = pods.follow(&set(&[]), true, start + 2 * SETTLE);
        assert_eq!(gone(&found), [("a", 30)]);
        let back = pods.follow(&all, true, start + 2 * SETTLE);
        assert!(back.gone.is_empty());
        assert_eq!(back.back[0].pod.uid.as_str(), "a");
    }
}
