//! The children of a victim that are left alive.

use std::ffi::CStr;

/// What the cgroups of CRI-O's monitors begin with (`MoveConmonToCgroup`, `internal/config/cgmgr` of CRI-O). A
/// monitor tells CRI-O of its container's end, and ends then by itself; CRI-O waits for one that was
/// killed first.
const MONITOR: &[u8] = b"crio-conmon-";

/// The children that are left alive.
#[derive(Clone, Copy)]
pub(super) struct Spared {
    /// The sandbox's, where one was found.
    pub(super) sandbox: Option<Name>,
    /// There are monitors.
    pub(super) monitors: bool,
}

impl Spared {
    pub(super) fn is(&self, name: &CStr) -> bool {
        self.monitors && is_monitor(name) || self.sandbox.is_some_and(|sandbox| sandbox.is(name))
    }
}

pub(super) fn is_monitor(name: &CStr) -> bool {
    name.to_bytes().starts_with(MONITOR)
}

/// A child cgroup's name, on the stack.
#[derive(Clone, Copy)]
pub(super) struct Name {
    /// NAME_MAX bytes (`include/uapi/linux/limits.h`) and a 0.
    bytes: [u8; 256],
    len: usize,
}

impl Name {
    pub(super) fn new(name: &CStr) -> Option<Self> {
        let from = name.to_bytes();
        let mut bytes = [0; 256];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self {
            bytes,
            len: from.len(),
        })
    }

    pub(super) fn is(&self, name: &CStr) -> bool {
        self.bytes[..self.len] == *name.to_bytes()
    }
}
