//! A set of process ids of fixed size, to live on the stack.

/// Slots; a power of two.
const SLOTS: usize = 8192;
/// Ids held at most: beyond this, searches would grow long.
const CAPACITY: usize = SLOTS / 8 * 7;

/// Remembers up to 7168 process ids in 32 KiB; open addressing with linear probing.
pub(super) struct PidSet {
    /// 0 is a free slot: no process has that id.
    slots: [u32; SLOTS],
    len: usize,
}

impl PidSet {
    pub(super) const fn new() -> Self {
        Self {
            slots: [0; SLOTS],
            len: 0,
        }
    }

    /// True when `pid` was not in the set; always when it cannot be remembered (the set is full,
    /// or it is 0, which stands for any number of processes outside our pid namespace).
    pub(super) fn insert(&mut self, pid: u32) -> bool {
        let Err(free) = self.find(pid) else {
            return false;
        };
        if pid != 0 && self.len < CAPACITY {
            self.slots[free] = pid;
            self.len += 1;
        }
        true
    }

    /// False also for what cannot be remembered.
    pub(super) fn contains(&self, pid: u32) -> bool {
        pid != 0 && self.find(pid).is_ok()
    }

    /// Its slot, or the free one where it belongs.
    fn find(&self, pid: u32) -> Result<usize, usize> {
        // Multiplicative hashing (Knuth, volume 3, 6.4): the upper bits of the product.
        let hash = pid.wrapping_mul(0x9E37_79B1) >> (u32::BITS - SLOTS.trailing_zeros());
        let mut at = hash as usize;
        loop {
            match self.slots[at] {
                0 => return Err(at),
                held if held == pid => return Ok(at),
                _ => at = (at + 1) % SLOTS,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(pids in prop::collection::vec(1_u32..5000, 0..4000)) {
            let mut ours = PidSet::new();
            let mut theirs = BTreeSet::new();
            for pid in pids {
                prop_assert_eq!(ours.contains(pid), theirs.contains(&pid));
                prop_assert_eq!(ours.insert(pid), theirs.insert(pid));
            }
        }
    }

    #[test]
    fn a_full_set_forgets_but_keeps_what_it_has() {
        let mut set = PidSet::new();
        for pid in 1..=10_000 {
            assert!(set.insert(pid));
        }
        assert!(!set.insert(1));
        assert!(set.insert(10_000));
        assert!(set.insert(0) && set.insert(0));
    }
}
