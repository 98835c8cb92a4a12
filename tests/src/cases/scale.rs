//! What the agent itself costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Case, Context, case, skip, slow};
use crate::harness::{Node, Options, PodSpec, http_get, monotonic, sleep};

pub(super) const CASES: &[Case] = &[
    case("many_pods_110_idle", many_pods_110_idle),
    slow("many_pods_1000", many_pods_1000),
];

fn pods(count: usize) -> Vec<PodSpec> {
    (0..count)
        .map(|n| match n % 2 {
            0 => PodSpec::burstable(&format!("burstable-{n}"), "8Mi"),
            _ => PodSpec::best_effort(&format!("besteffort-{n}")),
        })
        .collect()
}

/// Reads `/v1/pods` some times; the median and the longest, milliseconds.
fn latency(node: &Node, count: usize) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        let answer = http_get(node.agent.socket(), "/v1/pods")?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.status == 200, "GET /v1/pods: {}", answer.status);
    }
    let listed = node.agent.pods()?.len();
    ensure!(listed == count, "{listed} pods of {count} are listed");
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], times[times.len() - 1]))
}

fn many_pods_110_idle(context: &Context) -> Result<()> {
    const PODS: usize = 110;
    if context.emulated() && !context.include_slow() {
        return skip("what 110 pods cost is measured on a machine that is not emulated");
    }
    let node = Node::start(context, &Options::default())?;
    let all = node.pods(pods(PODS))?;
    let sleepers: Vec<_> = all
        .iter()
        .map(|pod| pod.start(&["sleep"]))
        .collect::<Result<_>>()?;
    // What starting took is not idling.
    sleep(Duration::from_secs(3))?;
    let (cpu, time) = (node.agent.cpu_ns()?, monotonic());
    sleep(Duration::from_secs(10))?;
    let (cpu, time) = (node.agent.cpu_ns()? - cpu, monotonic() - time);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (rss, anonymous) = (mib(node.agent.rss()?), mib(node.agent.anonymous()?));
    context.figure(
        "agent_cpu_idle",
        100.0 * cpu as f64 / time as f64,
        "% of a core",
    );
    context.figure("agent_rss", rss, "MiB");
    context.figure("agent_anonymous", anonymous, "MiB");
    let (median, longest) = latency(&node, PODS)?;
    context.figure("get_pods_median", median, "ms");
    context.figure("get_pods_longest", longest, "ms");
    // Its code and constants are locked: 22 MiB where they are built without link-time optimisation.
    ensure!(
        rss <= 40.0 && anonymous <= 14.0,
        "the agent has {rss:.1} MiB resident, {anonymous:.1} of them of its own, not at most 40 and 14"
    );
    drop(sleepers);
    node.finish()
}

fn many_pods_1000(context: &Context) -> Result<()> {
    const PODS: usize = 1000;
    if context.emulated() {
        return skip("a thousand pods are measured on a machine that is not emulated");
    }
    let node = Node::start(context, &Options::default())?;
    node.pods(pods(PODS))?;
    let (median, longest) = latency(&node, PODS)?;
    context.figure("get_pods_median", median, "ms");
    context.figure("get_pods_longest", longest, "ms");
    context.figure(
        "agent_rss",
        node.agent.rss()? as f64 / f64::from(1 << 20),
        "MiB",
    );
    node.finish()
}
