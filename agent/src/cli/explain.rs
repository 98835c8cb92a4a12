//! `podwarden explain`: every value of one pod, its tier and its containers, and what would change it.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::ValueEnum;
use podwarden_policy::QosClass;

use self::explanation::Explanation;
use super::{
    best_effort,
    connect::Connect,
    output,
    plan::input::{Input, NodeArgs},
    select,
};
use crate::{
    api::{
        client::Client,
        types::{NodeStats, PodStats, ProactiveReclaimStats, ThrottlingStats},
    },
    hierarchy::recorded::Recorded,
};

mod change;
mod class;
mod explanation;
mod found;
mod node;
mod text;

const EXAMPLES: &str = "\
Examples:
  podwarden explain web                        by name, from the running agent
  podwarden explain shop/web                   by namespace and name
  podwarden explain 6f1c0e4a-5b7e-4c0e-9d53-0f4f7c1d2a3b
  podwarden explain web -f node.json           from a snapshot, see `podwarden plan --help`
  podwarden explain node                       what the node offers a second time, and what that is from
  podwarden explain web -o json | jq '.cgroups[].values[] | select(.pending)'

A pod that no manifest names, and that is known from its cgroup alone, goes by its uid.

Exit code: 0 explained, 2 no such pod or nothing to read, 3 a wrong argument or no answer from the
agent.";

/// Arguments of `podwarden explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// NAME, NAMESPACE/NAME or uid of a pod; or `node`, unless a pod has that name
    pod: String,
    /// Snapshot, v1 Pod manifests or PodList instead of the running agent; `-` for standard input
    #[arg(short, long, value_name = "SNAPSHOT")]
    file: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
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
    Text,
    /// For scripts: `{"podRef", "knownBy", "cgroups": [{path, values: [{file, value, reason,
    /// changesWith}]}], "containers", "eviction", ...}`.
    Json,
}

/// Prints the explanation.
pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let input = match &args.file {
        Some(file) => Input::read(file, &args.node),
        None => {
            let recorded = args.connect.client().get_bytes("/v1/plan").await?;
            let text = std::str::from_utf8(&recorded).context("read the agent's answer")?;
            Input::parse("(the agent's)", text, &args.node)
        }
    };
    let mut explained = input.and_then(|input| {
        for error in &input.errors {
            eprintln!("podwarden: {error}");
        }
        if args.pod == node::NAME && select::pod(&input.snapshot.pods, node::NAME).is_err() {
            return Ok(Explained::Node(node::Explanation::of(&input)));
        }
        explain(&input, &args.pod).map(|pod| Explained::Pod(Box::new(pod)))
    });
    if let (Ok(explained), None) = (&mut explained, &args.file) {
        // The snapshot has no figures; without them the rest is as it is.
        explained.add_figures(&args.connect.client()).await;
    }
    match explained {
        Ok(explained) => match args.output {
            Output::Text => output::print(&explained.text())?,
            Output::Json => output::print_json(&explained)?,
        },
        Err(error) => {
            eprintln!("podwarden: {error:#}");
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What best effort may use of the CPU; `None` where nothing holds it back.
async fn of_best_effort(client: &Client) -> Option<String> {
    let node = client.get::<NodeStats>("/v1/node").await.ok()?;
    best_effort::cpu(node.best_effort_cpu.as_ref()?)
}

/// How long a pod was stopped at its CPU limit; `None` where it was not.
fn throttled(throttling: ThrottlingStats) -> Option<String> {
    let nanos = throttling.throttled_nano_seconds;
    (nanos > 0).then(|| {
        format!(
            "Throttled by its CPU limit: {} in {} of {} periods\n  \
             changes with resources.limits.cpu, colocation.cpuBurstStrategy",
            output::nanos(nanos),
            throttling.throttled_periods,
            throttling.periods,
        )
    })
}

/// How many forks of a pod were refused; `None` where none was.
fn refused(forks: u64) -> Option<String> {
    (forks > 0).then(|| {
        format!(
            "Forks refused by a limit on processes (pids.max): {forks}\n  \
             changes with podPidsLimit, kubeReserved.pid, systemReserved.pid"
        )
    })
}

/// What a pod gave back of its page cache.
fn given(given: ProactiveReclaimStats) -> String {
    let ProactiveReclaimStats {
        reclaimed_bytes,
        steps,
        refaults,
        last,
    } = given;
    let now = match last.as_str() {
        "taken" => "it gives more now",
        "refaulted" | "resting" => "it rests, since it read pages back",
        "pressure" => "nothing now: its tasks wait for memory",
        "nothing" => "nothing now: what is left is in use, dirty or protected",
        _ => "nothing now: it is looked at for the first time",
    };
    format!(
        "Page cache given back: {} in {steps} steps, {refaults} pages read back; {now}\n  \
         changes with colocation.memoryReclaimStrategy",
        output::bytes(reclaimed_bytes)
    )
}

/// Explains the pod of this uid in the snapshot that the agent last planned from, in JSON.
pub(super) fn of_recorded(recorded: &Recorded, uid: &str) -> Result<Vec<u8>, String> {
    let explained = || {
        let text = serde_json::to_string(recorded)?;
        let input = Input::parse("(the agent's)", &text, &NodeArgs::default())?;
        anyhow::Ok(serde_json::to_vec(&explain(&input, uid)?)?)
    };
    explained().map_err(|error| format!("{error:#}"))
}

/// Explains every pod of a recorded snapshot, in JSON by uid.
pub(super) fn all(recorded: &str) -> anyhow::Result<Vec<u8>> {
    let input = Input::parse("(the agent's)", recorded, &NodeArgs::default())?;
    let pods = input.snapshot.pods.iter();
    let explained: BTreeMap<_, _> = pods
        .map(|pod| (&pod.uid, Explanation::of(&input, pod)))
        .collect();
    Ok(serde_json::to_vec(&explained)?)
}

/// What was asked for.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Explained {
    Pod(Box<Explanation>),
    Node(node::Explanation),
}

impl Explained {
    /// What the agent's figures say besides.
    async fn add_figures(&mut self, client: &Client) {
        let pod = match self {
            Self::Pod(pod) => pod,
            Self::Node(node) => return node.best_effort_cpu = of_best_effort(client).await,
        };
        if pod.qos_class == QosClass::BestEffort.as_str() {
            pod.notes.extend(of_best_effort(client).await);
        }
        let path = format!("/v1/pods/{}", pod.pod_ref.uid);
        if let Ok(stats) = client.get::<PodStats>(&path).await {
            pod.notes.extend(stats.cpu.throttling.and_then(throttled));
            pod.notes.extend(stats.refused_forks.and_then(refused));
            pod.notes.extend(stats.proactive_reclaim.map(given));
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Pod(pod) => pod.text(),
            Self::Node(node) => node.text(),
        }
    }
}

/// A pod of a source, or one with a cgroup only.
fn explain(input: &Input, named: &str) -> anyhow::Result<Explanation> {
    match select::pod(&input.snapshot.pods, named) {
        Ok(pod) => Ok(Explanation::of(input, pod)),
        Err(error) => found::explain(input, named).ok_or(error),
    }
}
