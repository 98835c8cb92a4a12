//! Limits and memory of the agent's own process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit on open files to the hard one. A pod takes up to nine descriptors and each of
/// its containers three; the usual 1,024 would end at some ninety pods.
pub(in crate::agent) fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files stays as it is");
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
