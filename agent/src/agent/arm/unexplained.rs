//! Pods' cgroups that no source explains.
//!
//! Such a cgroup uses memory of its tier, and a level below it could not be kept if it were let be: once
//! every source has reported, it is a victim of its tier that asks for nothing. Three things are awaited first,
//! because a wrong victim is worse than a late one:
//!
//! - [`SETTLE`]: a pod's cgroup may come before the source's word of it, and outlive it by its teardown.
//! - The end of a source's problem: what a pod's cgroup is cannot be told meanwhile. [`SETTLE`] begins anew then.
//! - The runtime, where one is configured: it has the kubelet's annotation on the sandbox of a static pod,
//!   which has no object in the API until the kubelet has made its mirror.
//!
//! Until a cgroup counts it is a stranger: no other pod goes for what it fills (`podwarden_policy::worth`).
//!
//! Values only: time is an argument.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use podwarden_policy::{Bytes, PodUid, QosClass, evict::Candidate, plan::Ownership};

use crate::{
    accounting::index::PodEntry,
    api::types::SourceStats,
    pods::{PodSet, runtime::Runtime},
};

/// How long a cgroup stays unexplained before it counts.
const SETTLE: Duration = Duration::from_secs(10);

/// What may explain a cgroup.
#[derive(Debug, Clone, Copy)]
pub(in crate::agent) struct Explainers<'a> {
    pub(in crate::agent) set: &'a PodSet,
    pub(in crate::agent) sources: &'a [SourceStats],
    pub(in crate::agent) ownership: Ownership,
    /// `None` where none is configured.
    pub(in crate::agent) runtime: Option<&'a Runtime>,
}

/// The sources that are relied on. Beside a kubelet manifests alone are not enough: most of its pods are the API
/// server's.
fn relied_on(sources: &[SourceStats], ownership: Ownership) -> impl Iterator<Item = &SourceStats> {
    sources.iter().filter(move |source| match ownership {
        Ownership::Own => true,
        Ownership::Assist => matches!(source.name.as_str(), "apiserver" | "kubelet"),
    })
}

/// Whether one of them has a problem: there may be pods that it could not tell of.
pub(in crate::agent) fn are_in_trouble(sources: &[SourceStats], ownership: Ownership) -> bool {
    relied_on(sources, ownership).any(|source| source.problem.is_some())
}

impl Explainers<'_> {
    /// Whether all of them have told what they know.
    fn are_complete(&self) -> bool {
        relied_on(self.sources, self.ownership).next().is_some()
            && self.set.waiting.is_empty()
            && self.runtime.is_none_or(|runtime| runtime.version.is_some())
    }

    fn explain(&self, uid: &PodUid) -> bool {
        self.set.mentions(uid)
            || self
                .runtime
                .is_some_and(|runtime| runtime.state.is_static(uid))
    }
}

#[derive(Debug, Default)]
pub(in crate::agent) struct Unexplained {
    /// By uid, since when; `None` as long as a source has a problem.
    since: BTreeMap<PodUid, Option<Instant>>,
    /// How many of them count.
    counted: usize,
}

impl Unexplained {
    /// Compares the cgroups with what is known.
    pub(in crate::agent) fn look(
        &mut self,
        entries: &BTreeMap<PodUid, PodEntry>,
        explainers: Explainers<'_>,
        now: Instant,
    ) {
        if !explainers.are_complete() {
            self.since.clear();
        } else {
            let stays = |uid: &PodUid| entries.contains_key(uid) && !explainers.explain(uid);
            self.since.retain(|uid, _| stays(uid));
            let trouble = are_in_trouble(explainers.sources, explainers.ownership);
            for uid in entries.keys().filter(|uid| stays(uid)) {
                let since = self.since.entry(uid.clone()).or_default();
                *since = (!trouble).then(|| since.unwrap_or(now));
            }
        }
        self.counted = self.settled(now).count();
    }

    /// How long until another one counts.
    pub(in crate::agent) fn due(&self, now: Instant) -> Option<Duration> {
        let ends = self.since.values().flatten().map(|since| *since + SETTLE);
        let later = ends.filter(|end| *end > now).min();
        // One that counts since the last look is due at once.
        if self.settled(now).count() > self.counted {
            return Some(Duration::ZERO);
        }
        later.map(|end| end - now)
    }

