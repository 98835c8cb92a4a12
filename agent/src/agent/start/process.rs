//! Limits and memory of the agent's own process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors of a pod with two containers: up to ten, and three for each container.
const OF_POD: u32 = 10 + 2 * 3;
/// Descriptors of an agent without pods.
const OF_AGENT: u32 = 256;

/// Raises the soft limit on open files to the hard one: the usual 1,024 would end at some seventy pods.
pub(in crate::agent) fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}

/// Makes the kernel's table of this process's descriptors as large as so many pods need. The open(2) that finds it full
/// waits for a grace period, some 10 ms, in whatever thread (`expand_files` of `fs/file.c`): the reactor has no
/// such time, nor has an agent that takes over.
pub(in crate::agent) fn make_room_for_open_files(max_pods: u32) {
    let wanted = max_pods.saturating_mul(OF_POD).saturating_add(OF_AGENT);
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let highest = u64::from(wanted).min(limit.saturating_sub(1));
    // The table stays as large as it was for a descriptor that is closed. Refused, it grows as it is used.
    let highest = highest.try_into().unwrap_or(i32::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest));
}

/// Keeps the heap small: locked memory is given back by munmap(2) and brk(2) alone, not by madvise(2). All threads
/// share one heap, as each would keep what its busiest moment took; the reactor, which must not wait for its lock,
/// allocates nothing. What is large is a mapping of its own, however large the ones before it were. Call it before the
/// first thread is started: one that has a heap of its own by then keeps it.
pub(crate) fn keep_heap_small() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_descriptors_has_room_before_they_are_there() {
        raise_open_files();
        let size = || -> u32 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:"));
            line.unwrap().trim().parse().unwrap()
        };
        make_room_for_open_files(200);
        assert!(size() > 200 * OF_POD, "{}", size());
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(open < 1000, "{open} are open");
    }
}
