//! `cargo xtask ci`: the checks before a change lands.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use xtask::paths::Workspace;
use xtask::report::Report;
use xtask::{cmd, setup};

use crate::{bare, ebpf, fuzz, layers, lengths, licences, test, words};

/// After how long a run begins no further case. It takes 40 minutes, and more where others use the machine; 90 are the
/// most that it may, and on a machine half as fast, what follows the cases takes 25.
const CASES_WITHIN: Duration = Duration::from_secs(50 * 60);

/// What `cargo xtask ci` is run with.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only the checks that build nothing: formatting, the order of imports, the length of files, words,
    /// lock files.
    #[arg(long)]
    quick: bool,
}

/// Runs every check and every test; a check that fails stops nothing, so that one run shows all.
pub(crate) fn run(workspace: &Workspace, args: &Args, report: &mut Report) -> Result<()> {
    let root = workspace.root();
    let until = Instant::now() + CASES_WITHIN;

    report.check("formatting", || cargo(root, &["fmt", "--all", "--check"]));
    report.check("the order of imports", || layers::check(root));
    report.check("the length of files", || lengths::check(root));
    report.check("words", || words::check(root));
    if args.quick {
        // The whole run compiles with them.
        report.check("lock files of the fuzz targets", || {
            fuzz::lock_files(workspace)
        });
        return Ok(());
    }
    setup::for_lint(workspace)?;
    let checks = |report: &mut Report| compiled(workspace, report);
    test::everything(workspace, until, checks, report)
}

/// Runs cargo in the workspace.
fn cargo(root: &Path, args: &[&str]) -> Result<()> {
    cmd::run(cmd::cargo().current_dir(root).args(args))
}

/// The checks that compile.
fn compiled(workspace: &Workspace, report: &mut Report) {
    let root = workspace.root();

    report.check("clippy", || {
        cargo(
            root,
            &["clippy", "--quiet", "--all-targets", "--", "-D", "warnings"],
        )
    });
    // The kernel programs' crate builds for its own target alone.
    report.check("links in the documentation", || {
        cargo(
            root,
            &[
                "doc",
                "--quiet",
                "--workspace",
                "--exclude=podwarden-ebpf",
                "--no-deps",
                "--document-private-items",
            ],
        )
    });
    report.check("clippy for the kernel programs", || ebpf::clippy(workspace));
    report.check("the policy without an operating system", || {
        bare::build(workspace)
    });
    fuzz::smoke(workspace, report);
    report.check("licences and sources", || match cmd::find("cargo-deny") {
        Some(_) => cargo(root, &["deny", "check", "bans", "licenses", "sources"]),
        None => licences::check(root),
    });
}
