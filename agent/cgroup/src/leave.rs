//! Moves a process out of its cgroup in every hierarchy, so that what kills the cgroup does not kill it.

use std::{collections::BTreeMap, path::Path};

use crate::{Result, io, mountinfo, tree::PROCS};

/// Moves a process to the root of every mounted hierarchy, also of those without a controller that this crate
/// uses: runtimes kill by `devices` or `cgroup.kill`, systemd by its own (`name=systemd`). A root holds
/// processes on both versions and has no limits. Every hierarchy is tried; the first refusal is returned: `EBUSY` on v2,
/// where the mounted root is a container's.
pub fn leave_every_cgroup(pid: u32) -> Result<()> {
    let text = io::read_text(Path::new("/proc/self/mountinfo"))?;
    let mut roots = BTreeMap::<(bool, &str), mountinfo::Best>::new();
    let mounts: Vec<_> = text.lines().filter_map(mountinfo::parse_line).collect();
    for mount in &mounts {
        roots.entry(mount.hierarchy()).or_default().offer(mount);
    }
    let roots = roots.into_values().filter_map(mountinfo::Best::into_path);
    let moved = roots.map(|root| io::write_text(&root.join(PROCS), &pid.to_string()));
    // Every one is tried.
    moved.fold(Ok(()), Result::and)
}
