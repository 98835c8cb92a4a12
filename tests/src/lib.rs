//! End-to-end cases against a real kernel and the real agent, the processes they watch, and the
//! demo.
//!
//! ```text
//!  cases     what podwarden promises, one function each; `e2e run`
//!  harness   a private cgroup root, the agent, pods, and the kernel's own figures to compare with
//!  apiserver a stand-in for the API server, with its faults
//!  containerd a real container runtime, with a network plugin
//!  kubernetes a real cluster of one node
//!  demo      three tiers of real processes and an eviction, for a person to watch; `e2e demo`
//!  bench     what podwarden costs; `e2e bench`
//!  machine   virtual machines: the same cases on other kernels; `e2e machine`, called by cargo xtask
//! ```
//!
//! The processes inside the pods are the package `workload`; the cases start them as `e2e workload`.
//!
//! A library, so that it is compiled while the agent's own is still being generated: a program is only once all that it
//! consists of is there.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod apiserver;
mod bench;
mod cases;
mod containerd;
mod demo;
#[cfg(test)]
mod documents;
mod harness;
mod kubelet;
mod kubernetes;
mod machine;
#[cfg(test)]
mod outage;
mod runner;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the cases.
    Run(runner::Args),
    /// Shows accounting and an eviction with real processes.
    Demo(demo::Args),
    /// Measures what podwarden costs.
    Bench(bench::Args),
    /// The cases and benchmarks in virtual machines; `cargo xtask` calls these.
    #[command(subcommand, hide = true)]
    Machine(machine::Machine),
    /// A process for a pod; the cases start these.
    #[command(subcommand, hide = true)]
    Workload(workload::Workload),
}

/// The program.
pub fn main() -> ExitCode {
    if std::process::id() == 1 {
        machine::init::main();
    }
    let result = match Cli::parse().command {
        Command::Run(args) => runner::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Machine(machine) => machine.run(),
        Command::Workload(workload) => workload.run().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("e2e: {error:#}");
        ExitCode::FAILURE
    })
}
