//! Evictions that agents before this one have on record, and did not come to queue.

use super::{
    Sizes,
    entry::{self, Entry},
    queue::Queue,
};
use crate::api::types::Eviction;

/// Recorded evictions without an eviction status: the agent was killed between the two.
pub(super) fn recover(queue: &mut Queue, recorded: Vec<(String, Eviction)>, sizes: &Sizes) {
    for (time, eviction) in recorded {
        if eviction.pod.uid.is_empty() || queue.knows(&entry::id_of(&eviction)) {
            continue;
        }
        tracing::warn!(
            pod = eviction.pod.name.as_str(),
            uid = %eviction.pod.uid,
            "the agent before this one ended before it could write the eviction status of this pod"
        );
        queue.add(Entry::of_eviction(&time, &eviction, None, sizes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_record_is_told_unless_it_was_or_will_be() {
        let recorded = |uid: &str, killed| {
            let mut eviction = Eviction::default();
            eviction.pod.uid = uid.into();
            eviction.timeline.killed_nanos = Some(killed);
            ("2026-01-01T00:00:00Z".to_owned(), eviction)
        };
        let sizes = Sizes::default();
        let mut queue = Queue::open(None).0;
        for (time, eviction) in [recorded("told", 1), recorded("waits", 2)] {
            queue.add(Entry::of_eviction(&time, &eviction, None, &sizes));
        }
        queue.done(1).unwrap();
        let all = vec![
            recorded("told", 1),
            recorded("waits", 2),
            recorded("lost", 3),
            // Once more, later.
            recorded("told", 4),
            // The cgroup's pod was unknown.
            recorded("", 5),
        ];
        for _ in 0..2 {
            recover(&mut queue, all.clone(), &sizes);
            let waiting: Vec<_> = queue.entries().map(Entry::key).collect();
            assert_eq!(waiting, ["waits", "lost", "told"]);
        }
    }
}
