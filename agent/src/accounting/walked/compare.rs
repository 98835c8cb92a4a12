//! Whether what a pass found is what the kernel's file says.

use podwarden_abi::CgroupRecord;
use podwarden_cgroup::MemoryStat;

use super::stat;
use crate::base::cpus;

/// How far a figure may lie outside what the file said before and after, bytes for each CPU: what changes
/// meanwhile, and the kernel's parts for each CPU that are not added up yet.
pub(super) const SLACK: u64 = 1 << 20;

/// A name in `memory.stat`, and its value.
type Figure = (&'static str, fn(&MemoryStat) -> u64);

/// Whether a record fits what the file said before and after.
pub(super) fn compare(
    record: &CgroupRecord,
    before: MemoryStat,
    after: MemoryStat,
) -> Result<(), String> {
    let slack = SLACK * u64::from(cpus::online());
    let found = stat(record);
    let figures: [Figure; 4] = [
        ("inactive_file", |s| s.inactive_file),
        ("active_file", |s| s.active_file),
        ("anon", |s| s.rss),
        ("shmem", |s| s.shmem),
    ];
    for (name, of) in figures {
        let (value, one, other) = (of(&found), of(&before), of(&after));
        let least = one.min(other).saturating_sub(slack);
        let most = one.max(other).saturating_add(slack);
        if !(least..=most).contains(&value) {
            return Err(format!(
                "{name} is {value} in the pass, {one} to {other} in memory.stat"
            ));
        }
    }
    Ok(())
}
