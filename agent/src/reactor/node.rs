//! When the node's own memory is looked at, and what of it is left to pods. A state machine without IO or clock.
//!
//! A look at the node is dear: it makes the kernel gather figures of every cgroup. The pods' usage costs one small
//! read. So the node is looked at by the clock, and besides as soon as pods have used up the room that the last look
//! found: a filler among the pods is seen as exactly as at the pods' own level.

/// The node is looked at by the clock no more often than this, nanoseconds.
const LOOK_NS: u64 = 10_000_000;

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
}

#[derive(Debug, Clone, Copy)]
struct LastLook {
    at: u64,
    /// How far the node's working set was below its level.
    room: u64,
    /// What all pods used.
    pods: u64,
}

impl NodeRoom {
    /// Whether the node is to be looked at, at `now`: because it is time or, no sooner than `shortest` after the last
    /// look, because pods use so much more since then. Of `ahead` it is not known whether it is in use.
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
        let rested = now.saturating_sub(last.at) >= shortest;
        let used_up = |pods: u64| pods.saturating_sub(last.pods).saturating_add(ahead) >= last.room;
        rested && pods().is_some_and(used_up)
    }

    /// The node was looked at, at `at`; pods used so much. By the clock it is looked at again after `sleep`.
    pub(super) fn looked(&mut self, at: u64, room: u64, pods: u64, sleep: u64) {
        self.due = at.saturating_add(sleep.max(LOOK_NS));
        self.last = Some(LastLook { at, room, pods });
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

    const MS: u64 = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn looked(room: u64) -> NodeRoom {
        let mut node = NodeRoom::default();
        assert!(node.is_due(0, MS, 0, || None));
        node.looked(100 * MS, room, 200 * MIB, 50 * MS);
        node
    }

    #[test]
    fn the_node_is_looked_at_by_the_clock() {
        let node = looked(64 * MIB);
        let due = |at| node.is_due(at, MS, 0, || Some(200 * MIB));
        assert!(!due(149 * MS) && due(150 * MS));
        let mut near = node;
        near.looked(100 * MS, 64 * MIB, 200 * MIB, MS);
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
    fn the_pods_level_follows_the_room() {
        assert_eq!(NodeRoom::default().level_of_pods(5), None);
        assert_eq!(looked(MIB / 2).level_of_pods(MIB), Some(MIB * 3 / 2));
        let rough = looked(20 * MIB + 7).level_of_pods(MIB);
        assert_eq!(rough, Some(21 * MIB));
    }
}
