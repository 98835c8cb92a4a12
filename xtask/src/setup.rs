//! The tools that the tasks need beyond cargo: finds them, installs the missing ones.

mod needs;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::Lists;
use crate::paths::Workspace;
use crate::step::{Mark, line, step};
use crate::{apt, cmd};

use self::needs::{For, LLVM, NEEDS, NEWER, Need, llvm, path_of};

/// The release of bpf-linker that the kernel programs are linked with.
const BPF_LINKER: &str = "0.13.0";
/// The release of axe-core that the page is held to.
const AXE: &str = "4.14.1";

/// `cargo xtask setup`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Only reports; exit code 1 when something is missing.
    #[arg(long)]
    check: bool,
}

/// The daemon that installing this would start beside those that the tests start themselves.
fn would_start(need: &Need) -> Option<&'static str> {
    let daemons = [("containerd", "containerd"), ("etcd-server", "etcd")];
    let mut daemons = daemons.into_iter();
    let (_, daemon) = daemons.find(|(package, _)| need.debian.contains(package))?;
    Path::new("/run/systemd/system").is_dir().then_some(daemon)
}

/// The command line's arguments.
pub fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    if report(workspace) {
        return Ok(());
    }
    if args.check {
        bail!("not everything is here: `cargo xtask setup` installs what is missing");
    }
    let required = [For::Build, For::Lint, For::Machines, For::Systemd];
    ensure(workspace, &required)?;
    for_runtime(workspace);
    for_page(workspace);
    for_metrics(workspace);
    Ok(())
}

/// Sees to what the cases with a real container runtime take; they are skipped without it, so that nothing
/// fails here.
pub fn for_runtime(workspace: &Workspace) {
    or_skip(ensure(workspace, &[For::Runtime]));
}

/// Sees to the browser and the rules of accessibility that the tests of the page take; they are skipped without them,
/// so that nothing fails here.
pub fn for_page(workspace: &Workspace) {
    or_skip(ensure(workspace, &[For::Browser]));
    if own(&workspace.axe()).is_none() {
        or_skip(step("fetch axe-core", || fetch_axe(workspace)));
    }
}

/// One file of npm's package: nothing of it is installed or run here.
fn fetch_axe(workspace: &Workspace) -> Result<()> {
    let npm = cmd::find("npm")
        .context("npm is missing: install it, or the rules as target/tools/axe.min.js")?;
    let tools = workspace.tools();
    fs::create_dir_all(&tools).with_context(|| format!("create {}", tools.display()))?;
    let log = workspace.logs().join("axe-core.log");
    let package = format!("axe-core@{AXE}");
    cmd::run_logged(
        Command::new(npm)
            .current_dir(&tools)
            .args(["pack", &package]),
        &log,
    )?;
    let archive = tools.join(format!("axe-core-{AXE}.tgz"));
    let mut tar = Command::new("tar");
    tar.arg("--directory")
        .arg(&tools)
        .arg("--file")
        .arg(&archive);
    tar.args([
        "--extract",
        "--gzip",
        "--strip-components=1",
        "package/axe.min.js",
    ]);
    cmd::run_logged(&mut tar, &log)?;
    fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))
}

/// Says what is not there, and goes on without it.
fn or_skip(done: Result<()>) {
    if let Err(error) = done {
        line(Mark::Skipped, &format!("{error:#}"));
    }
}

/// Sees to Prometheus and promtool, which tests of `/metrics` take; those are skipped without them, so that nothing fails
/// here.
pub fn for_metrics(workspace: &Workspace) {
    if promtool(workspace).is_none() || prometheus(workspace).is_none() {
        or_skip(step("fetch prometheus", || fetch_prometheus(workspace)));
    }
}

/// Debian's package also starts a service, so that only the programs are taken from it.
fn fetch_prometheus(workspace: &Workspace) -> Result<()> {
    let suite = apt::debian_release().context("prometheus or promtool is missing: install both")?;
    let dir = workspace.tools().join("prometheus");
    let lists = Lists::of_suites(&dir.join("apt"), &[&suite])?;
    lists.update(&workspace.logs().join("apt-prometheus.log"))?;
    let root = dir.join("root");
    lists.unpack(
        &["prometheus"],
        &root,
        &workspace.logs().join("prometheus.log"),
    )?;
    for program in [workspace.promtool(), workspace.prometheus()] {
        let name = program.file_name().context("it has no name")?;
        cmd::create_parent(&program)?;
        fs::rename(root.join("usr/bin").join(name), &program)
            .with_context(|| format!("keep {}", program.display()))?;
    }
    fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))
}

