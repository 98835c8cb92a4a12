//! What a process holds of memory.

use std::fs;

use anyhow::{Context as _, Result};

/// The heaps that a process has beside its first one (`arena_for_chunk` of glibc's malloc/arena.c): a thread's heap is
/// the beginning of 64 MiB that begin at a multiple of that, whose rest is mapped without rights.
pub(crate) fn heaps_of_threads(pid: u32) -> Result<usize> {
    const RESERVED: u64 = 64 << 20;
    let path = format!("/proc/{pid}/maps");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let parsed = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let parse = |hex| u64::from_str_radix(hex, 16).ok();
        Some((parse(from)?, parse(to)?, words.next()?))
    });
    let maps: Vec<_> = parsed.collect();
    let is_heap = |pair: &&[(u64, u64, &str)]| {
        let [(from, middle, used), (rest, to, unused)] = **pair else {
            return false;
        };
        from % RESERVED == 0
            && middle == rest
            && to - from == RESERVED
            && (used, unused) == ("rw-p", "---p")
    };
    Ok(maps.windows(2).filter(is_heap).count())
}

/// A process's resident memory, bytes.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

pub(super) fn memory(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {field} in {path}"))? * 1024)
}
