//! What a pass over the cgroups reads of each: its controllers' counters.
//!
//! A controller's structure begins with its `cgroup_subsys_state` (`mem_cgroup`, `pids_cgroup`, `task_group`), so
//! that the state's address is the structure's.

use aya_ebpf::{Global, helpers};
use podwarden_abi::{Control, NO_ITEM, PRESSURES};

use super::*;

/// `cpu_cgrp_id` of this kernel.
#[unsafe(no_mangle)]
static CPU_CGRP_ID: Global<u64> = Global::new(0);

/// `pids_cgrp_id` of this kernel.
#[unsafe(no_mangle)]
static PIDS_CGRP_ID: Global<u64> = Global::new(0);

/// `struct bpf_iter_meta *`
#[derive(Clone, Copy)]
pub(crate) struct WalkMeta(pub(crate) *const u8);

impl WalkMeta {
    /// The iterator's file.
    #[inline(always)]
    pub(crate) fn file(self) -> *const u8 {
        member(self.0, OFF_META_SEQ.load())
    }

    /// A number that no other pass has.
    #[inline(always)]
    pub(crate) fn session(self) -> u64 {
        member(self.0, OFF_META_SESSION.load())
    }

    /// Cgroups visited before this one.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        member(self.0, OFF_META_NUMBER.load())
    }
}

/// A word in a structure that the verifier cannot follow; 0 where it cannot be read.
#[inline(always)]
fn word(base: u64, offset: u64) -> u64 {
    word_at(base + offset).unwrap_or(0)
}

/// An `int` that only grows.
#[inline(always)]
fn count(base: u64, offset: u64) -> u64 {
    let at = (base + offset) as *const u32;
    // SAFETY: a bad address is an error, not a fault.
    let n = unsafe { helpers::bpf_probe_read_kernel(at) };
    u64::from(n.unwrap_or(0))
}

impl Cgroup {
    /// The id of its ancestor so many levels below the hierarchy's root; 0 where it has none.
    #[inline(always)]
    pub(crate) fn ancestor_id(self, level: u32) -> u64 {
        // Only offsets that are small enough may be added to a pointer that the verifier knows.
        let place = u64::from(level & Control::LEVELS_MASK) * size_of::<u64>() as u64;
        let cgroup = word(self.0 as u64 + OFF_CGROUP_ANCESTORS.load(), place);
        word(word(cgroup, OFF_CGROUP_KN.load()), OFF_KN_ID.load())
    }

    /// Levels below the hierarchy's root, which is 0.
    #[inline(always)]
    pub(crate) fn level(self) -> u32 {
        member(self.0, OFF_CGROUP_LEVEL.load())
    }

    /// A controller's structure; `None` where the controller is off, or is on another hierarchy.
    #[inline(always)]
    fn controller(self, id: u64) -> Option<u64> {
        let state: u64 = member(self.0, OFF_CGROUP_SUBSYS.load() + id * 8);
        (state != 0).then_some(state)
    }

    #[inline(always)]
    pub(crate) fn memory(self) -> Option<MemoryGroup> {
        self.controller(MEMORY_CGRP_ID.load()).map(MemoryGroup)
    }

    /// Tasks of the cgroup and all below it.
    #[inline(always)]
    pub(crate) fn tasks(self) -> Option<u64> {
        let pids = self.controller(PIDS_CGRP_ID.load())?;
        Some(word(pids, OFF_PIDS_COUNTER.load()))
    }

    /// Periods of the quota, those with throttling, and the time throttled in nanoseconds.
    #[inline(always)]
    pub(crate) fn bandwidth(self) -> Option<[u64; 3]> {
        let group = self.controller(CPU_CGRP_ID.load())?;
        Some([
            count(group, OFF_GROUP_PERIODS.load()),
            count(group, OFF_GROUP_THROTTLED.load()),
            word(group, OFF_GROUP_THROTTLED_TIME.load()),
        ])
    }

    /// Copies the totals of the averages; false where the cgroup has none.
    #[inline(always)]
    pub(crate) fn pressure(self, to: &mut [u64; PRESSURES]) -> bool {
        let group: u64 = member(self.0, OFF_CGROUP_PSI.load());
        if group == 0 {
            return false;
        }
        let at = (group + OFF_PSI_TOTAL.load()) as *const [u64; PRESSURES];
        // SAFETY: a bad address is an error, not a fault.
        match unsafe { helpers::bpf_probe_read_kernel(at) } {
            Ok(totals) => {
                *to = totals;
                true
            }
            Err(_) => false,
        }
    }
}

/// Address of a `struct mem_cgroup`.
#[derive(Clone, Copy)]
pub(crate) struct MemoryGroup(u64);

impl MemoryGroup {
    #[inline(always)]
    fn counter(self, offset: u64) -> u64 {
        word(self.0 + OFF_MEMCG_MEMORY.load(), offset)
    }

    /// Pages.
    #[inline(always)]
    pub(crate) fn usage(self) -> u64 {
        self.counter(OFF_COUNTER_USAGE.load())
    }

    /// Highest usage, pages.
    #[inline(always)]
    pub(crate) fn watermark(self) -> u64 {
        self.counter(OFF_COUNTER_WATERMARK.load())
    }

    /// Pages.
    #[inline(always)]
    pub(crate) fn limit(self) -> u64 {
        self.counter(OFF_COUNTER_MAX.load())
    }

    /// How often a charge reached the limit.
    #[inline(always)]
    pub(crate) fn limit_hits(self) -> u64 {
        self.counter(OFF_COUNTER_FAILCNT.load())
    }

    /// Address of its `struct memcg_vmstats`; 0 where it cannot be read.
    #[inline(always)]
    pub(crate) fn statistics(self) -> u64 {
        word(self.0, OFF_MEMCG_VMSTATS.load())
    }

    /// A value of [`MemoryGroup::statistics`]; while CPUs' parts are on their way a value may be below 0, which
    /// counts as 0 (`memcg_page_state`, mm/memcontrol.c).
    #[inline(always)]
    pub(crate) fn item(self, statistics: u64, at: u32) -> u64 {
        if at == NO_ITEM {
            return 0;
        }
        let value = word(statistics, u64::from(at));
        if (value as i64) < 0 { 0 } else { value }
    }
}
