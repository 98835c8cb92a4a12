//! The programs: those in the directory that `PODWARDEN_KUBERNETES` names, such as a Kubernetes release, or a
//! compressed one beside the work tree, which is all of them and decides by its name what it is. A test machine that is
//! for them has them in a place of their own.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use xtask::paths::Workspace;

use crate::cases::skip;
use crate::machine::init::is_guest;

/// Names the directory.
const VARIABLE: &str = "PODWARDEN_KUBERNETES";
/// Where a test machine has them.
pub(crate) const IN_MACHINE: &str = "/kubernetes";
pub(crate) const NAMES: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
];

/// Where they are; the case is skipped where they are not.
#[derive(Debug)]
pub(crate) struct Programs(PathBuf);

impl Programs {
    pub(crate) fn find() -> Result<Self> {
        if is_guest() {
            return Self::in_machine();
        }
        let workspace = Workspace::locate();
        let dir = match std::env::var_os(VARIABLE) {
            Some(dir) => PathBuf::from(dir),
            None => match compressed(workspace.root()) {
                Some(file) => unpack(&file, &workspace.kubernetes())?,
                None => {
                    skip(format!(
                        "there are no programs of Kubernetes: name a directory that has {} in {VARIABLE}",
                        NAMES.join(", ")
                    ))?;
                    PathBuf::new()
                }
            },
        };
        if let Some(missing) = NAMES.iter().find(|name| !dir.join(name).is_file()) {
            skip(format!("{} has no {missing}", dir.display()))?;
        }
        Ok(Self(dir))
    }

    fn in_machine() -> Result<Self> {
        let dir = PathBuf::from(IN_MACHINE);
        if !dir.is_dir() {
            skip("the test machine has no Kubernetes")?;
        }
        Ok(Self(dir))
    }

    /// One of them.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// `../shared/k8s/kube-*.xz`, the newest by its name.
fn compressed(root: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(root.parent()?.join("shared/k8s")).ok()?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    files
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("kube-") && name.ends_with(".xz"))
        })
        .max()
}

/// Unpacks it below `target`, once.
fn unpack(file: &Path, target: &Path) -> Result<PathBuf> {
    let name = file
        .file_stem()
        .context("the compressed program has no name")?;
    let dir = target.join(name);
    if dir.is_dir() {
        return Ok(dir);
    }
    fs::create_dir_all(target).with_context(|| format!("create {}", target.display()))?;
    // Renamed when all is there, so that an interrupted run leaves nothing that looks complete.
    let part = tempfile::tempdir_in(target)?;
    let program = part.path().join("kube");
    let status = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&program)?)
        .status()
        .context("start xz")?;
    ensure!(status.success(), "xz of {}: {status}", file.display());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    for name in NAMES {
        symlink("kube", part.path().join(name))?;
    }
    fs::set_permissions(part.path(), fs::Permissions::from_mode(0o755))?;
    fs::rename(part.path(), &dir).with_context(|| format!("make {}", dir.display()))?;
    Ok(dir)
}
