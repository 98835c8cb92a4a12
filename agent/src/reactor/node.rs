//! When the node's own memory is looked at, and what of it is left to pods. A state machine without IO or clock.
//!
//! A look at the node is dear: it makes the kernel gather figures of every cgroup. The pods' usage costs one small
//! read. So the node is looked at by the clock, and besides as soon as pods have used up the room that the last look
//! found: a filler among the pods is seen as exactly as at the pods' own level. The node's figures follow late, by what
//! CPUs have not handed on: where they do not show yet what pods have used, a few looks follow one another quickly.

use std::time::Duration;

/// The node is looked at by the clock no more often than this, nanoseconds.
const LOOK_NS: u64 = 10_000_000;

/// Looks sooner than the shortest time after another, between two by the clock.
const QUICK: u32 = 8;
/// One of these comes so much sooner at best, and looks take at most one in [`PART`] of the time meanwhile.
const SOONER: u64 = 8;
const PART: u64 = 4;

/// Room is rounded down to this, so that the kernel's level is not armed anew for every page that another process
/// uses, bytes; less than [`NEAR`] is not rounded.
const GRAIN: u64 = 1 << 20;
const NEAR: u64 = 8 << 20;

/// See the module's text. Times are `CLOCK_MONOTONIC` nanoseconds, sizes bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeRoom {
    /// When the clock says to look again.
    due: u64,
    last: Option<LastLook>,
    /// Quick looks since the last one by the clock.
    quick: u32,
}

#[derive(Debug, Clone, Copy)]
struct LastLook {
    at: u64,
    /// How long it took.
    took: u64,
    /// How far the node's working set was below its level.
    room: u64,
    /// What all pods used.
    pods: u64,
}

impl NodeRoom {
    /// Whether the node is to be looked at, at `now`: because it is time or, no sooner than `shortest` after the last
    /// look but for a few, because pods use so much more since then. Of `ahead` it is not known whether it is in use.
    pub(super) fn is_due(
        &self,
        now: u64,
        shortest: u64,
        ahead: u64,
        pods: impl FnOnce() -> Option<u64>,
    ) -> bool {
        if now >= self.due {
            return true;
        }
        let Some(last) = self.last else {
            return true;
        };
        let rested = now.saturating_sub(last.at) >= self.rest(last, shortest);
        let used_up = |pods: u64| pods.saturating_sub(last.pods).saturating_add(ahead) >= last.room;
        rested && pods().is_some_and(used_up)
    }

    /// How long no look follows `last`.
    fn rest(&self, last: LastLook, shortest: u64) -> u64 {
        if self.quick >= QUICK {
            return shortest;
        }
        let dear = last.took.saturating_mul(PART);
        dear.clamp(shortest / SOONER, shortest)
    }

    /// The node was looked at from `at` until `done`; pods used so much. By the clock it is looked at again after `sleep`.
    pub(super) fn looked(
        &mut self,
        (at, done): (u64, u64),
        room: u64,
        pods: u64,
        sleep: u64,
        shortest: u64,
    ) {
        let soon = |last: LastLook| at.saturating_sub(last.at) < shortest;
        if at >= self.due {
            self.quick = 0;
        } else if self.last.is_some_and(soon) {
            self.quick += 1;
        }
        self.due = at.saturating_add(sleep.max(LOOK_NS));
        self.last = Some(LastLook {
            at,
            took: done.saturating_sub(at),
            room,
            pods,
        });
    }

    /// How long until the next look because all of the room may be in use. `None` where the clock says when, and for a look
    /// that is due and was not to be had: nothing is in a hurry then.
    pub(super) fn sleep(&self, now: u64, shortest: u64, ahead: u64) -> Option<Duration> {
        let may_be_used = |last: &LastLook| (1..=ahead).contains(&last.room);
        let last = self.last.filter(may_be_used)?;
        let at = last.at.saturating_add(self.rest(last, shortest));
        let left = at.saturating_sub(now);
        (left > 0).then(|| Duration::from_nanos(left))
    }