    /// Whether the last look was before the sources came to be in `trouble`, or out of it.
    pub(in crate::agent) fn is_outdated(&self, trouble: bool) -> bool {
        self.since.values().any(|since| since.is_none() != trouble)
    }

    /// The uids of those that count.
    pub(in crate::agent) fn settled(&self, now: Instant) -> impl Iterator<Item = &PodUid> {
        self.of(true, now)
    }

    /// The uids of those that do not count yet.
    pub(in crate::agent) fn strangers(&self, now: Instant) -> impl Iterator<Item = &PodUid> {
        self.of(false, now)
    }

    fn of(&self, settled: bool, now: Instant) -> impl Iterator<Item = &PodUid> {
        let is_settled = move |since: &Option<Instant>| {
            since.is_some_and(|since| now.duration_since(since) >= SETTLE)
        };
        let all = self.since.iter();
        let these = all.filter(move |(_, since)| is_settled(since) == settled);
        these.map(|(uid, _)| uid)
    }

    /// How many counted at the last look.
    pub(in crate::agent) const fn count(&self) -> usize {
        self.counted
    }

    /// The degradation, where there is one.
    pub(in crate::agent) fn notice(&self, now: Instant) -> Option<String> {
        let first = self.settled(now).next()?;
        Some(format!(
            "{} of the pods' cgroups are explained by no source (one is that of uid {first}): they are victims \
             that ask for nothing",
            self.counted
        ))
    }
}

