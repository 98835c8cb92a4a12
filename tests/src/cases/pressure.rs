//! How long the tasks of pods waited (PSI), beside the kernel's files.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use podwarden::api::types::{PodStats, PressureStats, WaitedStats, summary::Summary};

use super::{Case, Context, case};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Qos, eventually, http_get};

pub(super) const CASES: &[Case] = &[
    case("pressure_equals_files", pressure_equals_files),
    case("pressure_from_files", pressure_from_files),
];

/// How old a total may be: 2 s of the kernel's or of a reading, 1 s between two passes, and what a busy machine is late by.
const AGE: Duration = Duration::from_secs(5);

/// How long figures that stand still have to.
const REST: SignedDuration = SignedDuration::from_secs(6);

/// A figure that stays what it was is further from the file than [`AGE`].
const LONG: u64 = 7_000_000_000;

fn pressure_equals_files(context: &Context) -> Result<()> {
    equals_files(context, "iterator", &Options::default())
}

/// As on kernels without the iterator over cgroups.
fn pressure_from_files(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_DISABLE".to_owned(), "iterator".to_owned())],
        ..Options::default()
    };
    equals_files(context, "files", &options)
}

/// A cgroup's file in the memory controller's hierarchy.
fn file(cgroup: &Cgroup, name: &str) -> PathBuf {
    cgroup.mounts().memory().join(cgroup.path()).join(name)
}

/// What a cgroup's files say, which have whole microseconds. Reading them makes the kernel add up what its CPUs counted.
fn of_files(cgroup: &Cgroup) -> Result<PressureStats> {
    let of = |resource: &str| -> Result<WaitedStats> {
        let text = fs::read_to_string(file(cgroup, &format!("{resource}.pressure")))?;
        let total = |kind: &str| -> Result<u64> {
            let line = text.lines().find(|line| line.starts_with(kind));
            let line = line.with_context(|| format!("{resource}.pressure has no {kind}"))?;
            let total = line.rsplit("total=").next().context("no total")?;
            Ok(total.parse::<u64>()? * 1000)
        };
        Ok(WaitedStats {
            some_nano_seconds: total("some")?,
            full_nano_seconds: Some(total("full")?),
        })
    };
    Ok(PressureStats {
        cpu: of("cpu")?,
        memory: of("memory")?,
        io: of("io")?,
    })
}

/// Its six totals, microseconds.
fn totals(of: &PressureStats) -> [u64; 6] {
    let micros = |waited: WaitedStats| {
        let full = waited.full_nano_seconds.unwrap_or(u64::MAX);
        [waited.some_nano_seconds / 1000, full / 1000]
    };
    let [a, b, c] = [of.cpu, of.memory, of.io].map(micros);
    [a[0], a[1], b[0], b[1], c[0], c[1]]
}

