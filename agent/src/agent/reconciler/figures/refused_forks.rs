//! Which pods had forks refused, by the counts of the sampling passes: an event for a pod at most every [`SPACING`].

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use arcstr::ArcStr;
use foldhash::HashMap;
use podwarden_policy::PodUid;

use crate::api::types::{EventKind, PodStats};

/// Between two events of one pod.
const SPACING: Duration = Duration::from_secs(10);

/// What is known of one pod.
#[derive(Debug, Default)]
struct Seen {
    total: u64,
    /// By container id.
    containers: BTreeMap<ArcStr, u64>,
    /// Not reported yet, by container name; `None` where it is not known which.
    news: BTreeMap<Option<String>, u64>,
    reported: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct RefusedForks {
    pods: HashMap<PodUid, Seen>,
    /// Counts of pods that are older than the agent are no news.
    begun: bool,
}

impl RefusedForks {
    /// The event of a pod whose figures have just been read.
    pub(super) fn of_pod(&mut self, pod: &PodStats, now: Instant) -> Option<EventKind> {
        let total = pod.refused_forks?;
        if self.is_as_before(pod, total) {
            return None;
        }
        let is_known = self.begun || self.pods.contains_key(&pod.pod_ref.uid);
        let seen = self.pods.entry(pod.pod_ref.uid.clone()).or_default();
        let before = std::mem::replace(&mut seen.total, total);
        let mut of_containers = 0;
        let mut containers = BTreeMap::new();
        for one in &pod.containers {
            let Some(count) = one.refused_forks else {
                continue;
            };
            let before = seen.containers.get(&one.id).copied().unwrap_or(0);
            // Less than before is the count of a cgroup that was made anew.
            let more = count.checked_sub(before).unwrap_or(count);
            if more > 0 && is_known {
                *seen.news.entry(Some(one.name.to_string())).or_default() += more;
            }
            of_containers += more;
            containers.insert(one.id.clone(), count);
        }
        seen.containers = containers;
        let rest = total.saturating_sub(before).saturating_sub(of_containers);
        if rest > 0 && is_known {
            *seen.news.entry(None).or_default() += rest;
        }
        if seen.reported.is_some_and(|at| now < at + SPACING) {
            return None;
        }
        let news = std::mem::take(&mut seen.news);
        let count: u64 = news.values().sum();
        if count == 0 {
            return None;
        }
        seen.reported = Some(now);
        let container = match news.len() {
            1 => news.into_keys().next().flatten(),
            _ => None,
        };
        Some(EventKind::ForksRefused { container, count })
    }

    /// Whether nothing has been counted since the last look, and nothing waits to be reported.
    fn is_as_before(&self, pod: &PodStats, total: u64) -> bool {
        let Some(seen) = self.pods.get(&pod.pod_ref.uid) else {
            return false;
        };
        let counts = pod.containers.iter();
        let mut counts = counts.filter_map(|one| Some((&one.id, one.refused_forks?)));
        seen.news.is_empty()
            && seen.total == total
            && seen.containers.len() == counts.clone().count()
            && counts.all(|(id, count)| seen.containers.get(id) == Some(&count))
    }

    /// A pass is over: pods that are first seen in the next are new.
    pub(super) fn passed(&mut self) {
        self.begun = true;
    }

    /// The pod is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::{ContainerStats, PodRef};

    fn pod(uid: &str, own: u64, containers: &[(&str, u64)]) -> PodStats {
        let container = |(name, count): &(&str, u64)| ContainerStats {
            name: (*name).into(),
            id: format!("id-{name}").into(),
            refused_forks: Some(*count),
            ..ContainerStats::default()
        };
        PodStats {
            pod_ref: PodRef {
                uid: uid.into(),
                ..PodRef::default()
            },
            refused_forks: Some(own),
            containers: containers.iter().map(container).collect(),
            ..PodStats::default()
        }
    }

    fn event(container: Option<&str>, count: u64) -> Option<EventKind> {
        Some(EventKind::ForksRefused {
            container: container.map(str::to_owned),
            count,
        })
    }

    #[test]
    fn what_was_before_the_agent_is_no_news() {
        let (mut forks, now) = (RefusedForks::default(), Instant::now());
        assert_eq!(forks.of_pod(&pod("old", 7, &[("a", 7)]), now), None);
        forks.passed();
        assert_eq!(forks.of_pod(&pod("old", 7, &[("a", 7)]), now), None);
        assert_eq!(
            forks.of_pod(&pod("old", 9, &[("a", 9)]), now),
            event(Some("a"), 2)
        );
        // A pod that came later, and its container.
        assert_eq!(
            forks.of_pod(&pod("new", 3, &[("a", 3)]), now),
            event(Some("a"), 3)
        );
        forks.forget(&"new".into());
        assert_eq!(
            forks.of_pod(&pod("new", 1, &[("a", 1)]), now),
            event(Some("a"), 1),
            "another pod under its uid"
        );
    }

    #[test]
    fn the_container_is_named_where_it_is_the_only_one() {
        let (mut forks, now) = (RefusedForks::default(), Instant::now());
        forks.passed();
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(forks.of_pod(&pod("p", 5, &[("a", 0)]), now), event(None, 5));
        let two = pod("p", 9, &[("a", 2), ("b", 2)]);
        assert_eq!(forks.of_pod(&two, later(10)), event(None, 4));
        // `b` was made anew; what went with the old one is still in the pod's count.
        let anew = pod("p", 10, &[("a", 2), ("b", 1)]);
        assert_eq!(forks.of_pod(&anew, later(20)), event(Some("b"), 1));
        // v1: the pod has what its containers have, less by the one that is gone.
        let gone = pod("p", 2, &[("a", 2)]);
        assert_eq!(forks.of_pod(&gone, later(30)), None);
    }

    #[test]
    fn events_of_a_pod_are_spaced_and_lose_nothing() {
        let (mut forks, now) = (RefusedForks::default(), Instant::now());
        forks.passed();
        assert!(forks.of_pod(&pod("p", 1, &[("a", 1)]), now).is_some());
        for (seconds, count) in [(1, 4), (9, 9)] {
            let at = now + Duration::from_secs(seconds);
            assert_eq!(forks.of_pod(&pod("p", count, &[("a", count)]), at), None);
        }
        assert_eq!(
            forks.of_pod(&pod("p", 9, &[("a", 9)]), now + SPACING),
            event(Some("a"), 8)
        );
        assert_eq!(
            forks.of_pod(&pod("p", 9, &[("a", 9)]), now + 3 * SPACING),
            None
        );
    }
}
