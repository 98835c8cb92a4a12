//! `podwarden undo`: removes what agents have left on a node.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use serde::Serialize;

use super::output::{self, Format};
use crate::{
    agent::undo::{self, Undone},
    config::{CgroupRoot, Config, Overrides},
};

const EXAMPLES: &str = "\
Examples:
  podwarden undo --dry-run                                 what there is, and what would go
  podwarden undo --config /etc/podwarden/config.yaml
  podwarden undo --state -o json | jq '.steps[] | {step, items}'

For a node from which podwarden was removed: limits of the tiers that an agent could not take back, empty
cgroups that it made, pinned maps. A cgroup with processes stays. Needs no agent, and refuses while one runs.
What each program writes by itself again needs no undoing: a kubelet writes its limits each minute.

Exit code: 0 nothing is left, 1 something stays (it says why), 3 an agent runs, or a wrong argument.
JSON: {dryRun, steps: [{step, about, items: [{what, stays}], problem}]}; `stays` is why.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Configuration file of the agent that ran here (YAML, `kind: AgentConfig`)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Parent of kubepods, relative to each controller's mount point [default: /]
    #[arg(long, value_name = "PATH", value_parser = |path: &str| path.parse::<CgroupRoot>().map(|root| root.0))]
    cgroup_root: Option<String>,
    /// Who names the cgroups [default: auto, which is both]
    #[arg(long, value_name = "DRIVER", value_parser = ["auto", "cgroupfs", "systemd"])]
    cgroup_driver: Option<String>,
    /// Also remove what the next agent would go on with: the checkpoint, undelivered eviction status
    #[arg(long)]
    state: bool,
    /// List what there is, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    dry_run: bool,
    steps: &'a [Undone],
}

/// Undoes and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut flags = Vec::new();
    for (flag, value) in [
        ("--cgroup-root", &args.cgroup_root),
        ("--cgroup-driver", &args.cgroup_driver),
    ] {
        flags.extend(value.iter().flat_map(|value| [flag, value]));
    }
    let overrides = Overrides::from_flags(flags)?;
    let config = Config::load(args.config.as_deref(), overrides)?;
    let steps = undo::run(&config, args.state, args.dry_run)?;
    match args.output {
        Format::Table => output::print(&table(&steps, args.dry_run))?,
        Format::Json => output::print_json(&Answer {
            dry_run: args.dry_run,
            steps: &steps,
        })?,
    }
    let whole = steps.iter().all(Undone::is_whole);
    Ok(ExitCode::from(u8::from(!whole)))
}

/// A line for each step, and one below it for each thing.
fn table(steps: &[Undone], dry_run: bool) -> String {
    let gone = if dry_run { "would go" } else { "gone" };
    let mut text = String::new();
    for step in steps {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:8} {}", step.step, step.about);
        if let Some(problem) = &step.problem {
            let _ = writeln!(text, "         failed: {problem}");
        }
        if step.items.is_empty() && step.problem.is_none() {
            let _ = writeln!(text, "         none");
        }
        for item in &step.items {
            let _ = match &item.stays {
                None => writeln!(text, "         {gone}: {}", item.what),
                Some(why) => writeln!(text, "         stays: {} ({why})", item.what),
            };
        }
    }
    text
}
