//! `cargo xtask fuzz`: builds the fuzz targets of the policy and of the agent's inputs, and runs them.
//!
//! cargo-fuzz builds; the programs are run from here, so that what they find stays below the target
//! directory. The pinned stable takes the flags of coverage with `RUSTC_BOOTSTRAP`. No sanitizer: what is
//! run here has no unsafe code, so one would find nothing and halve the rate.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use xtask::cmd;
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::step::step;

/// The release of cargo-fuzz that the targets are built with.
const CARGO_FUZZ: &str = "0.13.2";
/// The packages of targets.
const PACKAGES: [&str; 2] = ["agent/policy/fuzz", "agent/fuzz"];
/// What there is, each with its package, as `Cargo.toml` there lists it.
const TARGETS: [(&str, &str); 8] = [
    ("quantity", PACKAGES[0]),
    ("name", PACKAGES[0]),
    ("threshold", PACKAGES[0]),
    ("snapshot", PACKAGES[0]),
    ("manifest", PACKAGES[1]),
    ("objects", PACKAGES[1]),
    ("cri", PACKAGES[1]),
    ("checkpoint", PACKAGES[1]),
];
/// How long each runs in `cargo xtask ci`, in seconds: enough to see that it runs.
const SMOKE: u32 = 3;
/// The host's target, which cargo-fuzz always names.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// What the fuzzer is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which target; all of them, one after the other, unless named.
    #[arg(value_parser = TARGETS.map(|(name, _)| name))]
    target: Option<String>,
    /// How long each runs.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// The command line's arguments.
pub(crate) fn main(workspace: &Workspace, args: &Args) -> Result<()> {
    install(workspace)?;
    let wanted = |(name, _): &(&str, &str)| args.target.as_deref().is_none_or(|w| w == *name);
    let targets: Vec<_> = TARGETS.into_iter().filter(wanted).collect();
    let of = |package: &&str| targets.iter().any(|(_, of)| of == package);
    step("fuzz targets", || {
        let mut packages = PACKAGES.into_iter().filter(of);
        packages.try_for_each(|package| build(workspace, package))
    })?;
    for target in targets {
        step(&format!("fuzz {}", target.0), || {
            run(workspace, target, args.seconds)
        })?;
    }
    Ok(())
}

/// Runs the policy's targets for a moment and compiles the agent's, whose build takes minutes; skipped, with the
/// reason, where cargo-fuzz cannot be had.
pub(crate) fn smoke(workspace: &Workspace, report: &mut Report) {
    const NAME: &str = "fuzzing, for a moment";
    if let Err(error) = install(workspace) {
        let reason = format!("cargo-fuzz is not here: {error:#}");
        report.add(NAME, Counts::skipped(1), Some(reason));
        return;
    }
    report.check(NAME, || {
        for package in PACKAGES {
            cmd::run(&mut cargo(workspace, package, &["fmt", "--check"]))?;
        }
        let [policy, agent] = PACKAGES;
        check(workspace, agent)?;
        build(workspace, policy)?;
        let mut targets = TARGETS
            .into_iter()
            .filter(|(_, package)| *package == policy);
        targets.try_for_each(|target| run(workspace, target, SMOKE))
    });
}

/// Sees that the lock files of the targets' packages fit the workspace, which has lock files of its own: a dependency
/// that a crate gains belongs into both. On a machine that has never built them, cargo asks the registry.
pub(crate) fn lock_files(workspace: &Workspace) -> Result<()> {
    PACKAGES.into_iter().try_for_each(|package| {
        let update = ["update", "--quiet", "--workspace", "--locked"];
        let mut update = cargo(workspace, package, &update);
        cmd::run(&mut update).with_context(|| format!("the lock file of {package}"))
    })
}

/// Cargo on a package of targets.
fn cargo(workspace: &Workspace, package: &str, args: &[&str]) -> Command {
    let mut cargo = cmd::cargo();
    cargo
        .args(args)
        .arg("--manifest-path")
        .arg(workspace.root().join(package).join("Cargo.toml"));
    cargo
}

