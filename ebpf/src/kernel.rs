//! The kernel's structures, as far as the programs read them.
//!
//! Each wrapper holds a pointer that the verifier knows the type of (`PTR_TO_BTF_ID`), so members are
//! read by plain loads: a stale or null pointer reads as 0, it cannot fault. Offsets are read-only
//! globals that the agent fills from BTF; the verifier folds them into constants.

use aya_ebpf::{Global, helpers};
use podwarden_abi::Figure;

/// Read-only globals that the agent sets before it loads the programs, with what they are until then.
macro_rules! globals {
    ($($(#[$doc:meta])* $name:ident = $unset:literal;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub(crate) static $name: Global<u64> = Global::new($unset);
        )*
    };
}

/// A pointer to a structure of the kernel, and members that are read through it: `method: type = offset`.
macro_rules! pointer {
    ($(#[$doc:meta])* $pointer:ident { $($(#[$about:meta])* $method:ident: $type:ty = $offset:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(crate) struct $pointer(pub(crate) *const u8);

        impl $pointer {
            $(
                $(#[$about])*
                #[inline(always)]
                pub(crate) fn $method(self) -> $type {
                    member(self.0, $offset.load())
                }
            )*
        }
    };
}

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
        globals! { $($name = 0;)* }
    };
}
podwarden_abi::for_each_offset!(offsets);

macro_rules! types {
    ($($name:ident: $structure:literal;)*) => {
        globals! {
            $(
                /// The id of this type in the kernel's BTF.
                $name = 0;
            )*
        }
    };
}
podwarden_abi::for_each_type!(types);

/// Set in the state of a task that will not run again (include/linux/sched.h).
pub(crate) const TASK_DEAD: u64 = 0x80;

globals! {
    /// 1 where `sched_process_exit` says itself whether the process is gone (6.16 and later).
    EXIT_HAS_GROUP_DEAD = 0;
    /// 1 where `tcp_retransmit_skb` also tells of segments that could not be sent, with the error (6.17 and later).
    RETRANSMIT_HAS_ERROR = 0;
    /// 0 where a task's storage cannot be reached from an interrupt of a program that uses it (before 6.2).
    STORAGE_RECURS = 0;
    /// `memory_cgrp_id` of this kernel.
    MEMORY_CGRP_ID = 0;
    /// The hierarchy whose cgroups identify pods: 0 is the unified one.
    IDENTITY_HIERARCHY = 0;
    /// CPUs that may exist.
    POSSIBLE_CPUS = 1;
    /// 1 where the programs can give a pointer a type; see [`Typed`].
    HAS_CASTS = 0;
    /// Bits of [`Figure`]: this kernel lacks members that these need.
    LOST_FIGURES = 0;
}

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

/// Reads a `T` at an address that the verifier cannot check.
#[inline(always)]
fn read_at<T: Copy>(address: u64) -> Option<T> {
    // SAFETY: a bad address is an error, not a fault; `T` is a number or an array of them.
    unsafe { helpers::bpf_probe_read_kernel(address as *const T) }.ok()
}

pointer! {
    /// `struct cgroup *`
    Cgroup {
        /// Levels below the hierarchy's root, which is 0.
        level: u32 = OFF_CGROUP_LEVEL,
        /// A number that no other cgroup has while the system runs, but for hierarchies' roots, which have 0.
        serial: u64 = OFF_CGROUP_SERIAL,
    }
}

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

pointer! {
    /// `struct cgroup_subsys_state *`, here always the memory controller's or a cgroup's own.
    Css {
        cgroup: Cgroup = OFF_CSS_CGROUP,
        parent: Self = OFF_CSS_PARENT,
    }
}

impl Css {
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Its address as a number, which a global function takes and the pointer's own is not: what is read from a place in
    /// memory has no type.
    #[inline(always)]
    pub(crate) fn plain_address(self) -> u64 {
        read_at((&raw const self.0) as u64).unwrap_or(0)
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

pointer! {
    /// `struct page_counter *`
    PageCounter {
        /// Usage before the charge under way, pages.
        usage: u64 = OFF_COUNTER_USAGE,
        parent: Self = OFF_COUNTER_PARENT,
    }
}

impl PageCounter {
    #[inline(always)]
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }
}
