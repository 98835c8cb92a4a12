//! The same promises where the v2 hierarchy is not mounted: pods are then told apart by the memory
//! controller's cgroups.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount as change, umount2};
use nix::sched::{CloneFlags, unshare};
use podwarden_cgroup::{Hierarchies, Version};

use super::{Case, Context, case, skip};

pub(super) const CASES: &[Case] = &[case("pure_v1", pure_v1)];

/// Cases that depend on who counts to whom.
const AGAIN: &[&str] = &[
    "cpu_running_without_switching",
    "exits_codes_and_signals",
    "nested_cgroup_counts_to_container",
    "process_moved_between_pods",
    "existing_tree_at_start",
    "eviction_takes_burstable_last",
];

fn pure_v1(context: &Context) -> Result<()> {
    let hierarchies = Hierarchies::detect()?;
    let v2 = match (hierarchies.version, &hierarchies.v2_mount) {
        (Version::Hybrid, Some(v2)) => v2.clone(),
        _ => return skip("takes v1 controllers with a v2 hierarchy beside them to hide"),
    };
    for name in AGAIN {
        let output = without(&v2, context, name)?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && text.contains("1 passed, 0 failed"),
            "{name} without {}: {text}",
            v2.display()
        );
    }
    Ok(())
}

/// Runs one case in a mount namespace of its own in which `mount` is not there.
fn without(mount: &Path, context: &Context, name: &str) -> Result<std::process::Output> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["run", "--filter", name, "--agent"])
        .arg(context.agent());
    let path = std::ffi::CString::new(mount.as_os_str().as_encoded_bytes())?;
    let hide = move || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        let (none, private) = (None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
        change(none, c"/", none, private, none)?;
        Ok(umount2(&*path, MntFlags::MNT_DETACH)?)
    };
    // SAFETY: only system calls between fork and exec, and no allocation.
    unsafe { command.pre_exec(hide) };
    command.output().with_context(|| format!("run {name}"))
}
