//! What a pass over the cgroups reads of each: its controllers' counters.
//!
//! A controller's structure begins with its `cgroup_subsys_state` (`mem_cgroup`, `pids_cgroup`, `task_group`), so
//! that the state's address is the structure's.

use aya_ebpf::Global;
use podwarden_abi::{Control, MemoryItem, NO_ITEM, PRESSURES, part};

use super::*;

globals! {
    /// `cpu_cgrp_id` of this kernel.
    CPU_CGRP_ID = 0;
    /// `pids_cgrp_id` of this kernel.
    PIDS_CGRP_ID = 0;
    /// Where in `struct pids_cgroup` the forks are that the limits of a cgroup and of those below it refused, bytes; 0
    /// where they are not.
    FORKS_OF_LIMITS_AT = 0;
    /// Where in `struct pids_cgroup` the forks are that were refused to tasks of the cgroup itself, bytes; 0 where they
    /// are not.
    FORKS_OF_TASKS_AT = 0;
}

/// Where in `struct memcg_vmstats` each [`MemoryItem`] is, bytes; [`NO_ITEM`] where it is not.
#[unsafe(no_mangle)]
static ITEM_AT: Global<[u32; MemoryItem::COUNT]> = Global::new([NO_ITEM; MemoryItem::COUNT]);

pointer! {
    /// `struct bpf_iter_meta *`
    WalkMeta {
        /// The iterator's file.
        file: *const u8 = OFF_META_SEQ,
        /// A number that no other pass has.
        session: u64 = OFF_META_SESSION,
        /// Cgroups visited before this one.
        number: u64 = OFF_META_NUMBER,
    }
}

/// A word in a structure that the verifier cannot follow; 0 where it cannot be read.
#[inline(always)]
fn word(base: u64, offset: u64) -> u64 {
    read_at(base + offset).unwrap_or(0)
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

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Address of a controller's structure; 0 where the controller is off, or is on another hierarchy.
    #[inline(always)]
    fn controller(self, id: u64) -> u64 {
        self.pointer(OFF_CGROUP_SUBSYS.load() + id * 8) as u64
    }

    /// Address of the `struct mem_cgroup`; 0 for none.
    #[inline(always)]
    pub(crate) fn memory(self) -> u64 {
        self.controller(MEMORY_CGRP_ID.load())
    }

    /// Address of the `struct pids_cgroup`; 0 for none.
    #[inline(always)]
    pub(crate) fn pids(self) -> u64 {
        self.controller(PIDS_CGRP_ID.load())
    }

    /// Address of the `struct task_group`; 0 for none.
    #[inline(always)]
    pub(crate) fn cpu(self) -> u64 {
        self.controller(CPU_CGRP_ID.load())
    }

    /// Address of the `struct psi_group`; 0 for none.
    #[inline(always)]
    pub(crate) fn pressure(self) -> u64 {
        self.pointer(OFF_CGROUP_PSI.load()) as u64
    }
}

/// Has the processor load the pointers to the controllers of the cgroup at an address.
#[inline(always)]
pub(crate) fn touch_cgroup<S: Structure>(address: u64) {
    let cgroup = S::at(address, TYPE_CGROUP.load());
    cgroup.touch(OFF_CGROUP_SERIAL.load());
    for id in [MEMORY_CGRP_ID.load(), CPU_CGRP_ID.load()] {
        cgroup.touch(OFF_CGROUP_SUBSYS.load() + id * 8);
    }
}

/// A `struct mem_cgroup`.
#[derive(Clone, Copy)]
pub(crate) struct MemoryGroup<S>(S);

impl<S: Structure> MemoryGroup<S> {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Self {
        Self(S::at(address, TYPE_MEM_CGROUP.load()))
    }

    #[inline(always)]
    fn counter(self, offset: u64) -> u64 {
        self.0.word(OFF_MEMCG_MEMORY.load() + offset)
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

    /// Pages.
    #[inline(always)]
    pub(crate) fn usage_and_limit(self) -> (u64, u64) {
        (self.usage(), self.limit())
    }

    /// Its cgroup's id.
    #[inline(always)]
    pub(crate) fn cgroup_id(self) -> u64 {
        let cgroup = self.0.pointer(OFF_CSS_CGROUP.load());
        cgroup.pointer(OFF_CGROUP_KN.load()).word(OFF_KN_ID.load())
    }

    /// Address of its counter of memory.
    #[inline(always)]
    pub(crate) fn counter_address(self) -> u64 {
        self.0.address() + OFF_MEMCG_MEMORY.load()
    }

    /// How often a charge reached the limit.
    #[inline(always)]
    pub(crate) fn limit_hits(self) -> u64 {
        self.counter(OFF_COUNTER_FAILCNT.load())
    }

    #[inline(always)]
    pub(crate) fn statistics(self) -> Statistics<S> {
        Statistics(self.0.pointer(OFF_MEMCG_VMSTATS.load()))
    }

    #[inline(always)]
    pub(crate) fn touch(self) {
        let counter = OFF_MEMCG_MEMORY.load();
        self.0.touch(counter + OFF_COUNTER_USAGE.load());
        self.0.touch(counter + OFF_COUNTER_WATERMARK.load());
        self.0.touch(counter + OFF_COUNTER_MAX.load());
        self.0.touch(OFF_MEMCG_VMSTATS.load());
    }
}

/// A `struct memcg_vmstats`.
#[derive(Clone, Copy)]
pub(crate) struct Statistics<S>(S);

impl<S: Structure> Statistics<S> {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Self {
        Self(S::at(address, TYPE_MEMCG_VMSTATS.load()))
    }

