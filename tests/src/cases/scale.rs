//! What the agent itself costs.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Case, Context, case, skip, slow};
use crate::harness::{Node, Options, PodSpec, heaps_of_threads, http_get, monotonic, sleep};

pub(super) const CASES: &[Case] = &[
    case("many_pods_110_idle", many_pods_110_idle),
    slow("many_pods_110_unread", many_pods_110_unread),
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
    let heaps = heaps_of_threads(node.agent.pid())?;
    ensure!(
        heaps == 0,
        "{heaps} threads of the agent have heaps of their own"
    );
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

/// The agent without a reader: 110 pods whose tasks sleep, then four of them with a task that works each 50 ms.
fn many_pods_110_unread(context: &Context) -> Result<()> {
    const PODS: usize = 110;
    /// A reader keeps the agent at its full pace for 10 s.
    const READER_GOES: Duration = Duration::from_secs(12);
    const MEASURED: Duration = Duration::from_secs(30);
    if context.emulated() {
        return skip("what 110 pods cost is measured on a machine that is not emulated");
    }
    let node = Node::start(context, &Options::default())?;
    let all = node.pods(pods(PODS))?;
    let mut tasks = Vec::new();
    for pod in &all {
        tasks.push(pod.start(&["sleep"])?);
    }
    for (figure, working) in [("agent_cpu_unread", 0), ("agent_cpu_unread_four_work", 4)] {
        for pod in &all[..working] {
            tasks.push(pod.start(&["burn", "--duty", "1", "--for-ms", "120000"])?);
        }
        sleep(READER_GOES)?;
        let (cpu, time) = (node.agent.cpu_ns()?, monotonic());
        sleep(MEASURED)?;
        let (cpu, time) = (node.agent.cpu_ns()? - cpu, monotonic() - time);
        context.figure(figure, 100.0 * cpu as f64 / time as f64, "% of a core");
    }
    ensure!(node.agent.pods()?.len() == PODS, "not every pod is listed");
    drop(tasks);
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
