//! `podwarden plan`: the plan for a node's cgroups and the eviction order, with reasons.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;

use self::{
    input::{Input, NodeArgs},
    report::Report,
};
use super::{connect::Connect, output};

pub(super) mod cpu;
pub(super) mod files;
mod found;
pub(super) mod input;
mod objects;
pub(crate) mod reclaimed;
pub(super) mod report;
mod schema;
mod usage;

const HELP: &str = "\
Examples:
  podwarden plan -f pods.yaml --cpu 2 --memory 20Gi     v1 Pod manifests, or a PodList
  kubectl get pods -A -o yaml --field-selector spec.nodeName=node-1 | podwarden plan -f -
  podwarden plan --record > node.json                   from the running agent
  podwarden plan -f node.json                           plans as the agent did, to the last value
  podwarden plan -f node.json --memory 8Gi              what would be, if
  podwarden plan -f pods.yaml -o json | jq '.tree[] | select(.file == \"memory.max\")'

A snapshot (YAML or JSON); every key but the first two may be left out:
  apiVersion: podwarden.io/v1alpha1
  kind: Snapshot
  cgroupVersion: v2                     # v1 | v2
  cgroupDriver: cgroupfs                # cgroupfs | systemd
  node: {cpu: 2, memory: 20Gi, swap: 0, pids: 32768, hugepages: {2Mi: 1Gi}}    # default: this machine
  config: {qosReserved: {memory: 50%}}  # keys of AgentConfig
  pods: []                              # v1 Pods
  usage: {default/web: {memory: 200Mi}} # working set by NAME, NAMESPACE/NAME or uid
  memoryAvailable: 100Mi                # left on the node; below evictionHard a pod is evicted
  cgroups: {}                           # what the cgroups hold, as --record writes it
  recorded: {}                          # everything, as --record writes it; then nothing else but:
  reclaimed: {}                         # what the node's reclaimed resources are from, as --record writes it
  cpuStrategies: {}                     # what the CPU strategies go by, as --record writes it; default: as config says,
                                        # with nothing measured

Exit code: 0 all is planned, 1 something is left out (standard error says what), 2 nothing could be
planned, 3 a wrong argument or no answer from the agent.";

/// Arguments of `podwarden plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "record"]))]
pub struct Args {
    /// Snapshot, v1 Pod manifests or PodList; `-` for standard input
    #[arg(short, long, value_name = "SNAPSHOT")]
    file: Option<PathBuf>,
    /// Write the snapshot that the running agent last planned from
    #[arg(long)]
    record: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    connect: Connect,
}

/// How it is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// For scripts: `{"tree": [{path, file, value, reason}], "ranking", "protected", "actions", "errors"}`.
    Json,
}

/// Plans and prints, or records.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(file) = &args.file else {
        let recorded: serde_json::Value = args.connect.client().get("/v1/plan").await?;
        output::print_json(&recorded)?;
        return Ok(ExitCode::SUCCESS);
    };
    let input = match Input::read(file, &args.node) {
        Ok(input) => input,
        Err(error) => {
            eprintln!("podwarden: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let report = Report::of(&input);
    match args.output {
        Output::Table => output::print(&report.table())?,
        Output::Json => output::print_json(&report)?,
    }
    for error in &input.errors {
        eprintln!("podwarden: {error}");
    }
    Ok(ExitCode::from(u8::from(!input.errors.is_empty())))
}

#[cfg(test)]
mod tests;
