//! A protected pod's latency beside best-effort work, by what keeps the two apart, in one run.
//!
//! | keeper | what it is |
//! |---|---|
//! | `alone` | no best-effort work |
//! | `weights` | the cgroups' weights as the kubelet sets them, and no agent |
//! | `koordlet` | the same, with the koordlet's laws for suppression and burst carried out once a second, see [`laws`] |
//! | `idle` | the same weights, and `cpu.idle` of the tier |
//! | `sched-idle` | the same, and SCHED_IDLE of each best-effort task |
//! | `slice` | the same, and a slice of 0.1 ms of each task of the protected pod (Linux 6.12) |
//! | `slices` | the same, and such a slice of each best-effort task as well |
//! | `real-time` | the same, and SCHED_FIFO of each task of the protected pod: what is left is the machine's |
//! | `quota` | the same, and a quota of the tier of half the node |
//! | `cpus` | the same, and half of the CPUs for the tier |
//! | `own` | podwarden with `cpuBurstStrategy`, which owns the cgroups |
//! | `assist` | the same beside what is taken for a kubelet, which owns them |
//! | `wait` | as `own`, and with `cpuWaitStrategy` at an objective of 1 ms |
//!
//! Latency is the time from when a piece of work was due until it was done. Best-effort work begins all at once while the
//! protected pod works; the quantiles are of what was due 2 s later and after. Each is the median of those of all runs:
//! on a machine that shares its host, a run in which the host took a CPU away tells of the host alone.
//!
//! The pods' root has the weight beside the node's other processes that a kubelet gives `kubepods`, or a multiple of it.
//!
//! `BACK` is how long after the best-effort work began a second begins in which p99 is at most 1.15 times that of the work
//! alone. The free CPU is what the machine has without what the protected pod and everything outside the two pods use.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::cases::Context;
use crate::harness::{catch_signals, check_interrupt};

mod client;
mod laws;
mod mechanism;
mod report;
mod scene;

#[derive(Debug, clap::Args)]
pub(super) struct Cpu {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// What the protected pod does.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = App::value_variants().to_vec())]
    app: Vec<App>,
    /// What the best-effort pod does.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Load::value_variants().to_vec())]
    load: Vec<Load>,
    /// What keeps the two apart.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Keeper::COMPARED)]
    keeper: Vec<Keeper>,
    /// Whether the protected pod has a CPU limit, of 500m.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Limit::value_variants().to_vec())]
    limit: Vec<Limit>,
    /// The weight of the cgroup above all pods, times that of `kubepods`.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    root_weight: u64,
    /// How long each run measures.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Runs of each kind, in turn; the medians of their figures are shown.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Also writes every figure to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What the protected pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
enum App {
    /// 0.5 ms of work every 2 ms.
    Probe,
    /// A server over loopback TCP: 500 requests a second at random times, 0.5 ms of work each.
    Server,
    /// 90 ms of work every 500 ms.
    Bursts,
}

/// What the best-effort pod does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
enum Load {
    /// 6 threads that never rest.
    Hogs,
    /// 64 threads that never rest.
    Threads,
    /// Processes that live for 2 ms, 32 at a time.
    Forks,
    /// 6 threads, each of which writes through 64 MiB again and again.
    Streams,
    /// As hogs, of a pod that has asked for all CPUs as batch-cpu and has their weight.
    Batch,
}

/// What keeps the two apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
enum Keeper {
    /// There is no best-effort work.
    Alone,
    /// Weights as the kubelet sets them.
    Weights,
    /// These and the koordlet's laws, once a second.
    Koordlet,
    /// These and the tier's `cpu.idle`.
    Idle,
    /// These and SCHED_IDLE of each best-effort task.
    SchedIdle,
    /// These and a short slice of each protected task.
    Slice,
    /// These and a short slice of each task of both pods.
    Slices,
    /// These and real-time priority of the protected pod's tasks: what is left is the machine's.
    RealTime,
    /// These and a quota of the tier.
    Quota,
    /// These and the tier on half of the CPUs.
    Cpus,
    /// podwarden with burst, which owns the cgroups.
    Own,
    /// podwarden with burst beside what is taken for a kubelet.
    Assist,
    /// podwarden with burst, and holding best effort back when the protected pod waits.
    Wait,
}

impl Keeper {
    /// What there is to choose from on a node.
    const COMPARED: [Self; 5] = [
        Self::Alone,
        Self::Weights,
        Self::Koordlet,
        Self::Own,
        Self::Assist,
    ];

    /// Whether an agent runs in the end.
    fn is_podwarden(self) -> bool {
        matches!(self, Self::Own | Self::Assist | Self::Wait)
    }
}

/// Whether the protected pod has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
enum Limit {
    /// None.
    None,
    /// 500m.
    #[value(name = "500m")]
    #[serde(rename = "500m")]
    Half,
}

/// The name on the command line.
fn name(value: impl ValueEnum + Copy) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Setting {
    app: App,
    limit: Limit,
    load: Load,
    keeper: Keeper,
    /// See [`Cpu::root_weight`].
    root_weight: u64,
}

impl Cpu {
    pub(super) fn run(&self) -> Result<()> {
        catch_signals()?;
        let agent = std::fs::canonicalize(&self.agent)
            .with_context(|| format!("find {}", self.agent.display()))?;
        let context = Context::of_bench(&agent);
        let mut rows: Vec<report::Row> = self.settings().map(report::Row::new).collect();
        // In turn, so that the machine's drift meets all of them alike.
        for run in 1..=self.runs {
            for row in &mut rows {
                check_interrupt()?;
                let measured = scene::measure(&context, row.setting, self.seconds);
                let measured = measured.with_context(|| format!("run {run} of {row}"))?;
                row.add(measured);
                eprintln!("{row}");
            }
        }
        report::print(&rows, self.runs, self.seconds);
        match &self.json {
            Some(path) => report::write(path, &rows),
            None => Ok(()),
        }
    }

    /// Work that is alone is beside no load: one row for all of them.
    fn settings(&self) -> impl Iterator<Item = Setting> {
        let mut settings: Vec<Setting> = Vec::new();
        for &app in &self.app {
            for &limit in &self.limit {
                for &load in &self.load {
                    for &keeper in &self.keeper {
                        let is_alone = |one: &Setting| {
                            keeper == Keeper::Alone
                                && (one.app, one.limit, one.keeper) == (app, limit, keeper)
                        };
                        if !settings.iter().any(is_alone) {
                            settings.push(Setting {
                                app,
                                limit,
                                load,
                                keeper,
                                root_weight: self.root_weight,
                            });
                        }
                    }
                }
            }
        }
        settings.into_iter()
    }
}