    /// The pods' level at which they have used the node's room up, when their working set is this.
    pub(super) fn level_of_pods(&self, working_set: u64) -> Option<u64> {
        let room = match self.last?.room {
            room @ 0..NEAR => room,
            room => room / GRAIN * GRAIN,
        };
        Some(working_set.saturating_add(room))
    }

    /// Time to look, by the clock.
    #[cfg(test)]
    pub(super) fn make_due(&mut self) {
        self.due = 0;
    }

    /// It is never time to look, by the clock.
    #[cfg(test)]
    pub(super) fn put_off(&mut self) {
        self.due = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::nanos;

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn looked(room: u64) -> NodeRoom {
        let mut node = NodeRoom::default();
        assert!(node.is_due(0, MS, 0, || None));
        // A look that takes as long as there may be between two.
        node.looked((100 * MS, 101 * MS), room, 200 * MIB, 50 * MS, MS);
        node
    }

    #[test]
    fn the_node_is_looked_at_by_the_clock() {
        let node = looked(64 * MIB);
        let due = |at| node.is_due(at, MS, 0, || Some(200 * MIB));
        assert!(!due(149 * MS) && due(150 * MS));
        let mut near = node;
        near.looked((100 * MS, 101 * MS), 64 * MIB, 200 * MIB, MS, MS);
        assert!(!near.is_due(109 * MS, MS, 0, || None));
        assert!(near.is_due(110 * MS, MS, 0, || None));
    }

    #[test]
    fn pods_that_have_used_the_room_up_are_answered_at_once() {
        let node = looked(4 * MIB);
        let due = |at, pods| node.is_due(at, MS, MIB / 2, || Some(pods));
        assert!(!due(102 * MS, 203 * MIB));
        assert!(due(102 * MS, 204 * MIB));
        assert!(due(102 * MS, 203 * MIB + MIB / 2), "it may be in use");
        assert!(!due(100 * MS + 1, 300 * MIB), "not at every turn");
        assert!(!due(102 * MS, 100 * MIB), "they use less");
    }

    #[test]
    fn a_few_cheap_looks_follow_one_another_quickly_where_the_room_may_be_used_up() {
        let (us, ahead) = (1000, MIB / 2);
        let sleep = |node: &NodeRoom, at| node.sleep(at, MS, ahead).map(nanos);
        let mut node = looked(MIB / 4);
        assert_eq!(sleep(&node, 100 * MS), Some(MS), "it was dear");
        assert_eq!(sleep(&looked(0), 100 * MS), None, "all of it is used");
        assert_eq!(sleep(&looked(MIB / 4), 101 * MS), None, "not to be had");
        assert_eq!(sleep(&looked(MIB), 100 * MS), None, "there is room");
        let mut at = 150 * MS;
        let mut looks = 0;
        loop {
            node.looked((at, at + 20 * us), MIB / 4, 200 * MIB, 50 * MS, MS);
            let next = sleep(&node, at).unwrap();
            assert!(!node.is_due(at + next - 1, MS, ahead, || Some(200 * MIB)));
            assert!(node.is_due(at + next, MS, ahead, || Some(200 * MIB)));
            if next == MS {
                break;
            }
            assert_eq!(next, 125 * us);
            at += next;
            looks += 1;
        }
        assert_eq!(looks, QUICK);
        node.looked((at, at + 100 * us), MIB / 4, 200 * MIB, 50 * MS, MS);
        assert_eq!(sleep(&node, at), Some(MS), "until the clock says so");
        node.looked(
            (300 * MS, 300 * MS + 100 * us),
            MIB / 4,
            200 * MIB,
            50 * MS,
            MS,
        );
        assert_eq!(
            sleep(&node, 300 * MS),
            Some(400 * us),
            "a quarter of the time"
        );
    }

    #[test]
    fn the_pods_level_follows_the_room() {
        assert_eq!(NodeRoom::default().level_of_pods(5), None);
        assert_eq!(looked(MIB / 2).level_of_pods(MIB), Some(MIB * 3 / 2));
        let rough = looked(20 * MIB + 7).level_of_pods(MIB);
        assert_eq!(rough, Some(21 * MIB));
    }
}
