//! The quotas that podwarden wrote, so that its own writes do not count as foreign.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use podwarden_cgroup::CgroupPath;
use podwarden_policy::limits::CpuMax;

/// Quotas that are remembered of each cgroup: a reader may have read the file some steps ago.
const KEPT: usize = 16;

#[derive(Debug, Default)]
pub struct Ours(Mutex<HashMap<CgroupPath, Held>>);

#[derive(Debug)]
struct Held {
    found: CpuMax,
    written: VecDeque<CpuMax>,
}

impl Ours {
    /// This is what a cgroup's file holds in a moment, in place of `found`.
    pub(super) fn note(&self, path: &CgroupPath, found: CpuMax, written: CpuMax) {
        let mut all = self.lock();
        let held = all.entry(path.to_owned()).or_insert_with(|| Held {
            found,
            written: VecDeque::new(),
        });
        held.found = found;
        if held.written.back() == Some(&written) {
            return;
        }
        if held.written.len() == KEPT {
            held.written.pop_front();
        }
        held.written.push_back(written);
    }

    /// A cgroup is gone.
    pub(super) fn forget(&self, path: &CgroupPath) {
        self.lock().remove(path);
    }

    /// What a cgroup would hold without podwarden: what was found in place of what was written here. Ask
    /// after the file was read.
    pub fn without(&self, path: &CgroupPath, read: CpuMax) -> CpuMax {
        match self.lock().get(path) {
            Some(held) if held.written.contains(&read) => held.found,
            _ => read,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CgroupPath, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use podwarden_policy::limits::Limit;

    use super::*;

    fn quota(us: u64) -> CpuMax {
        CpuMax {
            quota_us: Limit::At(us),
            period_us: 100_000,
        }
    }

    #[test]
    fn what_was_written_reads_as_what_was_found_and_all_else_as_itself() {
        let (ours, path) = (Ours::default(), CgroupPath::from("a"));
        assert_eq!(ours.without(&path, quota(60)), quota(60), "not known");
        ours.note(&path, quota(50), quota(60));
        ours.note(&path, quota(50), quota(72));
        for written in [60, 72] {
            assert_eq!(ours.without(&path, quota(written)), quota(50), "{written}");
        }
        assert_eq!(ours.without(&path, quota(70)), quota(70), "another's");
        ours.forget(&path);
        assert_eq!(ours.without(&path, quota(72)), quota(72));
    }
}
