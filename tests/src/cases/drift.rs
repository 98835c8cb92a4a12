//! What others write to files that the agent keeps.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{Event, EventKind, ForeignWriteStats};
use podwarden_policy::Bytes;
use podwarden_policy::drift::{BURST, FIRST_PAUSE, LONGEST_PAUSE, REFILL};

use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, check_interrupt, eventually, monotonic, sleep};
use assist::assist_fights_nothing;
pub(super) use files::kept_files;
use files::{File, files, is_limit, is_share, mixed};
use oom_score::oom_score_adj_of_processes;

mod assist;
mod files;
mod oom_score;

pub(super) const CASES: &[Case] = &[
    portable("foreign_writes_are_corrected", foreign_writes_are_corrected),
    portable(
        "foreign_writes_to_a_reserve_are_corrected",
        foreign_writes_to_a_reserve_are_corrected,
    ),
    portable(
        "insisting_writer_is_no_write_fight",
        insisting_writer_is_no_write_fight,
    ),
    portable("assist_fights_nothing", assist_fights_nothing),
    portable("oom_score_adj_of_processes", oom_score_adj_of_processes),
];

fn corrected(drift: &ForeignWriteStats) -> u64 {
    drift.properties.iter().map(|count| count.corrected).sum()
}

/// The agent's own figure, which is as old as its last sampling pass.
fn drift_of(node: &Node) -> Result<ForeignWriteStats> {
    Ok(node.agent.node()?.foreign_writes)
}

