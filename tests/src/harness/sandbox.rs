//! A private cgroup root and a private directory, both gone in the end, whatever happens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::kernel::pins::{self, is_bpf_fs};
use podwarden_policy::name::{self, CgroupName};
use tempfile::TempDir;

use super::cgroup::Cgroup;
use super::mounts::Mounts;

const PREFIX: &str = "podwarden-e2e-";
/// The same as a slice's name has it, where a hyphen would mean another slice.
const SLICE_PREFIX: &str = "podwarden_e2e_";
/// Not a tmpfs on most machines: page cache that cannot be written back is not reclaimed.
const FILES: &str = "/var/tmp";
/// Where agents keep their locks.
const LOCKS: &str = "/run/podwarden";
/// The BPF file system's mount point in the private directory.
const BPF_FS: &str = "bpf";
/// Names another process as the owner of what is made here, by its id: one that started us in a PID
/// namespace, where our own id means another process than outside.
pub(crate) const OWNER: &str = "PODWARDEN_E2E_OWNER";
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The process that what is made here is named after: once it has ended, all of it is stale.
pub(crate) fn owner() -> u32 {
    let named = std::env::var(OWNER).ok().and_then(|id| id.parse().ok());
    named.unwrap_or_else(std::process::id)
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The root that the agent gets.
    pub(crate) root: Cgroup,
    /// The hierarchies.
    pub(crate) mounts: Mounts,
    dir: TempDir,
}

impl Sandbox {
    /// Makes both.
    pub(crate) fn new() -> Result<Self> {
        let sandbox = Self::with_root(|id, number| format!("{PREFIX}{id}-{number}"))?;
        sandbox.root.create()?;
        Ok(sandbox)
    }

    /// Makes the directory; the root is a slice, which systemd is to make.
    pub(crate) fn slice() -> Result<Self> {
        Self::with_root(|id, number| format!("{SLICE_PREFIX}{id}_{number}.slice"))
    }

    fn with_root(name: impl FnOnce(u32, u32) -> String) -> Result<Self> {
        let mounts = Mounts::detect()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = Cgroup::new(&mounts, &name(owner(), number));
        let dir = private_dir()?;
        let sandbox = Self { root, mounts, dir };
        std::fs::create_dir(sandbox.pods_dir()).context("create the manifests' directory")?;
        Ok(sandbox)
    }

    /// The kubepods cgroup's name and its path below the mounts, as a driver makes them.
    pub(crate) fn kubepods(&self, driver: &str) -> (CgroupName, Cgroup) {
        let root = match driver {
            "systemd" if self.root.path().ends_with(".slice") => {
                CgroupName::parse_systemd(self.root.path())
            }
            _ => CgroupName::root(),
        };
        let name = name::kubepods(&root);
        let cgroup = self.cgroup(driver, &name);
        (name, cgroup)
    }

    /// The cgroup of such a name.
    pub(crate) fn cgroup(&self, driver: &str, name: &CgroupName) -> Cgroup {
        match driver {
            "systemd" if self.root.path().ends_with(".slice") => {
                Cgroup::new(&self.mounts, &name.to_systemd())
            }
            "systemd" => self.root.child(name.to_systemd().trim_start_matches('/')),
            _ => self.root.child(name.to_cgroupfs().trim_start_matches('/')),
        }
    }

    /// Where files may be made.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The manifests' directory.
    pub(crate) fn pods_dir(&self) -> PathBuf {
        self.dir().join("pods")
    }

    /// Where the agent takes the BPF file system to be; there is none unless one is mounted.
    pub(crate) fn bpf_fs(&self) -> PathBuf {
        self.dir().join(BPF_FS)
    }

    /// Mounts one of its own there, which goes with the sandbox and with it all that is pinned there.
    pub(crate) fn mount_bpf_fs(&self) -> Result<PathBuf> {
        let path = self.bpf_fs();
        std::fs::create_dir(&path).context("create the BPF file system's mount point")?;
        let kind = Some("bpf");
        mount(kind, &path, kind, MsFlags::empty(), None::<&str>)
            .context("mount a BPF file system")?;
        Ok(path)
    }

    /// Loses what a machine that goes down loses: processes, cgroups, locks and pins. Files stay.
    pub(crate) fn go_down(&self) -> Result<()> {
        clear(&self.root)?;
        remove_locks(self.root.path());
        remove_pins(self.root.path());
        self.root.create()
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir().join("podwarden.sock")
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Err(error) = clear(&self.root) {
            eprintln!("left behind below {}: {error:#}", self.root.path());
        }
        remove_locks(self.root.path());
        unmount_bpf_fs(self.dir());
        remove_pins(self.root.path());
    }
}

