//! The project's own tasks, run as `cargo xtask TASK`.

mod bare;
mod bench;
mod build;
mod ci;
mod demo;
mod e2e;
mod ebpf;
mod fuzz;
mod layers;
mod lengths;
mod licences;
mod peers;
mod release;
mod sources;
mod test;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::paths::Workspace;
use xtask::report::{Counts, Report};
use xtask::setup;

/// Builds, tests and shows podwarden. Each task installs and builds what it needs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

const EXAMPLES: &str = "\
Examples:
  cargo xtask setup --check            what is missing on this machine?
  cargo xtask demo                     show the eviction of a best-effort pod (as root)
  cargo xtask demo --headless          the same as text
  cargo xtask build-ebpf               the kernel programs, embedded by the next build of the agent
  cargo xtask test                     unit tests, then the cases on this kernel and in virtual machines
  cargo xtask test --kernels native --filter eviction
  cargo xtask bench switch             the added cost of a context switch
  cargo xtask bench evict --runs 5     time to the kill of podwarden, earlyoom and nohang (as root)
  cargo xtask fuzz snapshot --seconds 600
  cargo xtask bench plan               how long one plan takes
  cargo xtask image                    the DaemonSet's image, for a registry or a node
  cargo xtask ci                       all checks and all tests";

#[derive(Debug, Subcommand)]
enum Task {
    /// Installs what is missing: rust-src, bpf-linker, qemu.
    Setup(setup::Args),
    /// Builds the kernel programs.
    BuildEbpf(ebpf::Args),
    /// Builds everything and shows live accounts of real pods and an eviction.
    Demo(demo::Args),
    /// Runs unit tests, then the end-to-end cases on this kernel and on others.
    Test(test::Args),
    /// Measures podwarden's cost beside the same work without it.
    Bench(bench::Args),
    /// Tries what the policy reads with random inputs.
    Fuzz(fuzz::Args),
    /// Writes the agent as it is shipped into a container image, without a daemon.
    Image(release::Args),
    /// Formatting, lints, the order of imports, licences, then every test.
    Ci(ci::Args),
}

fn main() -> ExitCode {
    let workspace = Workspace::locate();
    let result = match Cli::parse().task {
        Task::Setup(args) => setup::main(&workspace, &args).map(|()| true),
        Task::BuildEbpf(args) => ebpf::main(&workspace, &args).map(|()| true),
        Task::Demo(args) => demo::main(&workspace, &args).map(|()| true),
        Task::Bench(args) => bench::main(&workspace, &args).map(|()| true),
        Task::Fuzz(args) => fuzz::main(&workspace, &args).map(|()| true),
        Task::Image(args) => release::main(&workspace, &args).map(|()| true),
        Task::Test(args) => reported(&workspace, |report| test::run(&workspace, &args, report)),
        Task::Ci(args) => reported(&workspace, |report| ci::run(&workspace, &args, report)),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs stages, prints the total as the last line, and returns whether all is well.
fn reported(
    workspace: &Workspace,
    stages: impl FnOnce(&mut Report) -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let mut report = Report::default();
    let ended = stages(&mut report);
    if let Err(error) = ended {
        // What stops a run short is a failure of the run, and the total still has to be last.
        report.add("the run", Counts::FAILED, Some(format!("{error:#}")));
    }
    let summary = workspace.results().join("summary.json");
    report.write(&summary)?;
    println!("results: {}", summary.display());
    for failed in report.failures() {
        println!("FAILED {failed}");
    }
    println!("{}", report.total());
    Ok(report.total().failed == 0)
}

#[cfg(test)]
mod tests {
    use xtask::documents::commands;

    use super::*;

    #[test]
    fn commands_of_the_documents_are_known() {
        let commands = commands(&Workspace::locate()).unwrap();
        let tasks = commands
            .iter()
            .filter(|command| command.words[..2] == ["cargo", "xtask"]);
        let mut parsed = 0;
        for command in tasks {
            // Without `cargo`, as cargo's alias runs it.
            if let Err(error) = Cli::try_parse_from(&command.words[1..]) {
                let (file, line) = (command.file.display(), command.line);
                assert!(!error.use_stderr(), "{file}:{line}: {error}");
            }
            parsed += 1;
        }
        assert!(parsed > 5, "{parsed} commands");
    }
}
