//! What polling does not see: short peaks, and a pod that reaches its memory limit.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{Event, EventKind, PodStats};

use super::{Case, Context, case};
use crate::harness::{Node, Options, Pod, PodSpec, eventually, http_get};

pub(super) const CASES: &[Case] = &[
    case("short_peak_is_seen", short_peak_is_seen),
    case("near_limit_before_oom_kill", near_limit_before_oom_kill),
    case("near_limit_once", near_limit_once),
];

const MIB: u64 = 1 << 20;

/// Memory that is there for no longer than it takes to touch it.
fn short_peak_is_seen(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::best_effort("short"))?;
    let mut short = pod.start(&["anon", "--mib", "300", "--for-ms", "0"])?;
    ensure!(short.wait(context.limit(30))?.success(), "no 300 MiB");
    node.expect(pod.uid(), |stats| {
        let memory = stats.memory.clone().context("no memory")?;
        ensure!(memory.usage_bytes < 150 * MIB, "{memory:?}");
        ensure!(memory.peak_bytes >= Some(300 * MIB), "{memory:?}");
        let main = stats.containers.first().context("no container")?;
        let peak = main.memory.as_ref().and_then(|memory| memory.peak_bytes);
        ensure!(peak >= Some(300 * MIB), "the container's peak is {peak:?}");
        Ok(())
    })?;
    let since = |time: &str| -> Result<(u64, String)> {
        let path = format!("/v1/pods/{}?peakSince={time}", pod.uid());
        let answer = http_get(node.agent.socket(), &path)?;
        ensure!(answer.status == 200, "GET {path}: {}", answer.text());
        let pod: PodStats = serde_json::from_str(&answer.text())?;
        let main = pod.containers.first().context("no container")?;
        let memory = pod.memory.as_ref().context("no memory")?;
        let peak = memory.peak_since_bytes.context("no peak")?;
        let of_main = main.memory.as_ref().and_then(|m| m.peak_since_bytes);
        let of_main = of_main.context("no peak of the container")?;
        ensure!(of_main <= peak, "container {of_main}, pod {peak}");
        Ok((peak, memory.time.to_string()))
    };
    // Two readers: what the first has had stays there for the second.
    let begin = "2020-01-01T00:00:00Z";
    let (peak, time) = since(begin)?;
    ensure!(peak >= 300 * MIB, "peak since the beginning: {peak}");
    eventually(node.limit(), || {
        let (peak, now) = since(&time)?;
        ensure!(now > time && peak < 150 * MIB, "since {time}: {peak}");
        Ok(())
    })?;
    ensure!(since(begin)?.0 == peak, "another reader took the peak away");
    let wrong = http_get(node.agent.socket(), "/v1/pods?peakSince=yesterday")?;
    ensure!(wrong.status == 400, "{}: {}", wrong.status, wrong.text());
    node.finish()
}

/// The pod's events of its own limit: id, percent, usage and limit.
fn near(events: &[Event], pod: &Pod) -> Vec<(u64, u32, u64, u64)> {
    let of_pod = events.iter().filter(|event| {
        let of = event.pod.as_ref().map(|pod| pod.uid.as_str());
        of == Some(pod.uid())
    });
    of_pod
        .filter_map(|event| match &event.kind {
            EventKind::MemoryNearLimit {
                container: None,
                percent,
                usage_bytes,
                limit_bytes,
            } => Some((event.id, *percent, *usage_bytes, *limit_bytes)),
            _ => None,
        })
        .collect()
}

fn near_limit_before_oom_kill(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::limited("filler", "96Mi"))?;
    let mut filler = pod.start(&["fill", "--mib", "256", "--rate", "500"])?;
    let status = filler.wait(context.limit(30))?;
    ensure!(!status.success(), "the kernel let it have 256 MiB of 96");
    let pid = filler.pid();
    let (events, killed) = eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        let killed = events
            .iter()
            .find(|event| matches!(event.kind, EventKind::KernelOom { pid: p } if p == pid));
        let killed = killed.context("no KernelOom event")?.id;
        Ok((events, killed))
    })?;
    let near = near(&events, &pod);
    let last = near.last().context("no MemoryNearLimit event")?;
    let (id, percent, usage, limit) = *last;
    ensure!(id < killed, "{near:?} after the kill, event {killed}");
    ensure!((percent, limit) == (95, 96 * MIB), "{near:?}");
    ensure!(usage * 100 >= limit * 95, "{near:?}");
    node.finish()
}

/// Usage that comes to a part of its limit again is no news; a new limit is.
fn near_limit_once(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::limited("limited", "64Mi"))?;
    for _ in 0..2 {
        let held = pod.start(&["anon", "--mib", "54"])?;
        node.expect(pod.uid(), |stats| {
            let usage = stats.memory.as_ref().map(|memory| memory.usage_bytes);
            ensure!(usage >= Some(54 * MIB), "{usage:?}");
            Ok(())
        })?;
        let found = eventually(node.limit(), || {
            let found = near(&node.agent.events(0)?, &pod);
            ensure!(!found.is_empty(), "no MemoryNearLimit event");
            Ok(found)
        })?;
        let percents: Vec<_> = found.iter().map(|one| one.1).collect();
        ensure!(percents == [80], "{found:?}");
        drop(held);
        eventually(node.limit(), || {
            let usage = pod.cgroup.memory()?.usage;
            ensure!(usage < 32 * MIB, "the pod still uses {usage}");
            Ok(())
        })?;
    }
    node.finish()
}