fn foreign_writes_are_corrected(context: &Context) -> Result<()> {
    const WRITES: usize = 50;
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(mixed(15))?;
    let seed = monotonic();
    let mut files = kept_files(&node, &pods)?;
    let mut random = fastrand::Rng::with_seed(seed);
    random.shuffle(&mut files);
    // The tiers' are always among them: another part of the agent writes those limits.
    files.sort_by_key(|file| !is_of_tier(&file.path));
    ensure!(
        files.len() >= WRITES,
        "{} files are too few: {files:?}",
        files.len()
    );
    files.truncate(WRITES);
    random.shuffle(&mut files);
    let mut times = Vec::with_capacity(WRITES);
    for file in &files {
        let time = correction(context, file).with_context(|| format!("seed {seed}"))?;
        times.push(time);
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    context.figure("correction_median", ms(times[WRITES / 2]), "ms");
    context.figure("correction_p90", ms(times[WRITES * 9 / 10]), "ms");
    context.figure("correction_worst", ms(times[WRITES - 1]), "ms");
    // A tier's is written by another thread than tells of it.
    eventually(node.limit(), || {
        let told = drift_events(&node.agent.events(0)?).count();
        ensure!(
            told == WRITES,
            "{told} events about {WRITES} foreign writes, seed {seed}"
        );
        Ok(())
    })?;
    eventually(node.limit(), || {
        let drift = drift_of(&node)?;
        ensure!(corrected(&drift) == WRITES as u64, "{drift:?}");
        ensure!(drift.contested_files == 0, "{drift:?}");
        // kubepods, two tiers and the pods.
        ensure!(drift.watched_cgroups == 18, "{drift:?}");
        Ok(())
    })?;
    node.finish()
}

fn is_of_tier(path: &Path) -> bool {
    let tiers = ["burstable", "besteffort"];
    path.parent()
        .is_some_and(|cgroup| tiers.iter().any(|tier| cgroup.ends_with(tier)))
}

/// Writes the foreign value and waits until it is put right; how long that took.
fn correction(context: &Context, file: &File) -> Result<Duration> {
    let start = Instant::now();
    file.spoil()?;
    while !file.is_kept()? {
        check_interrupt()?;
        let (waited, found) = (start.elapsed(), file.read()?);
        ensure!(
            waited < context.limit(20),
            "{} still holds {found:?} and not {:?}",
            file.path.display(),
            file.kept
        );
        thread::sleep(Duration::from_micros(100));
    }
    Ok(start.elapsed())
}

/// Limits that follow a target are put right as well, up and down, and each foreign write is told once.
fn foreign_writes_to_a_reserve_are_corrected(context: &Context) -> Result<()> {
    const ROUNDS: usize = 2;
    let options = Options {
        memory: "8Gi".to_owned(),
        config: "qosReserved: {memory: 100%}\n".to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    // Targets on either side of the foreign value.
    node.pods(vec![
        PodSpec::guaranteed("g", "2Gi"),
        PodSpec::burstable("b", "4Gi"),
    ])?;
    let mut limits = Vec::new();
    for (tier, target) in [("burstable", 6), ("besteffort", 2)] {
        let limit = files(&node.tier(tier)?, is_limit)?;
        let limit = limit.into_iter().next().context("no limit")?;
        let kept = format!("{}\n", Bytes::gibi(target).0);
        eventually(node.limit(), || {
            let found = limit.read()?;
            ensure!(found == kept, "{tier} holds {found} and not {kept}");
            Ok(())
        })?;
        limits.push(File { kept, ..limit });
    }
    for _ in 0..ROUNDS {
        for limit in &limits {
            correction(context, limit)?;
        }
    }
    eventually(node.limit(), || {
        let told = drift_events(&node.agent.events(0)?).count();
        ensure!(told == 2 * ROUNDS, "{told} events");
        Ok(())
    })?;
    node.finish()
}

fn drift_events(events: &[Event]) -> impl Iterator<Item = &Event> {
    events.iter().filter(|event| {
        matches!(
            event.kind,
            EventKind::ForeignWrite {
                corrected: true,
                ..
            }
        )
    })
}

/// The most that the documented rate allows in `time`.
fn bound(time: Duration) -> u64 {
    let doublings = (LONGEST_PAUSE.as_secs() / FIRST_PAUSE.as_secs()).ilog2();
    u64::from(BURST)
        + time.as_secs() / REFILL.as_secs()
        + u64::from(doublings)
        + 1
        + time.as_secs() / LONGEST_PAUSE.as_secs()
}

fn insisting_writer_is_no_write_fight(context: &Context) -> Result<()> {
    const INSISTS: Duration = Duration::from_millis(2500);
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(mixed(3))?;
    let contested = &files(&pods[0].cgroup, is_limit)?[0];
    let other = &files(&pods[1].cgroup, is_share)?[0];
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let cpu = node.agent.cpu_ns()?;
    let (writes, met) = thread::scope(|scope| -> Result<(u32, Duration)> {
        let writer = scope.spawn(|| insist(contested, &done));
        let met: Result<_> = (|| {
            sleep(INSISTS / 2)?;
            // Meanwhile others are not forgotten.
            let start = Instant::now();
            other.spoil()?;
            eventually(node.limit(), || {
                ensure!(other.is_kept()?, "it holds {}", other.read()?);
                Ok(())
            })?;
            let met = start.elapsed();
            sleep(INSISTS / 2)?;
            Ok(met)
        })();
        done.store(true, Ordering::Relaxed);
        let writes = writer
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the writer panicked")));
        Ok((writes?, met?))
    })?;
    let cpu = node.agent.cpu_ns()? - cpu;
    let share = cpu as f64 / start.elapsed().as_nanos() as f64;
    context.figure("foreign_writes", f64::from(writes), "");
    context.figure("agent_cpu_meanwhile", share * 100.0, "%");
    context.figure("other_file_corrected", met.as_secs_f64() * 1e3, "ms");
    ensure!(writes > 500, "only {writes} writes are no fight");
    // One pause at the most after the last write.
    eventually(LONGEST_PAUSE, || {
        ensure!(contested.is_kept()?, "it holds {}", contested.read()?);
        Ok(())
    })?;
    let time = start.elapsed();
    let settled = eventually(LONGEST_PAUSE, || {
        let events = node.agent.events(0)?;
        ensure!(
            events.iter().any(is_settled),
            "no ForeignWriteSettled event"
        );
        Ok(events)
    })?;
    let begun = settled.iter().filter(|event| {
        matches!(&event.kind, EventKind::ForeignWriteContested { property, .. } if property == "memory limit")
    });
    ensure!(begun.count() == 1, "not one ForeignWriteContested event");
    let told = drift_events(&settled).count() as u64;
    ensure!(
        told <= u64::from(BURST) + time.as_secs() / REFILL.as_secs() + 1,
        "{told} events about single corrections"
    );
    eventually(node.limit(), || {
        let drift = drift_of(&node)?;
        let limits = drift
            .properties
            .iter()
            .find(|count| count.property == "memory limit");
        let limits = limits.context("no memory limit was corrected")?;
        ensure!(limits.contests == 1, "{limits:?}");
        ensure!(drift.contested_files == 0, "{drift:?}");
        ensure!(
            limits.corrected <= bound(time),
            "{limits:?} in {time:?}, at most {} are allowed",
            bound(time)
        );
        context.figure("corrections", limits.corrected as f64, "");
        Ok(())
    })?;
    node.finish()
}

fn is_settled(event: &Event) -> bool {
    matches!(event.kind, EventKind::ForeignWriteSettled { .. })
}

/// Writes the foreign value as fast as it can; returns how often.
fn insist(file: &File, done: &AtomicBool) -> Result<u32> {
    use std::io::Write as _;
    let open = fs::OpenOptions::new().write(true).open(&file.path);
    let mut open = open.with_context(|| format!("open {}", file.path.display()))?;
    let mut writes = 0;
    while !done.load(Ordering::Relaxed) {
        open.write_all(file.foreign.as_bytes())
            .with_context(|| format!("write to {}", file.path.display()))?;
        writes += 1;
    }
    Ok(writes)
}
