//! How many CPUs the machine has.
//!
//! A process may be confined to a few of them, by its affinity, its cpuset or its quota; the kernel charges ahead
//! on all of them, and all of them fill memory.

use std::{num::NonZero, path::Path, thread};

/// A list of ranges such as `0-3,8` (`Documentation/admin-guide/cputopology.rst` of the kernel).
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// CPUs that are online now; where the kernel does not list them, those that this process may use.
pub fn online() -> u32 {
    let listed = listed(Path::new(ONLINE));
    listed.unwrap_or_else(|| {
        let usable = thread::available_parallelism().map_or(1, NonZero::get);
        u32::try_from(usable).unwrap_or(u32::MAX)
    })
}

fn listed(file: &Path) -> Option<u32> {
    count(&std::fs::read_to_string(file).ok()?).filter(|count| *count > 0)
}

/// How many CPUs a list names; `None` where it is no list.
fn count(list: &str) -> Option<u32> {
    let ranges = list.trim().split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use nix::{
        sched::{CpuSet, sched_getaffinity, sched_setaffinity},
        unistd::Pid,
    };

    use super::*;

    #[test]
    fn a_list_of_ranges_is_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-3\n"), Some(4));
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        for text in ["", "\n", "3-0", "a-b", "0-", "0,,1"] {
            assert_eq!(count(text), None, "{text:?}");
        }
    }

    #[test]
    fn affinity_does_not_change_the_machine() {
        let before = online();
        let this = Pid::from_raw(0);
        let all = sched_getaffinity(this).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| all.is_set(*cpu).unwrap());
        let mut one = CpuSet::new();
        one.set(first.unwrap()).unwrap();
        // This thread alone, which ends with the test.
        let confined = thread::spawn(move || {
            sched_setaffinity(this, &one).unwrap();
            (online(), thread::available_parallelism().unwrap().get())
        });
        assert_eq!(confined.join().unwrap(), (before, 1));
    }
}