    /// 0 where it could not be read.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0.address()
    }

    /// Every [`MemoryItem`]. While CPUs' parts are on their way a value may be below 0, which counts as 0
    /// (`memcg_page_state`, mm/memcontrol.c).
    #[inline(always)]
    pub(crate) fn items(self, to: &mut [u64; MemoryItem::COUNT]) {
        for (item, at) in to.iter_mut().zip(ITEM_AT.load()) {
            let value = if at == NO_ITEM {
                0
            } else {
                self.0.word(u64::from(at))
            };
            *item = if (value as i64) < 0 { 0 } else { value };
        }
    }

    #[inline(always)]
    pub(crate) fn touch(self) {
        for at in ITEM_AT.load() {
            if at != NO_ITEM {
                self.0.touch(u64::from(at));
            }
        }
    }
}

/// A `struct task_group`.
#[derive(Clone, Copy)]
pub(crate) struct TaskGroup<S>(S);

impl<S: Structure> TaskGroup<S> {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Self {
        Self(S::at(address, TYPE_TASK_GROUP.load()))
    }

    /// Periods of the quota, those with throttling, and the time throttled in nanoseconds.
    #[inline(always)]
    pub(crate) fn bandwidth(self) -> [u64; 3] {
        [
            self.0.int(OFF_GROUP_PERIODS.load()),
            self.0.int(OFF_GROUP_THROTTLED.load()),
            self.0.word(OFF_GROUP_THROTTLED_TIME.load()),
        ]
    }

    #[inline(always)]
    pub(crate) fn touch(self) {
        self.0.touch(OFF_GROUP_THROTTLED_TIME.load());
    }
}

/// A `struct psi_group`.
#[derive(Clone, Copy)]
pub(crate) struct PressureGroup<S>(S);

impl<S: Structure> PressureGroup<S> {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Self {
        Self(S::at(address, TYPE_PSI_GROUP.load()))
    }

    /// Copies the totals of the averages; false where the kernel does not count them, since `cgroup.pressure` is 0.
    #[inline(always)]
    pub(crate) fn totals(self, to: &mut [u64; PRESSURES]) -> bool {
        self.0.flag(OFF_PSI_ENABLED.load()) && self.0.words(OFF_PSI_TOTAL.load(), to)
    }

    #[inline(always)]
    pub(crate) fn touch(self) {
        self.0.touch_flag(OFF_PSI_ENABLED.load());
        self.0.touch(OFF_PSI_TOTAL.load());
        // They may end in the next cache line.
        let last = (PRESSURES - 1) * size_of::<u64>();
        self.0.touch(OFF_PSI_TOTAL.load() + last as u64);
    }
}

/// Which forks the kernel counts that a limit on tasks refused, as a bit of [`part`]; 0 for none.
#[inline(always)]
pub(crate) fn refused_forks(is_v2: bool) -> u32 {
    if is_v2 && FORKS_OF_LIMITS_AT.load() != 0 {
        part::FORKS_OF_LIMITS
    } else if FORKS_OF_TASKS_AT.load() != 0 {
        part::FORKS_OF_TASKS
    } else {
        0
    }
}

/// A `struct pids_cgroup`.
#[derive(Clone, Copy)]
pub(crate) struct PidsGroup<S>(S);

impl<S: Structure> PidsGroup<S> {
    #[inline(always)]
    pub(crate) fn at(address: u64) -> Self {
        Self(S::at(address, TYPE_PIDS_CGROUP.load()))
    }

    /// Tasks of it and all below it.
    #[inline(always)]
    pub(crate) fn tasks(self) -> u64 {
        self.0.word(OFF_PIDS_COUNTER.load())
    }

    /// Forks that were refused, by the bit that [`refused_forks`] has.
    #[inline(always)]
    pub(crate) fn refused_forks(self, of: u32) -> u64 {
        if of == part::FORKS_OF_LIMITS {
            self.0.word(FORKS_OF_LIMITS_AT.load())
        } else {
            self.0.word(FORKS_OF_TASKS_AT.load())
        }
    }
}
