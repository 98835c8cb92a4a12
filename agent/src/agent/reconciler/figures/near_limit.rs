//! Which pods and containers have come near their own memory limit: each part of each limit is an event once.
//!
//! Kernel programs see it at context switches and before the kernel reclaims for the limit; a sampling pass sees what
//! stays there without running.

use std::collections::BTreeMap;

use foldhash::HashMap;
use podwarden_abi::NearLimitEvent;
use podwarden_policy::PodUid;

use crate::api::types::{EventKind, PodStats};

/// What has been reported of one limit.
#[derive(Debug, Clone, Copy)]
struct Reported {
    limit: u64,
    percent: u32,
}

/// By pod, then by container id; `None` for the pod's own limit.
#[derive(Debug, Default)]
pub(super) struct NearLimits(HashMap<PodUid, BTreeMap<Option<String>, Reported>>);

impl NearLimits {
    /// Which part of its limit `usage` has reached, percent, where that has not been reported.
    pub(super) fn news(
        &mut self,
        uid: &PodUid,
        container: Option<&str>,
        usage: u64,
        limit: u64,
    ) -> Option<u32> {
        let reached = |percent: &u32| {
            u128::from(usage) * 100 >= u128::from(limit) * u128::from(*percent) && limit > 0
        };
        let parts = NearLimitEvent::PERCENT.into_iter().rev();
        let percent = parts.into_iter().find(|percent| reached(percent))?;
        let known = self
            .0
            .get(uid)
            .and_then(|pod| pod.get(&container.map(str::to_owned)));
        if known.is_some_and(|known| known.limit == limit && known.percent >= percent) {
            return None;
        }
        let pod = self.0.entry(uid.clone()).or_default();
        pod.insert(container.map(str::to_owned), Reported { limit, percent });
        Some(percent)
    }

    /// The events of a pod whose figures have just been read.
    pub(super) fn of_pod(&mut self, pod: &PodStats) -> Vec<EventKind> {
        let uid = &pod.pod_ref.uid;
        let own = [(None, None, pod.memory.as_ref())];
        let containers = pod.containers.iter();
        let containers =
            containers.map(|one| (Some(one.id.as_str()), Some(&one.name), one.memory.as_ref()));
        let all = own.into_iter().chain(containers);
        all.filter_map(|(id, name, memory)| {
            let (usage_bytes, limit_bytes) = (memory?.usage_bytes, memory?.limit_bytes?);
            let percent = self.news(uid, id, usage_bytes, limit_bytes)?;
            Some(EventKind::MemoryNearLimit {
                container: name.map(ToString::to_string),
                percent,
                usage_bytes,
                limit_bytes,
            })
        })
        .collect()
    }

    /// The pod is gone, or one of its containers.
    pub(super) fn forget(&mut self, uid: &PodUid, container: Option<&str>) {
        match (container, self.0.get_mut(uid)) {
            (None, _) => drop(self.0.remove(uid)),
            (Some(id), Some(pod)) => drop(pod.remove(&Some(id.to_owned()))),
            (Some(_), None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_each_limit_is_news_once() {
        let mut near = NearLimits::default();
        let (a, b) = (PodUid::from("a"), PodUid::from("b"));
        assert_eq!(near.news(&a, None, 79, 100), None);
        assert_eq!(near.news(&a, None, 80, 100), Some(80));
        assert_eq!(near.news(&a, None, 94, 100), None);
        assert_eq!(near.news(&a, None, 95, 100), Some(95));
        assert_eq!(near.news(&a, None, 10, 100), None);
        assert_eq!(near.news(&a, None, 80, 100), None, "it was above 95 before");
        assert_eq!(near.news(&a, Some("c"), 80, 100), Some(80));
        assert_eq!(near.news(&b, None, 100, 100), Some(95));
        assert_eq!(near.news(&a, None, 160, 200), Some(80), "another limit");
        near.forget(&a, Some("c"));
        assert_eq!(near.news(&a, None, 160, 200), None);
        assert_eq!(near.news(&a, Some("c"), 80, 100), Some(80));
        near.forget(&a, None);
        assert_eq!(near.news(&a, None, 160, 200), Some(80));
        assert_eq!(
            near.news(&b, None, 100, 0),
            None,
            "a limit of 0 says nothing"
        );
    }
}