/// What an agent has pinned in the machine's own BPF file system, in a directory named after its root.
fn remove_pins(root: &str) {
    let dir = pins::of_root(Path::new(pins::BPF_FS), root);
    // Not there is as good as removed; others' stay.
    let _ = std::fs::remove_dir_all(&dir);
    let _ = dir.parent().map(std::fs::remove_dir);
}

/// Unmounts the BPF file system in a private directory, if one is mounted there: the kernel drops what is
/// pinned in it.
fn unmount_bpf_fs(dir: &Path) {
    let path = dir.join(BPF_FS);
    while is_bpf_fs(&path) {
        if let Err(error) = umount2(&path, MntFlags::MNT_DETACH) {
            eprintln!("left mounted: {}: {error}", path.display());
            return;
        }
    }
}

/// A directory for the owner's files.
pub(crate) fn private_dir() -> Result<TempDir> {
    std::fs::create_dir_all(FILES).with_context(|| format!("create {FILES}"))?;
    let dir = tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", owner()))
        .tempdir_in(FILES)?;
    Ok(dir)
}

/// Kills what runs below `root` and removes it from every hierarchy.
pub(crate) fn clear(root: &Cgroup) -> Result<()> {
    let mut result = Ok(());
    let elsewhere = Cgroup::new(&root.mounts().elsewhere()?, root.path());
    if root.path().ends_with(".slice") && root.dirs().any(|dir| dir.is_dir()) {
        // What is in it is stopped with it; what that leaves is removed below.
        kill_below(root);
        let _ = Command::new("systemctl")
            .args(["stop", root.path()])
            .output();
    }
    // Processes may fork while they are being killed, and leave their cgroup a while after.
    for _ in 0..500 {
        kill_below(root);
        result = remove_below(root).and_then(|()| remove_below(&elsewhere));
        if result.is_ok() {
            break;
        }
        sleep(Duration::from_millis(10));
    }
    result
}

fn kill_below(cgroup: &Cgroup) {
    for child in cgroup.children() {
        kill_below(&child);
    }
    cgroup.thaw();
    for pid in cgroup.procs() {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
    }
}

fn remove_below(cgroup: &Cgroup) -> Result<()> {
    for child in cgroup.children() {
        remove_below(&child)?;
    }
    cgroup.remove()
}

/// An agent that was killed could not remove its lock, which names the root.
fn remove_locks(root: &str) {
    for path in entries(LOCKS) {
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.contains(&format!("{}.", root.trim_matches('/')))) {
            // It may be another one's by now only if the root is as well, and roots are ours alone.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What is in a directory, as far as it can be read.
fn entries(dir: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect()
}

/// Clears what earlier runs left that were killed themselves: roots and directories that name a
/// process which is gone.
pub(crate) fn remove_stale() -> Result<()> {
    let mounts = Mounts::detect()?;
    for found in Cgroup::new(&mounts, "").children() {
        if is_stale(found.path().trim_matches('/')) {
            clear(&Cgroup::new(&mounts, found.path()))?;
            remove_locks(found.path());
            remove_pins(found.path());
        }
    }
    for path in entries(FILES) {
        if path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(is_stale)
        {
            unmount_bpf_fs(&path);
            std::fs::remove_dir_all(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn is_stale(name: &str) -> bool {
    name.strip_prefix(PREFIX)
        .and_then(|rest| rest.split('-').next())
        .or_else(|| name.strip_prefix(SLICE_PREFIX)?.split('_').next())
        .and_then(|pid| pid.parse().ok())
        .is_some_and(|pid| pid > 0 && kill(Pid::from_raw(pid), None).is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_names_a_process_that_is_gone_is_stale() {
        assert!(!is_stale(&format!("{PREFIX}{}-1", std::process::id())));
        // Beyond the largest pid_max of a 64-bit kernel, 4194304.
        assert!(is_stale(&format!("{PREFIX}4194305-1")));
        assert!(is_stale(&format!("{SLICE_PREFIX}4194305_1.slice")));
        assert!(!is_stale(&format!(
            "{SLICE_PREFIX}{}_1.slice",
            std::process::id()
        )));
        for other in [
            "kubepods",
            "podwarden-e2e-",
            "podwarden-e2e-x-1",
            "podwarden-test-4194305-1",
        ] {
            assert!(!is_stale(other), "{other}");
        }
    }
}