/// Where promtool is: the system's, else our own.
fn promtool(workspace: &Workspace) -> Option<String> {
    path_of("promtool").or_else(|| own(&workspace.promtool()))
}

/// Where Prometheus is: the system's, else our own.
fn prometheus(workspace: &Workspace) -> Option<String> {
    path_of("prometheus").or_else(|| own(&workspace.prometheus()))
}

/// A file that setup has put there.
fn own(file: &Path) -> Option<String> {
    file.is_file().then(|| file.display().to_string())
}

/// Sees to what building takes; prints nothing when all is there.
pub fn for_build(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &[For::Build])
}

/// Sees to what linting the kernel programs takes.
pub fn for_lint(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &[For::Build, For::Lint])
}

/// Sees to what virtual machines take.
pub fn for_machines(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &[For::Machines])
}

/// Sees to what building the machine with systemd takes beyond that.
pub fn for_systemd(workspace: &Workspace) -> Result<()> {
    ensure(workspace, &[For::Systemd])
}

/// One line for each need; whether all are there.
fn report(workspace: &Workspace) -> bool {
    let found = NEEDS
        .iter()
        .map(|need| (need.what, (need.found)(workspace)));
    let own = [
        ("bpf-linker", bpf_linker(workspace)),
        ("promtool", promtool(workspace)),
        ("prometheus", prometheus(workspace)),
        ("axe-core", own(&workspace.axe())),
    ];
    let mut complete = true;
    for (what, found) in found.chain(own) {
        complete &= found.is_some();
        match found {
            Some(found) => line(Mark::Ok, &format!("{what}: {found}")),
            None => line(Mark::Missing, what),
        }
    }
    complete
}

fn ensure(workspace: &Workspace, wanted: &[For]) -> Result<()> {
    let missing = || {
        NEEDS
            .iter()
            .filter(|n| wanted.contains(&n.purpose) && (n.found)(workspace).is_none())
    };
    if missing().next().is_some() && apt::usable() {
        let (newer, usual): (Vec<_>, Vec<_>) = missing()
            .filter(|need| would_start(need).is_none())
            .flat_map(|need| need.debian)
            .copied()
            .partition(|package| *package == NEWER);
        apt::install(workspace, &usual, &newer)?;
    }
    let remedies: Vec<String> = missing().map(remedy).collect();
    if !remedies.is_empty() {
        bail!("this machine lacks:\n{}", remedies.join("\n"));
    }
    if wanted.contains(&For::Build) && bpf_linker(workspace).is_none() {
        step(
            &format!("bpf-linker {BPF_LINKER}, built from source"),
            || install_linker(workspace),
        )?;
    }
    Ok(())
}

fn remedy(need: &Need) -> String {
    let daemon = would_start(need).filter(|_| apt::is_debian());
    let how = if let Some(daemon) = daemon {
        format!(
            "as root: apt-get install {}; the package starts a {daemon}, which the tests do not use: \
             systemctl disable --now {daemon}",
            need.debian.join(" ")
        )
    } else if apt::is_debian() && !nix::unistd::geteuid().is_root() {
        format!(
            "as root: apt-get install {}; or {}",
            need.debian.join(" "),
            need.elsewhere
        )
    } else {
        need.elsewhere.to_owned()
    };
    format!("  {}: {how}", need.what)
}

/// The version of the linker, when the right one runs.
fn bpf_linker(workspace: &Workspace) -> Option<String> {
    cmd::version(&workspace.bpf_linker(), BPF_LINKER)
}

fn install_linker(workspace: &Workspace) -> Result<()> {
    let prefix = llvm().context("LLVM is not there")?;
    let mut cargo = cmd::cargo_install("bpf-linker", BPF_LINKER, &workspace.tools());
    cargo
        // Its own code is little beside LLVM's, and half of the time to build it.
        .arg("--debug")
        .args(["--no-default-features", "--features", "llvm-22"])
        .env("LLVM_PREFIX", &prefix)
        .env(format!("LLVM_SYS_{LLVM}1_PREFIX"), &prefix);
    cmd::run_logged(&mut cargo, &workspace.logs().join("bpf-linker.log"))
}
