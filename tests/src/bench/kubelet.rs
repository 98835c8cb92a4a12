//! A real kubelet with podwarden beside it and without: the same pods, the same filler, seen from outside.
//!
//! The kubelet acts below its own threshold and podwarden below its own, so every figure is of the threshold of the one
//! that is to act: the crossing is the moment at which the working set of `kubepods` passes that, as read here, and the
//! kill is the kernel's own time of the first signal to the filler that ends it.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::isolate::{Isolation, run_again};
use super::trace::Trace;
use crate::cases::Context;
use crate::harness::{
    Cgroup, catch_signals, check_interrupt, eventually, monotonic, remove_stale, sleep,
};
use crate::kubernetes::{Cluster, Pod};

const MIB: u64 = 1 << 20;
/// The kubelet's own threshold in the cluster, and podwarden's here, MiB.
const KUBELET: u64 = 50;
const PODWARDEN: u64 = 128;
/// Between two looks at the pods' memory.
const LOOK: Duration = Duration::from_micros(500);
/// A kubelet looks every 10 s (`monitoringInterval`), and starts a container again at once and 10 s later.
const WATCHED: Duration = Duration::from_secs(25);
/// What the filling process is called.
const FILLER: &str = "fill";
const LIMIT: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, clap::Args)]
pub(super) struct Kubelet {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// How fast the filler fills, MiB/s.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: u64,
    /// Runs of each kind, in turn.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Writes every run to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Set where the benchmark has isolated itself.
    #[arg(long, hide = true)]
    isolated: bool,
}

/// One run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    podwarden: bool,
    /// From the crossing to the first signal that ends a process of the filler; `None` without one. Negative where it
    /// was killed before, of headroom.
    to_kill_ms: Option<f64>,
    /// Who sent it, by name; a process of the filler's own where the kernel's OOM killer did.
    killed_by: String,
    /// How far the working set got past the threshold, MiB; negative before.
    overshoot_mib: f64,
    /// The pods that lost a container, by name.
    ended: Vec<String>,
    /// How often a container was started again.
    restarts: u64,
    /// The filler's phase and reason in the end.
    filler: String,
}

impl Kubelet {
    pub(super) fn run(&self) -> Result<()> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "the benchmark makes cgroups and reads the kernel's trace: run it as root"
        );
        if !self.isolated {
            remove_stale()?;
            return run_again(Isolation::Mounts);
        }
        catch_signals()?;
        let agent = std::fs::canonicalize(&self.agent)
            .with_context(|| format!("find {}", self.agent.display()))?;
        let context = Context::of_bench(&agent);
        let mut runs = Vec::new();
        // What was measured until then is worth a look all the same.
        let ended = self.measure(&context, &mut runs);
        print!("{}", table(&runs));
        if let Some(path) = &self.json {
            let text = serde_json::to_string(&runs)? + "\n";
            std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
        }
        ended
    }

    fn measure(&self, context: &Context, runs: &mut Vec<Run>) -> Result<()> {
        // It mounts, and the cluster's mounts are to begin as ours are now.
        let trace = Trace::start()?;
        let filter = format!("(sig == 9 || sig == 15) && comm == \"{FILLER}\"");
        trace.enable("signal/signal_generate", &filter)?;
        let cluster = context.kubernetes()?;
        for _ in 0..self.runs {
            for podwarden in [false, true] {
                check_interrupt()?;
                cluster.clear()?;
                match podwarden {
                    false => cluster.without_agent()?,
                    true => cluster.agent_with(enforcing)?,
                }
                runs.push(self.once(&cluster, &trace, podwarden)?);
            }
        }
        cluster.clear()?;
        drop(cluster);
        let cluster = Rc::into_inner(context.take_kubernetes()?);
        cluster.context("the cluster is kept")?.stop()
    }

    fn once(&self, cluster: &Cluster, trace: &Trace, podwarden: bool) -> Result<Run> {
        let guaranteed = Pod::holding("guaranteed", 64).requesting("96Mi", true);
        let burstable = Pod::holding("burstable", 96).requesting("128Mi", false);
        let pods = [
            guaranteed,
            burstable,
            Pod::holding("small", 16),
            Pod::filler("filler", 1400, self.rate),
        ];
        let uids = pods.iter().map(|pod| cluster.run(pod));
        let uids = uids.collect::<Result<Vec<_>>>()?;
        for pod in &pods {
            cluster.running(pod.name())?;
        }
        let filler = uids.last().context("no filler")?;
        if podwarden {
            eventually(LIMIT, || cluster.pod_stats(filler).map(drop))?;
        }
        let kubepods = cluster.kubepods();
        let limit = std::fs::read_to_string(kubepods.memory_limit_file())?;
        let limit: u64 = limit.trim().parse().context("kubepods has no limit")?;
        let threshold = MIB * if podwarden { PODWARDEN } else { KUBELET };
        trace.clear()?;
        let level = limit.saturating_sub(threshold);
        let watching = Watching::start(kubepods, level);
        cluster.go("filler")?;
        sleep(WATCHED)?;
        let (crossed, most) = watching.end()?;
        let first = trace.read()?.into_iter().next();
        // Killed of headroom, it never crossed the threshold: such a kill counts as one at the crossing.
        let killed = first.as_ref().map(|entry| entry.nanos);
        let crossed = crossed.or(killed).context("the filler did not fill")?;
        let apart = |at: u64| at.cast_signed() - crossed.cast_signed();
        let mut ended = Vec::new();
        let mut restarts = 0;
        for pod in &pods {
            let status = cluster.pod(pod.name())?["status"].take();
            let again = status["containerStatuses"][0]["restartCount"].as_u64();
            restarts += again.unwrap_or(0);
            if status["phase"] != "Running" || again.is_some_and(|times| times > 0) {
                ended.push(pod.name().to_owned());
            }
        }
        let status = cluster.pod("filler")?["status"].take();
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        Ok(Run {
            podwarden,
            to_kill_ms: first.as_ref().map(|entry| apart(entry.nanos) as f64 / 1e6),
            killed_by: first.map_or_else(|| "nothing".to_owned(), |entry| entry.by),
            overshoot_mib: (most.cast_signed() - level.cast_signed()) as f64 / MIB as f64,
            ended,
            restarts,
            filler: format!("{} {}", text("phase"), text("reason"))
                .trim()
                .to_owned(),
        })
    }
}

