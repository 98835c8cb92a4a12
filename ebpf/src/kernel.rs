//! The kernel's structures, as far as the programs read them.
//!
//! Each wrapper holds a pointer that the verifier knows the type of (`PTR_TO_BTF_ID`), so members are
//! read by plain loads: a stale or null pointer reads as 0, it cannot fault. Offsets are read-only
//! globals that the agent fills from BTF; the verifier folds them into constants.

use aya_ebpf::{Global, helpers};
use podwarden_abi::Figure;

mod controllers;
mod structure;
mod task;
mod traffic;

pub(crate) use controllers::{
    MemoryGroup, PidsGroup, PressureGroup, Statistics, TaskGroup, WalkMeta, refused_forks,
    touch_cgroup,
};
use structure::untrusted;
pub(crate) use structure::{Plain, Structure, Typed};
pub(crate) use task::Task;
pub(crate) use traffic::{Bio, Packet, Request, Socket};

macro_rules! offsets {
    ($($name:ident: $figure:ident, $structure:literal, $path:literal;)*) => {
        $(
            #[unsafe(no_mangle)]
            static $name: Global<u64> = Global::new(0);
        )*
    };
}
podwarden_abi::for_each_offset!(offsets);

macro_rules! types {
    ($($name:ident: $structure:literal;)*) => {
        $(
            /// The id of this type in the kernel's BTF.
            #[unsafe(no_mangle)]
            static $name: Global<u64> = Global::new(0);
        )*
    };
}
podwarden_abi::for_each_type!(types);

/// Set in the state of a task that will not run again (include/linux/sched.h).
pub(crate) const TASK_DEAD: u64 = 0x80;

/// 1 where `sched_process_exit` says itself whether the process is gone (6.16 and later).
#[unsafe(no_mangle)]
pub(crate) static EXIT_HAS_GROUP_DEAD: Global<u64> = Global::new(0);

/// 1 where `tcp_retransmit_skb` also tells of segments that could not be sent, with the error (6.17 and later).
#[unsafe(no_mangle)]
pub(crate) static RETRANSMIT_HAS_ERROR: Global<u64> = Global::new(0);

/// 0 where a task's storage cannot be reached from an interrupt of a program that uses it (before 6.2).
#[unsafe(no_mangle)]
pub(crate) static STORAGE_RECURS: Global<u64> = Global::new(0);

/// `memory_cgrp_id` of this kernel.
#[unsafe(no_mangle)]
static MEMORY_CGRP_ID: Global<u64> = Global::new(0);

/// The hierarchy whose cgroups identify pods: 0 is the unified one.
#[unsafe(no_mangle)]
static IDENTITY_HIERARCHY: Global<u64> = Global::new(0);

/// CPUs that may exist.
#[unsafe(no_mangle)]
pub(crate) static POSSIBLE_CPUS: Global<u64> = Global::new(1);

/// 1 where the programs can give a pointer a type; see [`Typed`].
#[unsafe(no_mangle)]
static HAS_CASTS: Global<u64> = Global::new(0);

/// Bits of [`Figure`]: this kernel lacks members that these need.
#[unsafe(no_mangle)]
static LOST_FIGURES: Global<u64> = Global::new(0);

/// False where this kernel lacks a member that `figure` needs: the verifier removes what follows then.
#[inline(always)]
pub(crate) fn has(figure: Figure) -> bool {
    LOST_FIGURES.load() & figure.bit() == 0
}

/// Reads the member of type `T` at `offset`.
#[inline(always)]
fn member<T: Copy>(base: *const u8, offset: u64) -> T {
    // SAFETY: `base` is PTR_TO_BTF_ID; the verifier checks that a T of this size lies at the offset
    // and the kernel handles a fault in the load.
    unsafe { base.add(offset as usize).cast::<T>().read_volatile() }
}

