//! Builds what the demo and the tests run.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::paths::Workspace;
use xtask::step::step;
use xtask::{cmd, setup};

use crate::ebpf;

/// Those of our packages that run on this machine and use others'.
const PACKAGES: [&str; 6] = [
    "podwarden",
    "podwarden-cgroup",
    "podwarden-policy",
    "e2e",
    "workload",
    "xtask",
];

/// What cargo writes of the libraries.
const LIBRARIES_LOG: &str = "libraries.log";
/// How often it is looked at.
const POLL: Duration = Duration::from_millis(200);

/// The kernel programs, and before them what building them takes.
pub(crate) fn kernel_programs(workspace: &Workspace) -> Result<()> {
    setup::for_build(workspace)?;
    step("build the kernel programs", || ebpf::build(workspace))
}

/// All of it. While the kernel programs are built, and what that takes is fetched and installed, CPUs are idle: the
/// libraries of the agent and of the cases are built beside them.
pub(crate) fn all(workspace: &Workspace) -> Result<()> {
    // What goes wrong with them does so again, and is told, when they are built with the packages that need them.
    let mut libraries = start_libraries(workspace).ok();
    let programs = kernel_programs(workspace);
    match &mut libraries {
        Some(libraries) if programs.is_err() => {
            let _ = libraries.kill();
            let _ = libraries.wait();
        }
        Some(libraries) => {
            let log = workspace.logs().join(LIBRARIES_LOG);
            let _ = step("build the libraries", || follow(libraries, &log));
        }
        None => {}
    }
    programs?;
    release(workspace)
}

/// Waits until a build ends; a person is shown what it does.
fn follow(build: &mut Child, log: &Path) -> Result<()> {
    let mut terminal = std::io::stderr();
    let is_watched = terminal.is_terminal();
    let status = loop {
        if let Some(status) = build.try_wait().context("wait for cargo")? {
            break status;
        }
        if is_watched {
            let written = cmd::tail(log);
            let line = written.lines().last().unwrap_or_default();
            // Over the line before it.
            write!(terminal, "\r\x1b[2K{line}").context("write to the terminal")?;
        }
        thread::sleep(POLL);
    };
    if is_watched {
        write!(terminal, "\r\x1b[2K").context("write to the terminal")?;
    }
    ensure!(status.success(), "cargo ended with {status}");
    Ok(())
}

/// Begins to build what our packages that run on this machine use of others', with the features that they have there.
fn start_libraries(workspace: &Workspace) -> Result<Child> {
    let ours = PACKAGES.iter().flat_map(|name| ["--package", name]);
    let args: Vec<_> = ["--depth", "1", "--edges", "normal"]
        .into_iter()
        .chain(ours)
        .collect();
    let lines = cmd::cargo_tree(workspace.root(), "{p}", &args)?;
    let specs: BTreeSet<String> = lines.iter().filter_map(|line| spec(line)).collect();
    let path = workspace.logs().join(LIBRARIES_LOG);
    cmd::create_parent(&path)?;
    let log = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    let mut cargo = cmd::cargo();
    cargo
        .current_dir(workspace.root())
        .args(["build", "--release"])
        .args(specs.iter().flat_map(|spec| ["--package", spec]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    cargo.spawn().context("start the build of the libraries")
}

/// A line of `cargo tree` as cargo takes it for one package; `None` for our own, and for one that the compiler runs.
fn spec(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    words.next().is_none().then(|| format!("{name}@{version}"))
}

/// The agent, with the kernel programs in it, and the cases; release builds.
pub(crate) fn release(workspace: &Workspace) -> Result<()> {
    step("build the agent and the cases", || {
        let mut cargo = cmd::cargo();
        cargo.current_dir(workspace.root()).args([
            "build",
            "--release",
            "--package",
            "podwarden",
            "--package",
            "e2e",
        ]);
        // The progress bar is for people; elsewhere it would be a line for each crate.
        if !std::io::stderr().is_terminal() {
            cargo.arg("--quiet");
        }
        cmd::run(&mut cargo)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_of_others_is_named_with_its_version() {
        assert_eq!(spec("serde v1.0.228").as_deref(), Some("serde@1.0.228"));
        assert_eq!(spec("serde_derive v1.0.228 (proc-macro)"), None);
        assert_eq!(spec("podwarden v0.2.0 (/clone/agent)"), None);
    }
}