/// A pod's figures and its container's, beside the cgroups that they are of.
fn beside<'a>(stats: &PodStats, pod: &'a Pod) -> Result<[(PressureStats, &'a Cgroup); 2]> {
    let main = stats.containers.first().context("no container")?;
    Ok([
        (stats.pressure.context("the pod has none")?, &pod.cgroup),
        (main.pressure.context("its container has none")?, &pod.main),
    ])
}

/// While tasks wait a figure is at most so much behind the file; no file is read before it.
fn ensure_close(node: &Node, pod: &Pod) -> Result<Duration> {
    let start = Instant::now();
    let stats = node.agent.pod(pod.uid())?;
    let mut most = 0;
    for (found, cgroup) in beside(&stats, pod)? {
        let file = of_files(cgroup)?;
        let bound = u64::try_from((AGE + start.elapsed()).as_micros())?;
        for (found, file) in totals(&found).into_iter().zip(totals(&file)) {
            let behind = file.checked_sub(found);
            ensure!(
                behind.is_some_and(|behind| behind <= bound),
                "{}: {found} us, the file says {file}",
                cgroup.path()
            );
            most = most.max(behind.unwrap_or_default());
        }
    }
    Ok(Duration::from_micros(most))
}

/// Once no task waits any more a figure is the file's; no file is read before it.
fn ensure_same(node: &Node, pod: &Pod) -> Result<()> {
    let stats = node.agent.pod(pod.uid())?;
    for (found, cgroup) in beside(&stats, pod)? {
        let (found, file) = (totals(&found), totals(&of_files(cgroup)?));
        ensure!(
            found == file,
            "{}: {found:?} us, the files say {file:?}",
            cgroup.path()
        );
    }
    Ok(())
}

/// Waits until the pods' figures have stood still for longer than the kernel's averages, the files and a pass are late by. A
/// reader asks, and reads no file of the kernel's.
fn at_rest(context: &Context, node: &Node, pods: &[&Pod]) -> Result<()> {
    let mut since: Option<(Timestamp, Vec<[u64; 6]>)> = None;
    eventually(context.limit(20), || {
        let stats = pods.iter().map(|pod| node.agent.pod(pod.uid()));
        let stats = stats.collect::<Result<Vec<_>>>()?;
        let found = stats.iter().filter_map(|one| one.pressure.as_ref());
        let found: Vec<_> = found.map(totals).collect();
        let time = stats.first().context("no pod")?.cpu.time.parse()?;
        let start = match &since {
            Some((start, before)) if *before == found => *start,
            _ => time,
        };
        since = Some((start, found));
        let rest = time.duration_since(start);
        ensure!(rest >= REST, "at rest for {rest} of {REST}");
        Ok(())
    })
}

/// The kubelet's names and units.
fn same_summary(node: &Node, pod: &Pod) -> Result<()> {
    let summary: Summary = node.agent.get("/stats/summary")?;
    let mut pods = summary.pods.into_iter();
    let found = pods.find(|one| one.pod_ref.uid.as_str() == pod.uid());
    let found = found.context("not in the summary")?;
    let psi = [
        found.cpu.and_then(|cpu| cpu.psi),
        found.memory.and_then(|memory| memory.psi),
        found.io.and_then(|io| io.psi),
    ];
    let mut of_summary = Vec::new();
    for one in psi {
        let one = one.context("no psi")?;
        let full = one.full.context("no full")?;
        of_summary.extend([one.some.total, full.total]);
    }
    let file = totals(&of_files(&pod.cgroup)?);
    ensure!(of_summary == file, "{of_summary:?}, not {file:?}");
    Ok(())
}

/// How many series of its pressure a pod has.
fn series(metrics: &str, pod: &Pod) -> usize {
    let of_pod = format!("uid=\"{}\"", pod.uid());
    let lines = metrics.lines().filter(|line| line.contains(&of_pod));
    lines
        .filter(|line| line.starts_with("podwarden_pod_pressure_"))
        .count()
}

/// No figure in any answer, where zeros would be wrong.
fn ensure_absent(node: &Node, pod: &Pod) -> Result<()> {
    let burn = pod.start(&["burn", "--for-ms", "60000"])?;
    node.expect(pod.uid(), |stats| {
        ensure!(stats.cpu.usage_core_nano_seconds > 0, "it has not run yet");
        let main = stats.containers.first().context("no container")?;
        let found = [stats.pressure, main.pressure];
        ensure!(found == [None; 2], "{found:?}");
        Ok(())
    })?;
    let text = |path| Ok::<_, anyhow::Error>(http_get(node.agent.socket(), path)?.text());
    let summary = text("/stats/summary")?;
    ensure!(!summary.contains("\"psi\""), "{summary}");
    ensure!(series(&text("/metrics")?, pod) == 0, "there are series");
    drop(burn);
    Ok(())
}

fn equals_files(context: &Context, source: &str, options: &Options) -> Result<()> {
    let options = Options {
        config: "metrics: {pods: full}\n".to_owned(),
        ..options.clone()
    };
    let node = Node::start(context, &options)?;
    let pods = node.pods(vec![
        PodSpec::new("throttled", Qos::Guaranteed, "20m", "64Mi"),
        PodSpec::limited("reclaimed", "128Mi"),
        PodSpec::best_effort("uncounted"),
        PodSpec::best_effort("empty"),
    ])?;
    let [throttled, reclaimed, uncounted, empty] = &pods[..] else {
        anyhow::bail!("four pods");
    };
    if !throttled.cgroup.mounts().memory_on_v2() {
        ensure_absent(&node, throttled)?;
        return node.finish();
    }
    fs::write(file(&uncounted.cgroup, "cgroup.pressure"), "0")?;
    // Above it the kernel has the task sleep, which counts as a wait for memory.
    fs::write(file(&reclaimed.main, "memory.high"), "8388608")?;
    let work = [
        throttled.start(&["burn"])?,
        reclaimed.start(&["anon", "--mib", "64"])?,
        uncounted.start(&["burn", "--duty", "20"])?,
    ];
    node.expect(throttled.uid(), |stats| {
        let cpu = stats.pressure.context("no pressure")?.cpu;
        ensure!(cpu.some_nano_seconds > LONG, "{cpu:?}");
        ensure!(cpu.full_nano_seconds > Some(LONG / 2), "{cpu:?}");
        Ok(())
    })?;
    node.expect(reclaimed.uid(), |stats| {
        let memory = stats.pressure.context("no pressure")?.memory;
        ensure!(memory.full_nano_seconds > Some(LONG), "{memory:?}");
        Ok(())
    })?;
    for pod in [throttled, reclaimed] {
        let behind = ensure_close(&node, pod).with_context(|| pod.spec.name.clone())?;
        context.figure(
            format!("{} behind", pod.spec.name),
            behind.as_secs_f64() * 1e3,
            "ms",
        );
    }
    let stats = node.agent.pod(uncounted.uid())?;
    let main = stats.containers.first().context("no container")?;
    ensure!(
        stats.pressure.is_none(),
        "the kernel does not count {stats:?}"
    );
    ensure!(main.pressure.is_some(), "its container has none: {main:?}");
    let text = http_get(node.agent.socket(), "/metrics")?.text();
    let found = [throttled, uncounted].map(|pod| series(&text, pod));
    ensure!(found == [6, 0], "series: {found:?}");
    drop(work);
    at_rest(context, &node, &[throttled, reclaimed])?;
    for pod in [throttled, reclaimed, empty] {
        ensure_same(&node, pod).with_context(|| pod.spec.name.clone())?;
    }
    same_summary(&node, reclaimed)?;
    let sampling = node.agent.node()?.sampling;
    ensure!(sampling.source == source, "{sampling:?}");
    node.finish()
}