/// Reads a word at an address that the verifier cannot check.
#[inline(always)]
fn word_at(address: u64) -> Option<u64> {
    // SAFETY: a bad address is an error, not a fault.
    unsafe { helpers::bpf_probe_read_kernel(address as *const u64) }.ok()
}

/// `struct cgroup *`
#[derive(Clone, Copy)]
pub(crate) struct Cgroup(pub(crate) *const u8);

impl Cgroup {
    /// A member that is a pointer.
    #[inline(always)]
    fn pointer(self, offset: u64) -> *const u8 {
        member(untrusted(self.0, TYPE_CGROUP.load()), offset)
    }

    /// Its id: the inode number of its directory.
    #[inline(always)]
    pub(crate) fn id(self) -> u64 {
        member(self.pointer(OFF_CGROUP_KN.load()), OFF_KN_ID.load())
    }

    /// Its parent's id; 0 for a root.
    #[inline(always)]
    pub(crate) fn parent_id(self) -> u64 {
        let parent = Css(self.pointer(OFF_CGROUP_PARENT.load()));
        parent.cgroup().id()
    }

    /// True when it is in the hierarchy that identifies pods.
    #[inline(always)]
    pub(crate) fn is_identity(self) -> bool {
        self.hierarchy() == IDENTITY_HIERARCHY.load()
    }

    /// The number of its hierarchy.
    #[inline(always)]
    pub(crate) fn hierarchy(self) -> u64 {
        let root = self.pointer(OFF_CGROUP_ROOT.load());
        u64::from(member::<u32>(root, OFF_ROOT_HIERARCHY.load()))
    }

    /// Copies its directory's name to `to`; returns its length without the terminator.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes.
    #[inline(always)]
    pub(crate) unsafe fn name_into(self, to: *mut u8, len: u32) -> u32 {
        let kn = self.pointer(OFF_CGROUP_KN.load());
        let name: *const u8 = member(kn, OFF_KN_NAME.load());
        // SAFETY: `to` is writable by the caller's word; a bad name is an error, not a fault.
        let n =
            unsafe { helpers::generated::bpf_probe_read_kernel_str(to.cast(), len, name.cast()) };
        if n > 0 { (n - 1) as u32 } else { 0 }
    }
}

/// `struct cgroup_subsys_state *`, here always the memory controller's or a cgroup's own.
#[derive(Clone, Copy)]
pub(crate) struct Css(pub(crate) *const u8);

impl Css {
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    pub(crate) fn cgroup(self) -> Cgroup {
        Cgroup(member(self.0, OFF_CSS_CGROUP.load()))
    }

    #[inline(always)]
    pub(crate) fn parent(self) -> Self {
        Self(member(self.0, OFF_CSS_PARENT.load()))
    }

    /// Address of `mem_cgroup.memory`: `css` is the first member of `mem_cgroup`
    /// (include/linux/memcontrol.h).
    #[inline(always)]
    pub(crate) fn memory_counter(self) -> u64 {
        self.0 as u64 + OFF_MEMCG_MEMORY.load()
    }

    /// Usage of the memory cgroup and its own hard limit, pages.
    #[inline(always)]
    pub(crate) fn memory_usage_and_limit(self) -> (u64, u64) {
        let address = self.0 as u64;
        // One of the two is all that the verifier looks at.
        if HAS_CASTS.load() != 0 {
            MemoryGroup::<Typed>::at(address).usage_and_limit()
        } else {
            MemoryGroup::<Plain>::at(address).usage_and_limit()
        }
    }
}

/// `struct page_counter *`
#[derive(Clone, Copy)]
pub(crate) struct PageCounter(pub(crate) *const u8);

impl PageCounter {
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Usage before the charge under way, pages.
    #[inline(always)]
    pub(crate) fn usage(self) -> u64 {
        member(self.0, OFF_COUNTER_USAGE.load())
    }

    #[inline(always)]
    pub(crate) fn parent(self) -> Self {
        Self(member(self.0, OFF_COUNTER_PARENT.load()))
    }
}
