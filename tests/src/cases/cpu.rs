//! CPU time, run-queue wait and context switches, beside the kernel's own counters.

use std::fs;
use std::path::Path;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Case, Context, case, close_cpu, cpu_gap};
use crate::harness::{
    Agent, Cgroup, Node, Options, Pod, PodSpec, Workload, eventually, monotonic, sleep, wall_nanos,
};

pub(super) const CASES: &[Case] = &[
    case("cpu_mixed_20_pods", cpu_mixed_20_pods),
    case(
        "cpu_running_without_switching",
        cpu_running_without_switching,
    ),
    case("short_processes", short_processes),
    case("run_queue_wait_and_histogram", run_queue_wait_and_histogram),
    case("run_queue_wait_of_migrated", run_queue_wait_of_migrated),
    case("run_queue_wait_of_older", run_queue_wait_of_older),
    case("context_switches", context_switches),
];

/// Twenty pods over the three classes.
fn twenty() -> Vec<PodSpec> {
    (0..20)
        .map(|n| match n % 3 {
            0 => PodSpec::guaranteed(&format!("guaranteed-{n}"), "256Mi"),
            1 => PodSpec::burstable(&format!("burstable-{n}"), "64Mi"),
            _ => PodSpec::best_effort(&format!("besteffort-{n}")),
        })
        .collect()
}

/// Waits until every pod's CPU time, read from now on, is the kernel's; gives the largest difference seen
/// then. Nothing may run in the pods any more.
fn all_close(node: &Node, pods: &[Pod]) -> Result<u64> {
    let mut worst = 0;
    let ended = jiff::Timestamp::now().as_nanosecond();
    for pod in pods {
        let stats = node.expect(pod.uid(), |stats| {
            // What was read before the pods' end may be close, and say nothing of how close it gets.
            ensure!(wall_nanos(&stats.cpu.time)? > ended, "read before the end");
            close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
        })?;
        worst = worst.max(cpu_gap(
            stats.cpu.usage_core_nano_seconds,
            pod.cgroup.cpu_ns()?,
        ));
    }
    Ok(worst)
}

/// What pod number `n` of the mixed load does for a while, milliseconds.
fn mixed(n: usize, ms: u32, dir: &Path) -> String {
    match n % 6 {
        0 => format!("burn --for-ms {ms}"),
        1 => format!("burn --for-ms {ms} --duty 30 --threads 3"),
        2 => format!("pingpong --for-ms {ms} --rounds 100000000"),
        3 => format!("storm --count {} --busy-us 2000 --parallel 2", ms / 50),
        4 => {
            let file = dir.join(format!("cache-{n}"));
            format!(
                "cache --mib 8 --for-ms {ms} --pause-ms 20 --file {}",
                file.display()
            )
        }
        _ => format!("fill --mib 32 --rate 8 --hold-ms {}", ms / 2),
    }
}

fn cpu_mixed_20_pods(context: &Context) -> Result<()> {
    let ms = if context.emulated() { 4_000 } else { 10_000 };
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(twenty())?;
    // BestEffort pods first: behind the others they would not get to their start before the end.
    let mut order: Vec<usize> = (0..pods.len()).collect();
    order.sort_by_key(|n| n % 3 != 2);
    let mut running = Vec::new();
    for n in order {
        let args = mixed(n, ms, node.sandbox.dir());
        running.push(pods[n].start(&args.split(' ').collect::<Vec<_>>())?);
    }
    for workload in &mut running {
        let status = workload.wait(context.limit(60))?;
        ensure!(status.success(), "a workload ended with {status}");
    }
    let worst = all_close(&node, &pods)?;
    context.figure("largest_cpu_difference", worst as f64 / 1e6, "ms");
    let untraced = node.agent.node()?.kernel_drops.untraced_switches;
    context.figure("untraced_switches", untraced as f64, "");
    let total = pods
        .iter()
        .map(|pod| pod.cgroup.cpu_ns())
        .sum::<Result<u64>>()?;
    context.figure("cpu_time_of_all_pods", total as f64 / 1e9, "s");
    node.finish()
}