/// What such a cgroup is ranked by: it asks for nothing.
pub(super) const fn candidate(class: QosClass) -> Candidate {
    Candidate {
        qos: class,
        priority: 0,
        memory_request: Bytes::ZERO,
        working_set: None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        pods::runtime::RuntimeState,
        pods::{Origin, Phase, Source, SourcedPod},
    };

    fn entries(uids: &[&str]) -> BTreeMap<PodUid, PodEntry> {
        uids.iter()
            .map(|uid| (PodUid::from(*uid), PodEntry::new(QosClass::BestEffort)))
            .collect()
    }

    fn set(uids: &[&str], waiting: &[Source]) -> PodSet {
        let pod = |uid: &&str| SourcedPod {
            phase: Some(Phase::Running),
            ..SourcedPod::of_manifest(
                podwarden_policy::Pod {
                    uid: (*uid).into(),
                    ..podwarden_policy::Pod::default()
                },
                QosClass::BestEffort,
                Origin::Kubelet,
            )
        };
        PodSet {
            pods: uids.iter().map(pod).collect(),
            waiting: waiting.to_vec(),
            ..PodSet::default()
        }
    }

    fn sources(names: &[&str]) -> Vec<SourceStats> {
        let source = |name: &&str| SourceStats {
            name: (*name).to_owned(),
            ..SourceStats::default()
        };
        names.iter().map(source).collect()
    }

    struct World {
        set: PodSet,
        sources: Vec<SourceStats>,
        ownership: Ownership,
        runtime: Option<Arc<Runtime>>,
    }

    impl World {
        fn new() -> Self {
            Self {
                set: set(&["a"], &[]),
                sources: sources(&["apiserver", "file"]),
                ownership: Ownership::Assist,
                runtime: None,
            }
        }

        /// The uids that count after `SETTLE`, of a cgroup that is known and two that are not.
        fn found(&self) -> Vec<String> {
            let (mut unexplained, start) = (Unexplained::default(), Instant::now());
            let explainers = Explainers {
                set: &self.set,
                sources: &self.sources,
                ownership: self.ownership,
                runtime: self.runtime.as_deref(),
            };
            let entries = entries(&["a", "b", "c"]);
            unexplained.look(&entries, explainers, start);
            assert_eq!(unexplained.settled(start).count(), 0, "not at once");
            let strangers = unexplained.strangers(start).count();
            let later = start + SETTLE;
            unexplained.look(&entries, explainers, later);
            // Each counts then, or none does.
            let (counted, left) = match are_in_trouble(&self.sources, self.ownership) {
                false => (strangers, 0),
                true => (0, strangers),
            };
            assert_eq!(unexplained.strangers(later).count(), left);
            assert_eq!(unexplained.settled(later).count(), counted);
            let found: Vec<_> = unexplained.settled(later).map(PodUid::to_string).collect();
            assert_eq!(unexplained.count(), found.len());
            assert_eq!(unexplained.notice(later).is_some(), !found.is_empty());
            found
        }
    }

    #[test]
    fn what_no_source_explains_counts_once_all_have_reported() {
        let mut world = World::new();
        assert_eq!(world.found(), ["b", "c"]);
        world.set.ended = set(&["b"], &[]).pods;
        assert_eq!(world.found(), ["c"], "one that has ended is explained");
        world.set.waiting = vec![Source::Apiserver];
        assert!(world.found().is_empty(), "a source may still tell of it");
    }

    #[test]
    fn a_source_of_every_pod_is_needed() {
        let mut world = World::new();
        world.sources = sources(&["file"]);
        assert!(world.found().is_empty(), "the kubelet's pods are not there");
        world.ownership = Ownership::Own;
        assert_eq!(world.found(), ["b", "c"]);
        world.sources.clear();
        assert!(world.found().is_empty(), "nothing explains anything");
    }

    #[test]
    fn while_a_source_has_a_problem_none_counts_and_each_is_a_stranger() {
        let mut world = World::new();
        let (mut unexplained, start) = (Unexplained::default(), Instant::now());
        let mut counted = |world: &World, seconds| {
            let now = start + Duration::from_secs(seconds);
            let explainers = Explainers {
                set: &world.set,
                sources: &world.sources,
                ownership: world.ownership,
                runtime: None,
            };
            let trouble = are_in_trouble(&world.sources, world.ownership);
            let outdated = unexplained.is_outdated(trouble);
            unexplained.look(&entries(&["a", "b"]), explainers, now);
            assert!(!unexplained.is_outdated(trouble));
            let strangers = unexplained.strangers(now).count();
            assert_eq!(unexplained.count() + strangers, 1);
            (outdated, unexplained.count(), unexplained.due(now))
        };
        assert_eq!(counted(&world, 0), (false, 0, Some(SETTLE)));
        world.sources[0].problem = Some("the watch was cut off".to_owned());
        assert_eq!(counted(&world, 1), (true, 0, None));
        assert_eq!(counted(&world, 99), (false, 0, None));
        world.sources[0].problem = None;
        assert_eq!(counted(&world, 100), (true, 0, Some(SETTLE)));
        assert_eq!(counted(&world, 110), (false, 1, None));
        world.sources[0].problem = Some("no answer".to_owned());
        assert_eq!(counted(&world, 111), (true, 0, None));
    }

    #[test]
    fn a_problem_of_a_source_that_is_not_relied_on_is_none() {
        let mut world = World::new();
        world.sources[1].problem = Some("the directory is gone".to_owned());
        assert_eq!(world.found(), ["b", "c"], "manifests beside a kubelet");
        world.ownership = Ownership::Own;
        assert!(world.found().is_empty());
    }

    #[test]
    fn the_runtime_explains_static_pods_and_is_waited_for() {
        let mut world = World::new();
        world.runtime = Some(Arc::default());
        assert!(world.found().is_empty(), "it has not answered");
        world.runtime = Some(Arc::new(Runtime {
            state: RuntimeState::of_sandboxes(&[("b", "file"), ("c", "api")]),
            version: Some(crate::pods::runtime::cri::VersionResponse::default()),
            problem: None,
        }));
        assert_eq!(world.found(), ["c"]);
    }

    #[test]
    fn each_has_its_own_time() {
        let world = World::new();
        let explainers = |set| Explainers {
            set,
            sources: &world.sources,
            ownership: Ownership::Assist,
            runtime: None,
        };
        let (mut unexplained, start) = (Unexplained::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        unexplained.look(&entries(&["b"]), explainers(&world.set), at(0));
        assert_eq!(unexplained.due(at(0)), Some(SETTLE));
        unexplained.look(&entries(&["b", "c"]), explainers(&world.set), at(6));
        assert_eq!(unexplained.due(at(6)), Some(Duration::from_secs(4)));
        assert_eq!(unexplained.due(at(10)), Some(Duration::ZERO));
        unexplained.look(&entries(&["b", "c"]), explainers(&world.set), at(10));
        assert_eq!(unexplained.count(), 1);
        assert_eq!(unexplained.due(at(10)), Some(Duration::from_secs(6)));
        // Explained after all, and gone.
        let explained = set(&["a", "b"], &[]);
        unexplained.look(&entries(&["b"]), explainers(&explained), at(30));
        assert_eq!((unexplained.count(), unexplained.due(at(30))), (0, None));
    }
}
