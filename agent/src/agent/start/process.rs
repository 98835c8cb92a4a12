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

/// Keeps the heap small: locked memory is given back by munmap(2) and brk(2) alone, not by madvise(2). All threads
/// share one heap, as each would keep what its busiest moment took; the reactor, which must not wait for its lock,
/// allocates nothing. What is large is a mapping of its own, however large the ones before it were. Call it first.
pub(in crate::agent) fn keep_heap_small() {
    #[cfg(target_env = "gnu")]
    for (of, value) in [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, LARGE)] {
        // SAFETY: sets a number of the allocator's. Refused, it stays as it was.
        let _ = unsafe { libc::mallopt(of, value) };
    }
}

/// Bytes of an allocation that is a mapping of its own: the allocator's first choice, which it would raise.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Gives the memory that reading the kernel's types took back to the system. Call it before memory
/// is locked: locked pages cannot be given back (madvise(2), `MADV_DONTNEED`).
pub(in crate::agent) fn release_unused_memory() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: may be called at any time; it takes the allocator's own locks.
        unsafe { libc::malloc_trim(0) };
    }
}
