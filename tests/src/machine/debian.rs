//! A Debian whose first process is systemd, to boot into: for the systemd cgroup driver, and for a kubelet.
//!
//! debootstrap builds it once from the machine's own archive, in its own release or a later one, so that
//! the programs built here find their libraries there. It is kept as an archive; each run appends the
//! agent, the cases and the unit that runs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::paths::Workspace;
use xtask::step::step;
use xtask::{apt, cmd, setup};

use super::archive::Archive;
use crate::kubernetes::programs::{self, Programs};

/// One such Debian.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Debian {
    /// What its files are kept as.
    name: &'static str,
    /// Its release; without, that of the machine.
    release: Option<&'static str>,
    /// What it has beyond the essential packages.
    packages: &'static str,
    /// Whether it has the programs of Kubernetes.
    kubernetes: bool,
}

/// For the cases.
pub(super) const SYSTEMD: Debian = Debian {
    name: "systemd",
    release: None,
    packages: "systemd,dbus",
    kubernetes: false,
};

/// For the benchmark: with the daemons that take cgroup v2 or systemd.
pub(super) const PEERS: Debian = Debian {
    name: "systemd-peers",
    release: None,
    packages: "systemd,dbus,systemd-oomd,oomd",
    kubernetes: false,
};

/// For the cases with a kubelet: with a runtime, and what the control plane and the node need beside it.
pub(super) const KUBERNETES: Debian = Debian {
    name: "kubernetes-node",
    release: None,
    packages: "systemd,dbus,etcd-server,containerd,runc,crun,containernetworking-plugins,iptables,\
               iproute2,busybox-static,xz-utils",
    kubernetes: true,
};

/// The same of Debian 13, with its containerd 1.7 and systemd 257.
pub(super) const KUBERNETES_13: Debian = Debian {
    name: "kubernetes-node-13",
    release: Some("trixie"),
    ..KUBERNETES
};

/// Mount points, and half of the size: what no unit and no case reads.
const EMPTIED: &[&str] = &[
    "dev",
    "proc",
    "run",
    "sys",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/zoneinfo",
    "var/cache",
    "var/lib/apt",
    "var/lib/dpkg/info",
];

/// The unit's name.
const UNIT: &str = "podwarden-cases.service";
/// Runs the cases on the console and switches the machine off, also after a failure. Out of memory in one of
/// the cases' processes is no failure of the unit.
const UNIT_FILE: &str = "\
[Unit]
Description=podwarden end-to-end cases
Requires=dbus.socket
After=dbus.socket
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
ExecStart=/e2e machine unit
Environment=HOME=/ RUST_BACKTRACE=1
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
LimitMEMLOCK=infinity
OOMPolicy=continue
TasksMax=infinity
";

/// What the kernel's command line says for it: only the unit and what that needs is started.
pub(super) fn kernel_arguments() -> String {
    format!("rdinit=/lib/systemd/systemd systemd.unit={UNIT} systemd.show_status=no")
}

/// Packs the release binaries into it.
pub(super) fn pack(workspace: &Workspace, debian: &Debian) -> Result<PathBuf> {
    // First: where there are none, there is nothing to build.
    let programs = debian.kubernetes.then(Programs::find).transpose()?;
    let base = base(workspace, debian)?;
    let path = base.with_file_name("initramfs.cpio");
    fs::copy(&base, &path).with_context(|| format!("copy {}", base.display()))?;
    let mut archive = Archive::after(&path)?;
    archive.file(&workspace.agent(), Path::new("podwarden"))?;
    archive.file(&workspace.e2e(), Path::new("e2e"))?;
    archive.bytes(&format!("etc/systemd/system/{UNIT}"), UNIT_FILE.as_bytes())?;
    if let Some(programs) = programs {
        kubernetes(&mut archive, &programs)?;
    }
    archive.finish()?;
    Ok(path)
}

/// The programs, where a node in a machine finds them; several that are one file are packed once.
fn kubernetes(archive: &mut Archive, programs: &Programs) -> Result<()> {
    let dir = Path::new(programs::IN_MACHINE.trim_start_matches('/'));
    let mut packed = BTreeMap::<_, &str>::new();
    for name in programs::NAMES {
        let path = programs.path(name);
        let file = fs::canonicalize(&path).with_context(|| format!("find {}", path.display()))?;
        let at = dir.join(name);
        match packed.get(&file) {
            Some(&first) => archive.symlink(&at.to_string_lossy(), first)?,
            None => {
                archive.file(&file, &at)?;
                packed.insert(file, name);
            }
        }
    }
    Ok(())
}

/// The Debian without anything of ours; built when there is none of this recipe.
fn base(workspace: &Workspace, debian: &Debian) -> Result<PathBuf> {
    let own = apt::debian_release()
        .context("the root with systemd is built of Debian's packages, and this is not Debian")?;
    let suite = debian.release.unwrap_or(&own);
    let dir = workspace.kernels().join(debian.name);
    let (base, recipe) = (dir.join("base.cpio"), dir.join("base.recipe"));
    let wanted = format!("{suite} {} without {}", debian.packages, EMPTIED.join(" "));
    if base.is_file() && fs::read_to_string(&recipe).is_ok_and(|kept| kept == wanted) {
        return Ok(base);
    }
    ensure!(
        nix::unistd::geteuid().is_root(),
        "debootstrap takes root to build the root with systemd"
    );
    setup::for_systemd(workspace)?;
    step(&format!("Debian {suite} with {}", debian.packages), || {
        build(workspace, debian, suite, &base)
    })?;
    // Last: without it a base that was interrupted half-way is built anew.
    fs::write(&recipe, wanted).with_context(|| format!("write {}", recipe.display()))?;
    Ok(base)
}

fn build(workspace: &Workspace, debian: &Debian, suite: &str, base: &Path) -> Result<()> {
    let root = base.with_file_name("root");
    remove(&root)?;
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    // It mounts /proc and /sys in there. In a mount namespace of its own they are gone with it,
    // also when it is interrupted: nothing of them is there when the tree is removed.
    let mut debootstrap = Command::new("unshare");
    debootstrap
        .args(["--mount", "--propagation", "private"])
        .arg(cmd::find("debootstrap").context("debootstrap is missing: run `cargo xtask setup`")?)
        .arg("--variant=minbase")
        .arg(format!("--include={}", debian.packages))
        .arg(format!("--keyring={}", apt::KEYRING))
        .arg(suite)
        .arg(&root)
        .arg(apt::archive()?);
    cmd::run_logged(&mut debootstrap, &workspace.logs().join("debootstrap.log"))?;
    let mut archive = Archive::create(base)?;
    archive.tree(&root, EMPTIED)?;
    archive.finish()?;
    remove(&root)
}

fn remove(root: &Path) -> Result<()> {
    match fs::remove_dir_all(root) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", root.display()))
        }
        _ => Ok(()),
    }
}