/// The kernel's counter over time: (wall clock, CPU time), both nanoseconds.
struct Series(Vec<(i128, u64)>);

impl Series {
    fn note(&mut self, cgroup: &Cgroup) -> Result<()> {
        let now = jiff::Timestamp::now().as_nanosecond();
        self.0.push((now, cgroup.cpu_ns()?));
        Ok(())
    }

    /// The last reading before `time` and the first after it.
    fn around(&self, time: i128) -> Option<(u64, u64)> {
        let after = self.0.iter().position(|(at, _)| *at > time)?;
        Some((self.0.get(after.checked_sub(1)?)?.1, self.0[after].1))
    }
}

fn cpu_running_without_switching(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("burner", "64Mi"))?;
    let last = available_parallelism()?.get() - 1;
    let mut burner = pod.start(&["burn", "--pin", &last.to_string()])?;
    sleep(Duration::from_secs(2))?;
    let mut series = Series(Vec::new());
    let mut compared = 0;
    eventually(context.limit(30), || {
        series.note(&pod.cgroup)?;
        let cpu = node.agent.pod(pod.uid())?.cpu;
        series.note(&pod.cgroup)?;
        let (before, after) = series
            .around(wall_nanos(&cpu.time)?)
            .context("no figures were read while the kernel's were")?;
        // One reading of the kernel to the next is the resolution; between them 5 ms on either side.
        let found = cpu.usage_core_nano_seconds;
        ensure!(
            found + 5_000_000 >= before && found <= after + 5_000_000,
            "{found} ns is not between {before} and {after} ns"
        );
        compared += 1;
        ensure!(compared >= 5, "only {compared} comparisons");
        Ok(())
    })?;
    ensure!(burner.is_alive(), "the burner ended early");
    context.figure(
        "switches_forced_on_the_burner",
        forced_switches(&burner)? as f64,
        "",
    );
    burner.kill();
    let worst = all_close(&node, &[pod])?;
    context.figure("cpu_difference_after", worst as f64 / 1e6, "ms");
    node.finish()
}

fn forced_switches(workload: &Workload) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{}/status", workload.pid()))?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("nonvoluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        })
        .context("no nonvoluntary_ctxt_switches")
}

fn short_processes(context: &Context) -> Result<()> {
    // Emulated, each costs what ten do elsewhere; all of them then with the slow cases alone.
    let few = context.emulated() && !context.include_slow();
    let per_pod: u64 = if few { 40 } else { 500 };
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(twenty())?;
    let count = per_pod.to_string();
    let mut storms = Vec::new();
    for pod in &pods {
        storms.push(pod.start(&["storm", "--count", &count, "--codes", "0,1,0,0"])?);
    }
    for storm in &mut storms {
        let done = storm.done(context.limit(60))?;
        ensure!(
            done.count == per_pod,
            "a storm ended {} processes",
            done.count
        );
    }
    for pod in &pods {
        node.expect(pod.uid(), |stats| {
            // The processes of the storm, and the one that started them.
            let (exits, failed) = (stats.exits.total, stats.exits.failed);
            ensure!(exits == per_pod + 1, "{exits} exits of {}", per_pod + 1);
            ensure!(
                failed == per_pod.div_ceil(4) || failed == per_pod / 4,
                "{failed} failed"
            );
            Ok(())
        })?;
    }
    let worst = all_close(&node, &pods)?;
    context.figure("processes", (per_pod * 20) as f64, "");
    context.figure("largest_cpu_difference", worst as f64 / 1e6, "ms");
    let drops = node.agent.node()?.kernel_drops;
    context.figure("telemetry_records_dropped", drops.telemetry as f64, "");
    ensure!(
        drops.accounts == 0,
        "{} cgroups found no account",
        drops.accounts
    );
    node.finish()
}

