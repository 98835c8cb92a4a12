//! Processes that end: how, and to whom they are counted.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;

use super::{Case, Context, case, close_cpu, cpu_gap};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, sleep};

pub(super) const CASES: &[Case] = &[
    case("exits_codes_and_signals", exits_codes_and_signals),
    case("threads_are_not_processes", threads_are_not_processes),
    case(
        "nested_cgroup_counts_to_container",
        nested_cgroup_counts_to_container,
    ),
    case("process_moved_between_pods", process_moved_between_pods),
];

fn exits_codes_and_signals(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("exits", "64Mi"))?;
    for args in [
        &[
            "storm",
            "--count",
            "6",
            "--codes",
            "0,1,7",
            "--busy-us",
            "100",
        ][..],
        &[
            "storm",
            "--count",
            "4",
            "--signals",
            "9,15,11,6",
            "--busy-us",
            "100",
        ],
    ] {
        pod.start(args)?.done(context.limit(30))?;
    }
    node.expect(pod.uid(), |stats| {
        let exits = &stats.exits;
        let found = (exits.total, exits.failed, exits.signaled, exits.oom_killed);
        // Ten processes and the two that started them.
        ensure!(found == (12, 4, 4, 0), "exits: {exits:?}");
        ensure!(
            stats.containers.iter().map(|c| c.exits.total).sum::<u64>() == 12,
            "per container"
        );
        Ok(())
    })?;
    let mut codes = Vec::new();
    let mut signals = Vec::new();
    for event in node.agent.events(0)? {
        if let EventKind::ProcessExit {
            exit_code, signal, ..
        } = event.kind
        {
            ensure!(
                exit_code.is_some() != signal.is_some(),
                "both or neither: {event:?}"
            );
            ensure!(
                event.pod.as_ref().is_some_and(|p| p.uid == pod.uid()),
                "pod: {event:?}"
            );
            codes.extend(exit_code);
            signals.extend(signal);
        }
    }
    codes.sort_unstable();
    signals.sort_unstable();
    ensure!(codes == [0, 0, 0, 0, 1, 1, 7, 7], "exit codes {codes:?}");
    ensure!(signals == [6, 9, 11, 15], "signals {signals:?}");
    node.finish()
}

fn threads_are_not_processes(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("threads", "64Mi"))?;
    pod.start(&["burn", "--threads", "8", "--for-ms", "200"])?
        .wait(context.limit(30))?;
    node.expect(pod.uid(), |stats| {
        ensure!(
            stats.exits.total == 1,
            "{} exits of one process",
            stats.exits.total
        );
        close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
    })?;
    node.finish()
}

fn nested_cgroup_counts_to_container(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::guaranteed("nests", "128Mi"),
        PodSpec::best_effort("nests-too"),
    ])?;
    for pod in &pods {
        // What systemd or a container engine inside a container makes.
        let mut deepest = pod.main.clone();
        for name in ["init.scope", "a", "b"] {
            deepest = deepest.child(name);
        }
        deepest.create_below(&pod.main)?;
        let storm = ["storm", "--count", "40", "--codes", "3"];
        Workload::start(&deepest, &storm)?.done(context.limit(60))?;
        let middle = pod.main.child("init.scope");
        Workload::start(&middle.child("a").child("b"), &["burn", "--for-ms", "300"])?
            .wait(context.limit(30))?;
        node.expect(pod.uid(), |stats| {
            ensure!(
                stats.containers.len() == 1,
                "{} containers",
                stats.containers.len()
            );
            let main = &stats.containers[0];
            ensure!(main.id == "main", "the container is {}", main.id);
            ensure!(
                main.exits.total == 42,
                "the container has {} exits",
                main.exits.total
            );
            ensure!(
                main.exits.failed == 40,
                "the container has {} failed",
                main.exits.failed
            );
            ensure!(
                stats.exits.total == 42,
                "the pod has {} exits",
                stats.exits.total
            );
            close_cpu(main.cpu.usage_core_nano_seconds, pod.main.cpu_ns()?)?;
            close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
        })?;
    }
    node.finish()
}

fn process_moved_between_pods(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::burstable("from", "64Mi"),
        PodSpec::best_effort("to"),
    ])?;
    let (from, to) = (&pods[0], &pods[1]);
    let mut burner = from.start(&["burn", "--threads", "2", "--for-ms", "600000"])?;
    for (turn, target) in [to, from, to].into_iter().enumerate() {
        sleep(Duration::from_millis(500 + 100 * turn as u64))?;
        target.main.attach(burner.pid())?;
    }
    sleep(Duration::from_millis(500))?;
    burner.kill();
    let read = |pod: &Pod| -> Result<(u64, u64, u64)> {
        let stats = node.agent.pod(pod.uid())?;
        Ok((
            stats.exits.total,
            stats.cpu.usage_core_nano_seconds,
            pod.cgroup.cpu_ns()?,
        ))
    };
    // At a move, what ran since the last tick may go to either side: a tick is at most 10 ms long, or comes when the host
    // runs an emulated CPU again, and each of the three moves concerns two threads. Together they have it all.
    let tick = if context.emulated() {
        50_000_000
    } else {
        10_000_000
    };
    let allowed = 3 * 2 * tick;
    let gaps = eventually(node.limit(), || {
        let (left, right) = (read(from)?, read(to)?);
        ensure!(
            (left.0, right.0) == (0, 1),
            "exits {} and {}",
            left.0,
            right.0
        );
        close_cpu(left.1 + right.1, left.2 + right.2).with_context(|| {
            let drops = node.agent.node().map(|n| n.kernel_drops);
            format!("both pods together ({left:?} {right:?}; lost: {drops:?})")
        })?;
        let gaps = [cpu_gap(left.1, left.2), cpu_gap(right.1, right.2)];
        ensure!(
            gaps.iter().all(|gap| *gap <= allowed),
            "CPU time is {gaps:?} ns from the kernel's"
        );
        Ok(gaps)
    })?;
    let untraced = node.agent.node()?.kernel_drops.untraced_switches;
    context.figure("untraced_switches", untraced as f64, "");
    for (pod, gap) in [from, to].into_iter().zip(gaps) {
        let name = format!("cpu_difference_{}", pod.spec.name);
        context.figure(name, gap as f64 / 1e6, "ms");
    }
    node.finish()
}