/// Sees to cargo-fuzz, in the target directory: nothing of the user's is touched.
fn install(workspace: &Workspace) -> Result<()> {
    if cmd::version(&program(workspace), CARGO_FUZZ).is_some() {
        return Ok(());
    }
    let mut install = cmd::cargo_install("cargo-fuzz", CARGO_FUZZ, &workspace.tools());
    step(
        &format!("cargo-fuzz {CARGO_FUZZ}, built from source"),
        || cmd::run_logged(&mut install, &workspace.logs().join("cargo-fuzz.log")),
    )
}

fn program(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("bin/cargo-fuzz")
}

/// Sees that a package's targets compile, beside what the workspace's own checks have built.
fn check(workspace: &Workspace, package: &str) -> Result<()> {
    let mut check = cargo(workspace, package, &["check", "--locked"]);
    check.arg("--target-dir").arg(workspace.fuzz_check());
    cmd::run_logged(&mut check, &workspace.logs().join("fuzz-check.log"))
}

fn build(workspace: &Workspace, package: &str) -> Result<()> {
    let package = workspace.root().join(package);
    let mut cargo = Command::new(program(workspace));
    cargo
        .current_dir(&package)
        .args([
            "build",
            "--sanitizer",
            "none",
            "--target",
            HOST,
            "--fuzz-dir",
        ])
        .arg(&package)
        .arg("--target-dir")
        .arg(workspace.fuzz_build())
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTFLAGS");
    cmd::run_logged(&mut cargo, &workspace.logs().join("fuzz-build.log"))
}

/// Runs one target; what it finds is an error that names the input. What it learnt stays for the
/// next run.
fn run(workspace: &Workspace, (target, package): (&str, &str), seconds: u32) -> Result<()> {
    let dir = workspace.fuzz_build();
    let corpus = dir.join("corpus").join(target);
    let findings = dir.join("findings").join(target);
    for dir in [&corpus, &findings] {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    let log = workspace.logs().join(format!("fuzz-{target}.log"));
    let mut fuzzer = Command::new(dir.join(HOST).join("release").join(target));
    fuzzer
        .arg(corpus)
        .arg(workspace.root().join(package).join("seeds").join(target))
        .arg(format!("-max_total_time={seconds}"))
        // A snapshot that takes longer than this to check is a finding.
        .args(["-timeout=10", "-print_final_stats=1"])
        .arg(format!("-artifact_prefix={}/", findings.display()));
    let ended = cmd::run_logged(&mut fuzzer, &log);
    if let Err(error) = ended {
        bail!(
            "{target} found something, kept in {}: {error:#}",
            findings.display()
        );
    }
    let text = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
    println!("    {target}: {}", summary(&text)?);
    Ok(())
}

/// What libFuzzer says at its end: runs, covered edges, inputs kept.
fn summary(log: &str) -> Result<String> {
    let done = log.lines().rev().find(|line| line.contains("\tDONE "));
    let words: Vec<&str> = done.unwrap_or_default().split_whitespace().collect();
    let after = |key: &str| {
        let at = words.iter().position(|word| *word == key)?;
        words.get(at + 1).copied()
    };
    let runs = words.first().map(|word| word.trim_start_matches('#'));
    match (runs, after("cov:"), after("corp:")) {
        (Some(runs), Some(edges), Some(corpus)) => Ok(format!(
            "{runs} runs, {edges} edges covered, corpus {corpus}"
        )),
        _ => bail!("the fuzzer ended without its last line"),
    }
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn the_last_line_is_read() {
        let log = "#2\tINITED cov: 3\n#2718041\tDONE   cov: 198 ft: 492 corp: 193/2521b lim: 4096 \
                   exec/s: 169877 rss: 27Mb\nDone 2718041 runs in 16 second(s)\n";
        assert_eq!(
            summary(log).ok().as_deref(),
            Some("2718041 runs, 198 edges covered, corpus 193/2521b")
        );
        assert!(summary("#2\tINITED cov: 3\n").is_err());
    }
}
