//! Debian's kernels for the test machines, fetched once and kept.
//!
//! The packages are found with apt's own tools, but in lists of our own: the machine's list of
//! sources, its package lists and what is installed on it stay as they are, and no root is needed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use xtask::apt::Lists;
use xtask::cmd;
use xtask::paths::Workspace;
use xtask::step::step;

/// A kernel that the cases run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kernel {
    /// The series, such as `6.1`.
    pub(super) series: &'static str,
    /// The package's name up to the series.
    package: &'static str,
}

/// Every kernel there is to choose from: the oldest that is supported, a recent long-term one with
/// cgroup storage and fprobe, and the newest.
pub(super) const KERNELS: &[Kernel] = &[
    Kernel {
        series: "6.1",
        package: "linux-image-",
    },
    Kernel {
        series: "6.12",
        package: "linux-image-",
    },
    Kernel {
        series: "7.2",
        package: "linux-binary-",
    },
];

/// The suites that carry them.
const SUITES: &[&str] = &["bookworm", "trixie", "trixie-backports"];
/// The flavour without drivers for real hardware: a third of the size.
const FLAVOUR: &str = "-cloud-amd64";

impl Kernel {
    /// The kernel of that series.
    pub(super) fn of(series: &str) -> Option<Self> {
        KERNELS
            .iter()
            .copied()
            .find(|kernel| kernel.series == series)
    }

    /// The bootable image, if it was fetched before.
    pub(super) fn image(self, workspace: &Workspace) -> Option<PathBuf> {
        Some(self.kept_at(workspace)).filter(|image| image.is_file())
    }

    fn kept_at(self, workspace: &Workspace) -> PathBuf {
        workspace.kernels().join(self.series).join("vmlinuz")
    }

    /// The bootable image; fetched when this is the first time.
    pub(super) fn fetch(self, workspace: &Workspace) -> Result<PathBuf> {
        if let Some(image) = self.image(workspace) {
            return Ok(image);
        }
        let lists = lists(workspace)?;
        let package = newest(&lists, self)?;
        step(&format!("fetch {package}"), || {
            let unpacked = lists.dir().join("unpack").join(&package);
            lists.unpack(&[&package], &unpacked, &workspace.logs().join("kernel.log"))?;
            let image = find_image(&unpacked)
                .with_context(|| format!("{package} holds no bootable image"))?;
            let kept = self.kept_at(workspace);
            cmd::create_parent(&kept)?;
            // Moved into place as a whole: an interrupted fetch leaves no half image.
            fs::rename(&image, &kept).with_context(|| format!("keep {}", kept.display()))?;
            fs::remove_dir_all(&unpacked)
                .with_context(|| format!("remove {}", unpacked.display()))?;
            Ok(kept)
        })
    }
}

/// The lists of the suites, brought up to date.
fn lists(workspace: &Workspace) -> Result<Lists> {
    for tool in ["apt-get", "apt-cache", "dpkg"] {
        if cmd::find(tool).is_none() {
            bail!("Debian's kernels are fetched with {tool}, which is not here");
        }
    }
    let lists = Lists::of_suites(&workspace.kernels().join("apt"), SUITES)?;
    step("package lists of the test kernels", || {
        lists.update(&workspace.logs().join("apt-kernels.log"))
    })?;
    Ok(lists)
}

/// The newest package of the kernel's series.
fn newest(lists: &Lists, kernel: Kernel) -> Result<String> {
    let prefix = format!("{}{}.", kernel.package, kernel.series);
    // Only names: to search descriptions, apt-cache unpacks the lists again for each package.
    let pattern = format!("^{}.*{FLAVOUR}$", prefix.replace('.', "\\."));
    let found =
        cmd::capture(
            lists
                .command("apt-cache")
                .args(["search", "--names-only", &pattern]),
        )?;
    found
        .lines()
        .filter_map(|line| line.split_once(" - ").map(|(name, _)| name))
        .max_by_key(|name| numbers(name))
        .map(str::to_owned)
        .with_context(|| format!("no package {prefix}*{FLAVOUR} in {}", SUITES.join(", ")))
}

/// `boot/vmlinuz-*`, or `usr/lib/modules/*/vmlinuz` in newer packages.
fn find_image(unpacked: &Path) -> Option<PathBuf> {
    let mut candidates = entries(&unpacked.join("boot")).unwrap_or_default();
    for release in entries(&unpacked.join("usr/lib/modules")).unwrap_or_default() {
        candidates.push(release.join("vmlinuz"));
    }
    candidates.into_iter().find(|path| {
        path.is_file()
            && path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    })
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(dir)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .with_context(|| format!("list {}", dir.display()))
}

/// The numbers in a name, in order: as in `6.12.107+deb13`, which is newer than `6.12.94+deb13`.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn versions_are_compared_as_numbers() {
        let name = |version| format!("linux-image-{version}-cloud-amd64");
        assert!(numbers(&name("6.12.107+deb13")) > numbers(&name("6.12.94+deb13")));
        assert!(numbers(&name("6.1.0-100")) > numbers(&name("6.1.0-56")));
    }
}
