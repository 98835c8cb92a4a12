//! `podwarden top`: live figures, pod by pod.
//!
//! [`figures`] turns two samples into rates, [`state`] holds the keys' choices, and [`view`] draws. Only
//! [`live`] touches the terminal.

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use serde::Serialize;

use self::{
    figures::{PodRow, Sample, SortKey},
    layout::Layout,
};
use super::{connect::Connect, output, seconds};
use crate::api::{
    client::{Client, ClientError},
    types::{NodeStats, PodList},
};

mod columns;
mod figures;
mod layout;
mod live;
mod plain;
mod state;
mod view;

const EXAMPLES: &str = "\
Examples:
  podwarden top                              live; press ? for the keys
  podwarden top --sort pressure              pods that wait and stall most come first
  podwarden top --once                       the table once, for scripts and tickets
  podwarden top -o json | jq '.pods[] | select(.qosClass == \"BestEffort\")'

CPU is in thousandths of a core, WAIT in milliseconds that tasks waited for a CPU per second,
P99 the upper bound of the 99th percentile of one wait, STALL in milliseconds spent reclaiming
memory per second, EXITS all/failed/by signal, DISK and NET bytes per second, DISK99 the upper bound
of the 99th percentile of how long a disk took. NO_COLOR is respected.

Exit code: 0 shown, 3 a wrong argument or no answer from the agent.";

/// The shortest time between two samples: shorter ones say little and cost the node.
const SHORTEST: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print once and end
    #[arg(long)]
    once: bool,
    /// How to print; json prints once
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// What comes first within a tier
    #[arg(long, value_enum, default_value_t)]
    sort: SortKey,
    /// Seconds between two samples, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// What fits
    Table,
    /// With uid, resident memory, context switches, disk and network
    Wide,
    /// One JSON object
    Json,
}

fn interval(text: &str) -> Result<Duration, String> {
    seconds(text, SHORTEST)
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let client = args.connect.client();
    if args.once || args.output == Output::Json {
        return once(&args, &client).await;
    }
    anyhow::ensure!(
        io::stdout().is_terminal() && io::stdin().is_terminal(),
        "a live table needs a terminal; use --once, or -o json"
    );
    live::run(
        client,
        args.sort,
        args.output == Output::Wide,
        args.interval,
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn sample(client: &Client) -> Result<Sample, ClientError> {
    let node: NodeStats = client.get("/v1/node").await?;
    let PodList { pods } = client.get("/v1/pods").await?;
    Ok(Sample { node, pods })
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Document<'a> {
    node: &'a NodeStats,
    pods: &'a [PodRow],
}

async fn once(args: &Args, client: &Client) -> anyhow::Result<ExitCode> {
    let first = sample(client).await?;
    let second = later(client, &first, args.interval).await?;
    let mut rows = figures::rows(Some(&first), &second);
    figures::sort(&mut rows, args.sort);
    if args.output == Output::Json {
        output::print_json(&Document {
            node: &second.node,
            pods: &rows,
        })?;
    } else {
        let layout = Layout::unlimited(&rows, args.output == Output::Wide);
        output::print(&plain::render(&second.node, &rows, &layout))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A sample newer than `first`. Without requests the agent samples seldom; the first request changed that.
/// Stops waiting after a while: then the figures come without rates.
async fn later(client: &Client, first: &Sample, interval: Duration) -> Result<Sample, ClientError> {
    let deadline = tokio::time::Instant::now() + interval * 3 + Duration::from_secs(2);
    tokio::time::sleep(interval).await;
    loop {
        let next = sample(client).await?;
        if next.node.time != first.node.time || tokio::time::Instant::now() >= deadline {
            return Ok(next);
        }
        tokio::time::sleep(SHORTEST).await;
    }
}

#[cfg(test)]
mod tests;
