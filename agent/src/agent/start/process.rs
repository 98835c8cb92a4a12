//! Limits and memory of the agent's own process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard one. A pod takes up to nine descriptors and each of
/// its containers three; the usual 1,024 would end at some ninety pods.
pub(in crate::agent) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files stays at {:?}", limit.current);
    }
}

/// Gives the memory that reading the kernel's types took back to the system. Call it before memory
/// is locked: locked pages cannot be given back (madvise(2), `MADV_DONTNEED`).
pub(in crate::agent) fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: may be called at any time; it takes the allocator's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}