fn run_queue_wait_and_histogram(context: &Context) -> Result<()> {
    run_queue_wait(context, 2, &["--pin", "0"])
}

/// What a task has waited counts also when another CPU takes it before it has run.
fn run_queue_wait_of_migrated(context: &Context) -> Result<()> {
    run_queue_wait(context, 2 * available_parallelism()?.get() + 1, &[])
}

/// More burners than CPUs: their waits are the kernel's.
fn run_queue_wait(context: &Context, burners: usize, pin: &[&str]) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("waits", "64Mi"))?;
    let mut args = vec!["burn", "--for-ms", "2000", "--hold-ms", "600000"];
    args.extend(pin);
    let burners = (0..burners)
        .map(|_| pod.start(&args))
        .collect::<Result<Vec<_>>>()?;
    let started = monotonic();
    // Asleep after their work, they wait no more and the kernel's figure stands still.
    let asleep = || {
        let mut before = Vec::new();
        eventually(context.limit(30), || {
            let now = burners
                .iter()
                .map(Workload::waited)
                .collect::<Result<Vec<_>>>()?;
            let still = now == before && monotonic() - started > 3_000_000_000;
            before.clone_from(&now);
            sleep(Duration::from_millis(200))?;
            ensure!(still, "the burners still wait for the CPU");
            Ok(now.iter().sum::<u64>())
        })
    };
    let mut kernel = asleep()?;
    ensure!(
        kernel > 100_000_000,
        "{} burners waited only {kernel} ns",
        burners.len()
    );
    let untraced = node.agent.node()?.kernel_drops.untraced_switches;
    let equals = |kernel: u64| {
        node.expect(pod.uid(), |stats| {
            let found = stats.cpu.run_queue_wait_nano_seconds;
            ensure!(
                found.abs_diff(kernel) <= 1_000_000,
                "waited {found} ns, the kernel says {kernel} ns; {untraced} switches were not traced"
            );
            Ok(())
        })
    };
    let stats = match equals(kernel) {
        // A burner whose last switch was not traced is accounted up to there when it is next seen.
        Err(_) if untraced > 0 => {
            context.figure("woken", burners.len() as f64, "");
            to_all(&burners, Signal::SIGSTOP)?;
            to_all(&burners, Signal::SIGCONT)?;
            kernel = asleep()?;
            equals(kernel)?
        }
        equal => equal?,
    };
    let waits: u64 = stats.cpu.run_queue_wait_histogram.iter().sum();
    ensure!(
        waits > 0 && waits <= stats.cpu.context_switches,
        "{waits} waits in the histogram, {} switches; {untraced} were not traced",
        stats.cpu.context_switches
    );
    // What the buckets hold at the least cannot be more than the whole.
    let least: u64 = stats
        .cpu
        .run_queue_wait_histogram
        .iter()
        .enumerate()
        .skip(1)
        .map(|(i, n)| n * (1000 << i))
        .sum();
    ensure!(
        least <= stats.cpu.run_queue_wait_nano_seconds,
        "the histogram holds {least} ns or more of {} ns",
        stats.cpu.run_queue_wait_nano_seconds
    );
    context.figure("untraced_switches", untraced as f64, "");
    context.figure("run_queue_wait_kernel", kernel as f64 / 1e6, "ms");
    context.figure(
        "run_queue_wait_podwarden",
        stats.cpu.run_queue_wait_nano_seconds as f64 / 1e6,
        "ms",
    );
    drop(burners);
    node.finish()
}

