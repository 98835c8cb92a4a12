//! Debian's packages: installing what is missing, as root.
//!
//! apt is given package lists of our own, which also hold the release's backports: the machine's
//! sources and lists stay as they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cmd;
use crate::paths::Workspace;
use crate::step::{Mark, line, step};

/// Signs Debian's suites (package debian-archive-keyring).
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether packages can be installed here: root on Debian or a system made from it.
pub fn usable() -> bool {
    is_debian() && nix::unistd::geteuid().is_root() && cmd::find("apt-get").is_some()
}

/// Whether this is Debian or made from it.
pub fn is_debian() -> bool {
    os_release("ID").as_deref() == Some("debian")
        || os_release("ID_LIKE").is_some_and(|ids| ids.split(' ').any(|id| id == "debian"))
}

/// The codename of this release of Debian; none on systems made from Debian.
pub fn debian_release() -> Option<String> {
    (os_release("ID").as_deref() == Some("debian"))
        .then(|| os_release("VERSION_CODENAME"))
        .flatten()
}

/// The suite of Debian's backports for this release; none on systems made from Debian.
pub fn backports() -> Option<String> {
    debian_release().map(|codename| format!("{codename}-backports"))
}

/// A value of os-release(5).
fn os_release(key: &str) -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    text.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix('=')?;
        Some(value.trim_matches(['"', '\'']).to_owned())
    })
}

/// The archive that this machine takes Debian's packages from: a mirror that it can reach.
pub fn archive() -> Result<String> {
    let targets = cmd::capture(Command::new("apt-get").args([
        "indextargets",
        // Also where no list was fetched yet.
        "--no-release-info",
        "--format",
        "$(REPO_URI) $(RELEASE)",
        "Created-By: Packages",
    ]))?;
    targets
        .lines()
        .filter_map(|line| line.split_once(' '))
        // The security archive and those of other vendors do not carry the suites.
        .find(|(uri, release)| {
            uri.trim_end_matches('/').ends_with("/debian") && !release.contains('/')
        })
        .map(|(uri, _)| uri.to_owned())
        .context("apt has no Debian archive among its sources")
}

/// Package lists of our own, and how apt is pointed at them.
#[derive(Debug)]
pub struct Lists {
    dir: PathBuf,
    options: Vec<String>,
}

impl Lists {
    /// Only those suites, in `dir`; what is installed on the machine does not count.
    pub fn of_suites(dir: &Path, suites: &[&str]) -> Result<Self> {
        let options = vec![
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::State::status=/dev/null".to_owned(),
        ];
        Self::create(dir, suites, "", options)
    }

    /// The machine's own sources and the release's backports, in `dir`.
    fn of_machine(dir: &Path) -> Result<Self> {
        let own = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
        let backports = backports();
        Self::create(
            dir,
            &backports.as_deref().map_or(vec![], |suite| vec![suite]),
            &own,
            vec![],
        )
    }

    fn create(dir: &Path, suites: &[&str], others: &str, mut options: Vec<String>) -> Result<Self> {
        for dir in ["lists/partial", "cache/archives/partial"].map(|name| dir.join(name)) {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let mut sources = format!("{others}\n");
        if !suites.is_empty() {
            let archive = archive()?;
            for suite in suites {
                sources += &format!("deb [signed-by={KEYRING}] {archive} {suite} main\n");
            }
        }
        let path = dir.join("sources.list");
        fs::write(&path, sources).with_context(|| format!("write {}", path.display()))?;
        options.extend([
            format!("Dir::Etc::SourceList={}", path.display()),
            format!("Dir::State::Lists={}", dir.join("lists").display()),
            format!("Dir::Cache={}", dir.join("cache").display()),
            "APT::Sandbox::User=root".to_owned(),
            // Descriptions for software centres, a third of what there is to download.
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=2".to_owned(),
            "DPkg::Lock::Timeout=300".to_owned(),
        ]);
        Ok(Self {
            dir: dir.to_path_buf(),
            options,
        })
    }

    /// Where they are kept.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `apt-get` or `apt-cache` with these lists; it asks nothing and speaks English, since its
    /// output is parsed.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .env("LC_ALL", "C.UTF-8");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Downloads packages and unpacks them below `root`. They are not installed: a daemon's package would
    /// start it.
    pub fn unpack(&self, packages: &[&str], root: &Path, log: &Path) -> Result<()> {
        let debs = root.with_extension("debs");
        for dir in [&debs, root] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let mut download = self.command("apt-get");
        download.arg("download").args(packages).current_dir(&debs);
        cmd::run_logged(&mut download, log)?;
        for entry in fs::read_dir(&debs).with_context(|| format!("list {}", debs.display()))? {
            let deb = entry
                .with_context(|| format!("list {}", debs.display()))?
                .path();
            cmd::run(Command::new("dpkg").arg("-x").arg(deb).arg(root))?;
        }
        fs::remove_dir_all(&debs).with_context(|| format!("remove {}", debs.display()))
    }

    /// Brings them up to date.
    pub fn update(&self, log: &Path) -> Result<()> {
        cmd::run_logged(self.command("apt-get").arg("update"), log)
    }
}

/// Installs `packages`, and `newer` from the release's backports where there are any.
pub fn install(workspace: &Workspace, packages: &[&str], newer: &[&str]) -> Result<()> {
    let lists = Lists::of_machine(&workspace.apt())?;
    let log = workspace.logs().join("apt-update.log");
    if let Err(error) = step("apt-get update", || lists.update(&log)) {
        // One source that is down must not stop packages that another one has.
        line(
            Mark::Skipped,
            &format!("going on with the lists there are: {error:#}"),
        );
    }
    install_from(workspace, &lists, packages, None)?;
    install_from(workspace, &lists, newer, backports().as_deref())
}

fn install_from(
    workspace: &Workspace,
    lists: &Lists,
    packages: &[&str],
    suite: Option<&str>,
) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let install = || {
        let mut command = lists.command("apt-get");
        command
            .args(["install", "--yes", "--no-install-recommends"])
            .args(packages);
        if let Some(suite) = suite {
            command.args(["--target-release", suite]);
        }
        command
    };
    for package in removals(&cmd::capture(install().arg("--simulate")).unwrap_or_default()) {
        line(
            Mark::Start,
            &format!("apt will remove {package}: it conflicts with a new package"),
        );
    }
    let log = workspace
        .logs()
        .join(format!("apt-install-{}.log", packages[0]));
    let from = suite
        .map(|suite| format!(" from {suite}"))
        .unwrap_or_default();
    step(
        &format!("apt-get install {}{from}", packages.join(" ")),
        || cmd::run_logged(&mut install(), &log),
    )
}

/// The installed packages that would go, in the output of `apt-get --simulate`.
fn removals(simulated: &str) -> Vec<&str> {
    simulated
        .lines()
        .filter_map(|line| line.strip_prefix("Remv ")?.split(' ').next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::removals;

    #[test]
    fn what_apt_would_remove_is_named() {
        let simulated = "Reading package lists...\n\
                         Remv qemu-utils [1:10.0.2]\n\
                         Inst qemu-system-x86 (1:7.2 Debian:12 [amd64])\n\
                         Conf qemu-system-x86 (1:7.2 Debian:12 [amd64])\n";
        assert_eq!(removals(simulated), ["qemu-utils"]);
    }
}