/// The shipped configuration, enforced, with this benchmark's threshold.
fn enforcing(shipped: &str) -> String {
    let threshold = format!("memory.available: {PODWARDEN}Mi");
    shipped
        .replace("mode: observe", "mode: enforce")
        .replace("memory.available: 500Mi", &threshold)
}

/// The time at which the level was first passed, and the most that was used, bytes.
type Passed = (Option<u64>, u64);

/// Reads the working set of a cgroup.
struct Watching {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<Passed>,
}

impl Watching {
    fn start(cgroup: Cgroup, level: u64) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let thread = thread::spawn(move || {
            let (mut crossed, mut most) = (None, 0);
            while !until.load(Ordering::Relaxed) {
                if let Ok(memory) = cgroup.memory() {
                    let used = memory.working_set();
                    most = most.max(used);
                    if used >= level && crossed.is_none() {
                        crossed = Some(monotonic());
                    }
                }
                thread::sleep(LOOK);
            }
            (crossed, most)
        });
        Self { ended, thread }
    }

    fn end(self) -> Result<Passed> {
        self.ended.store(true, Ordering::Relaxed);
        let passed = self.thread.join();
        Ok(passed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

/// Medians and extremes of each kind of run.
fn table(runs: &[Run]) -> String {
    let mut text = format!(
        "{:<24} {:>5} {:>24} {:>22} {:>22} {:>9}\n",
        "",
        "RUNS",
        "TO THE KILL ms p50/max",
        "OVERSHOOT MiB p50/max",
        "OTHER PODS ENDED /run",
        "RESTARTS"
    );
    for podwarden in [false, true] {
        let of: Vec<_> = runs
            .iter()
            .filter(|run| run.podwarden == podwarden)
            .collect();
        if of.is_empty() {
            continue;
        }
        let name = match podwarden {
            false => "kubelet alone",
            true => "kubelet and podwarden",
        };
        let kills = of.iter().filter_map(|run| run.to_kill_ms);
        let others = of.iter().flat_map(|run| &run.ended);
        let others = others.filter(|name| *name != "filler").count();
        text += &format!(
            "{name:<24} {:>5} {:>24} {:>22} {:>22.2} {:>9.2}\n",
            of.len(),
            spread(kills.collect()),
            spread(of.iter().map(|run| run.overshoot_mib).collect()),
            others as f64 / of.len() as f64,
            of.iter().map(|run| run.restarts).sum::<u64>() as f64 / of.len() as f64,
        );
        let mut killers: Vec<_> = of.iter().map(|run| run.killed_by.as_str()).collect();
        let mut ends: Vec<_> = of.iter().map(|run| run.filler.as_str()).collect();
        for (what, names) in [("killed by", &mut killers), ("the filler is", &mut ends)] {
            names.sort_unstable();
            text += &format!("  {what}: {}\n", counted(names));
        }
    }
    text
}

fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    match values.last() {
        Some(most) => format!("{:.2} / {most:.2}", values[values.len() / 2]),
        None => "-".to_owned(),
    }
}

/// How often each of some sorted names is there.
fn counted(names: &[&str]) -> String {
    let groups = names.chunk_by(|a, b| a == b);
    let groups = groups.map(|group| format!("{} ({})", group[0], group.len()));
    groups.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_a_row_for_each_kind_with_what_counts() {
        let run = |podwarden, to_kill_ms: Option<f64>, ended: &[&str], restarts| Run {
            podwarden,
            to_kill_ms,
            killed_by: if podwarden { "reactor" } else { "e2e" }.to_owned(),
            overshoot_mib: 2.0,
            ended: ended.iter().map(|&name| name.to_owned()).collect(),
            restarts,
            filler: if podwarden {
                "Failed Evicted"
            } else {
                "Running"
            }
            .to_owned(),
        };
        let runs = [
            run(false, Some(90.0), &["filler"], 2),
            run(false, Some(110.0), &["filler", "small"], 3),
            run(true, Some(-0.5), &["filler"], 0),
        ];
        let table = table(&runs);
        let rows: Vec<_> = table.lines().collect();
        assert_eq!(rows.len(), 7, "{table}");
        for (row, parts) in [
            (1, ["kubelet alone", "110.00 / 110.00", "0.50", "2.50"]),
            (
                4,
                ["kubelet and podwarden", "-0.50 / -0.50", "0.00", "0.00"],
            ),
        ] {
            assert!(parts.iter().all(|part| rows[row].contains(part)), "{table}");
        }
        assert_eq!(rows[2], "  killed by: e2e (2)");
        assert_eq!(rows[6], "  the filler is: Failed Evicted (1)");
        assert_eq!(spread(Vec::new()), "-");
    }
}