/// The same of tasks that are older than the agent: nothing is known of one before it leaves a CPU.
fn run_queue_wait_of_older(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("older", "64Mi"))?;
    let burners = (0..2 * available_parallelism()?.get() + 1)
        .map(|_| pod.start(&["burn"]))
        .collect::<Result<Vec<_>>>()?;
    to_all(&burners, Signal::SIGSTOP)?;
    node.kill_agent()?;
    node.agent = Agent::spawn(context.agent(), &node.sandbox, &Options::default())?;
    node.agent.wait_ready(node.limit())?;
    run_for(&burners, Duration::from_millis(300))?;
    let (kernel_before, found_before) = waited(context, &node, &pod, &burners)?;
    run_for(&burners, Duration::from_secs(2))?;
    let since = || {
        let (kernel, found) = waited(context, &node, &pod, &burners)?;
        anyhow::Ok((kernel - kernel_before, found - found_before))
    };
    let (mut kernel, mut found) = since()?;
    let untraced = node.agent.node()?.kernel_drops.untraced_switches;
    // A burner whose last switch was not traced is accounted up to there when it is next seen.
    if found.abs_diff(kernel) > 1_000_000 && untraced > 0 {
        run_for(&burners, Duration::from_millis(300))?;
        (kernel, found) = since()?;
    }
    context.figure("run_queue_wait_kernel", kernel as f64 / 1e6, "ms");
    context.figure("run_queue_wait_podwarden", found as f64 / 1e6, "ms");
    ensure!(kernel > 100_000_000, "they waited only {kernel} ns");
    ensure!(
        found.abs_diff(kernel) <= 1_000_000,
        "waited {found} ns, the kernel says {kernel} ns; {untraced} switches were not traced"
    );
    drop(burners);
    node.finish()
}

fn to_all(workloads: &[Workload], signal: Signal) -> Result<()> {
    workloads.iter().try_for_each(|workload| {
        let pid = Pid::from_raw(workload.pid().cast_signed());
        kill(pid, signal).with_context(|| format!("send {signal} to {pid}"))
    })
}

/// Has them run for a time, and stops them.
fn run_for(workloads: &[Workload], time: Duration) -> Result<()> {
    to_all(workloads, Signal::SIGCONT)?;
    sleep(time)?;
    to_all(workloads, Signal::SIGSTOP)
}

/// How long workloads that are being stopped have waited in all, by the kernel and by the agent, nanoseconds.
fn waited(context: &Context, node: &Node, pod: &Pod, workloads: &[Workload]) -> Result<(u64, u64)> {
    let waits = || -> Result<Vec<u64>> { workloads.iter().map(Workload::waited).collect() };
    let kernel = eventually(context.limit(30), || {
        let before = waits()?;
        sleep(context.quiet())?;
        ensure!(waits()? == before, "they still wait for a CPU");
        Ok(before.iter().sum::<u64>())
    })?;
    let stopped = jiff::Timestamp::now().as_nanosecond();
    let stats = node.expect(pod.uid(), |stats| {
        ensure!(wall_nanos(&stats.cpu.time)? > stopped, "read before that");
        Ok(())
    })?;
    Ok((kernel, stats.cpu.run_queue_wait_nano_seconds))
}

fn context_switches(context: &Context) -> Result<()> {
    let rounds: u64 = if context.emulated() { 2_000 } else { 20_000 };
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::best_effort("pingpong"))?;
    let mut pingpong = pod.start(&["pingpong", "--rounds", &rounds.to_string()])?;
    let done = pingpong.done(context.limit(60))?;
    ensure!(done.count == rounds, "{} round trips", done.count);
    // A round trip puts each side to sleep once, unless it found its byte before it slept: with two
    // CPUs a side may poll the pipe just in time. It cannot be more than a few times that.
    let stats = node.expect(pod.uid(), |stats| {
        let switches = stats.cpu.context_switches;
        ensure!(
            switches >= rounds / 2,
            "{switches} switches for {rounds} round trips"
        );
        Ok(())
    })?;
    context.figure(
        "switches_per_round_trip",
        stats.cpu.context_switches as f64 / rounds as f64,
        "",
    );
    all_close(&node, &[pod])?;
    node.finish()
}
