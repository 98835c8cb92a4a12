//! Pods and containers that appear and go away.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;

use super::{Case, Context, case, close_cpu, portable};
use crate::harness::{
    Agent, Cgroup, Node, Options, Sandbox, Workload, eventually, fresh_uid, http_get, monotonic,
    sleep,
};

pub(super) const CASES: &[Case] = &[
    case(
        "pod_created_and_removed_within_10ms",
        pod_created_and_removed_within_10ms,
    ),
    case("discovered_pods_cgroupfs", discovered_pods_cgroupfs),
    case("discovered_pods_systemd", discovered_pods_systemd),
    portable("existing_tree_at_start", existing_tree_at_start),
    portable("kubepods_appears_later", kubepods_appears_later),
    portable("cgroup_vanishes_while_read", cgroup_vanishes_while_read),
];

fn pod_created_and_removed_within_10ms(context: &Context) -> Result<()> {
    const PODS: usize = 20;
    let node = Node::start(context, &Options::default())?;
    let tier = node.tier("besteffort")?;
    let before = tier.cpu_ns()?;
    let mut lived = Vec::new();
    for turn in 0..PODS {
        let uid = fresh_uid();
        let pod = tier.child(&format!("pod{uid}"));
        let start = monotonic();
        pod.create()?;
        pod.child("main").create()?;
        let storm = ["storm", "--count", "1", "--busy-us", "500", "--codes", "9"];
        let done = Workload::start(&pod.child("main"), &storm)?.done(context.limit(30))?;
        ensure!(done.count == 1, "turn {turn}");
        let kernel = pod.cpu_ns()?;
        eventually(node.limit(), || pod.child("main").remove())?;
        pod.remove()?;
        lived.push((uid, kernel, monotonic() - start));
    }
    let events = eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        for (uid, _, _) in &lived {
            removed(&events, uid).with_context(|| format!("no PodRemoved event for {uid}"))?;
        }
        Ok(events)
    })?;
    let mut all = 0;
    for (uid, kernel, _) in &lived {
        let (cpu, exits) = removed(&events, uid).context("the event is gone")?;
        ensure!(exits == 2, "pod {uid}: {exits} exits, not 2");
        close_cpu(cpu, *kernel + late(context, cpu, *kernel))
            .with_context(|| format!("pod {uid}"))?;
        all += cpu;
    }
    close_cpu(all, tier.cpu_ns()? - before).context("all pods")?;
    // The list is that of the last pass.
    eventually(node.limit(), || {
        let left = node.agent.pods()?;
        ensure!(left.is_empty(), "still listed: {left:?}");
        Ok(())
    })?;
    let mut times: Vec<u64> = lived.iter().map(|(_, _, time)| *time).collect();
    times.sort_unstable();
    context.figure("pod_lifetime_median", times[PODS / 2] as f64 / 1e6, "ms");
    context.figure("pod_lifetime_shortest", times[0] as f64 / 1e6, "ms");
    node.finish()
}

/// What a pod's last task, which its parent has reaped, may use after the look at the pod's cgroup: it is still on
/// its CPU, and the kernel charges that as it leaves it or at a tick, which is late on an emulated CPU. The sum over
/// all pods has it.
fn late(context: &Context, cpu: u64, kernel: u64) -> u64 {
    const TICK: u64 = 50_000_000;
    if context.emulated() {
        cpu.saturating_sub(kernel).min(TICK)
    } else {
        0
    }
}

fn removed(events: &[podwarden::api::types::Event], uid: &str) -> Option<(u64, u64)> {
    events.iter().find_map(|event| match event.kind {
        EventKind::PodRemoved {
            usage_core_nano_seconds,
            exits,
        } if event.pod.as_ref().is_some_and(|pod| pod.uid == uid) => {
            Some((usage_core_nano_seconds, exits))
        }
        _ => None,
    })
}

/// Makes pods that no manifest tells of, runs something in each, and expects them in the API.
fn discover(context: &Context, node: &Node, pods: &[(String, &str, Cgroup, &str)]) -> Result<()> {
    for (uid, class, container, id) in pods {
        container.create_below(&node.sandbox.root)?;
        let pod = Cgroup::new(&node.sandbox.mounts, parent(container.path()));
        let storm = ["storm", "--count", "5", "--busy-us", "20000"];
        Workload::start(container, &storm)?.done(context.limit(30))?;
        let stats = node.expect(uid, |stats| {
            ensure!(
                stats.qos_class == *class,
                "its class is {}, not {class}",
                stats.qos_class
            );
            ensure!(stats.source == "cgroup", "its source is {}", stats.source);
            ensure!(
                stats.containers.len() == 1,
                "{} containers",
                stats.containers.len()
            );
            ensure!(
                stats.containers[0].id == *id,
                "container {}",
                stats.containers[0].id
            );
            ensure!(stats.exits.total == 6, "{} exits", stats.exits.total);
            close_cpu(stats.cpu.usage_core_nano_seconds, pod.cpu_ns()?)
        })?;
        let path = stats.cgroup.trim_matches('/');
        ensure!(
            path == pod.path(),
            "its cgroup is {path}, not {}",
            pod.path()
        );
    }
    Ok(())
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

fn discovered_pods_cgroupfs(context: &Context) -> Result<()> {
    let node = Node::start(
        context,
        &Options {
            mode: "observe",
            ..Options::default()
        },
    )?;
    let id = "3f4e".repeat(16);
    let pods: Vec<_> = [
        ("Guaranteed", ""),
        ("Burstable", "/burstable"),
        ("BestEffort", "/besteffort"),
    ]
    .into_iter()
    .map(|(class, tier)| {
        let uid = fresh_uid();
        let container = node
            .sandbox
            .root
            .child(&format!("kubepods{tier}/pod{uid}/{id}"));
        (uid, class, container, id.as_str())
    })
    .collect();
    discover(context, &node, &pods)?;
    let own = node.kubepods();
    node.finish_with(&own)
}

fn discovered_pods_systemd(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        driver: "systemd",
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let id = "7a1b".repeat(16);
    let pods: Vec<_> = [
        ("Guaranteed", ""),
        ("Burstable", "-burstable"),
        ("BestEffort", "-besteffort"),
    ]
    .into_iter()
    .map(|(class, tier)| {
        let uid = fresh_uid();
        let name = uid.replace('-', "_");
        let slice = format!("kubepods{tier}-pod{name}.slice");
        let tier = if tier.is_empty() {
            String::new()
        } else {
            format!("/kubepods{tier}.slice")
        };
        let path = format!("kubepods.slice{tier}/{slice}/cri-containerd-{id}.scope");
        (uid, class, node.sandbox.root.child(&path), id.as_str())
    })
    .collect();
    discover(context, &node, &pods)?;
    let own = node.sandbox.root.child("kubepods.slice");
    node.finish_with(&own)
}

fn existing_tree_at_start(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let uid = fresh_uid();
    let pod = sandbox.root.child(&format!("kubepods/burstable/pod{uid}"));
    let main = pod.child("main");
    main.create_below(&sandbox.root)?;
    let mut burner = Workload::start(&main, &["burn", "--duty", "60"])?;
    let mut holder = Workload::start(&main, &["anon", "--mib", "24"])?;
    let before = pod.cpu_ns()?;
    let node = Node::on(
        context,
        sandbox,
        &Options {
            mode: "observe",
            ..Options::default()
        },
    )?;
    node.expect(&uid, |stats| {
        ensure!(
            stats.containers.len() == 1,
            "{} containers",
            stats.containers.len()
        );
        let usage = stats.memory.as_ref().map_or(0, |memory| memory.usage_bytes);
        ensure!(usage >= 24 << 20, "usage is {usage} bytes");
        Ok(())
    })?;
    let ready = pod.cpu_ns()?;
    sleep(Duration::from_secs(1))?;
    burner.kill();
    holder.kill();
    node.expect(&uid, |stats| {
        ensure!(stats.exits.total == 2, "{} exits of 2", stats.exits.total);
        // What was used while the agent started may count or not; all after it must, none before.
        let (found, end) = (stats.cpu.usage_core_nano_seconds, pod.cpu_ns()?);
        ensure!(
            found + 5_000_000 >= end - ready,
            "{found} ns of at least {} ns",
            end - ready
        );
        ensure!(
            found <= end + 5_000_000,
            "{found} ns of at most {end} ns ({before} at start)"
        );
        Ok(())
    })?;
    node.finish_with(&pod)
}

fn kubepods_appears_later(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let options = Options {
        mode: "observe",
        ..Options::default()
    };
    let mut agent = Agent::spawn(context.agent(), &sandbox, &options)?;
    context.watch(&agent.log);
    agent.wait_ready(context.limit(30))?;
    let node = agent.node()?;
    let says = |text: &String| text.contains("no kubepods cgroup");
    ensure!(
        node.degradations.iter().any(says),
        "it does not say that it waits: {node:?}"
    );
    let uid = fresh_uid();
    let path = format!("kubepods/besteffort/pod{uid}/main");
    let main = sandbox.root.child(&path);
    main.create_below(&sandbox.root)?;
    // Accounts begin when it has found the tree.
    eventually(context.limit(30), || agent.pod(&uid).map(drop))?;
    let storm = ["storm", "--count", "7", "--codes", "1"];
    Workload::start(&main, &storm)?.done(context.limit(30))?;
    eventually(context.limit(20), || {
        let exits = agent.pod(&uid)?.exits;
        ensure!((exits.total, exits.failed) == (8, 7), "exits {exits:?}");
        Ok(())
    })?;
    agent.stop(Signal::SIGTERM, context.limit(20))?;
    ensure!(
        main.exists(),
        "the agent removed a cgroup that is not its own"
    );
    Ok(())
}

fn cgroup_vanishes_while_read(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let tier = node.tier("besteffort")?;
    let done = AtomicBool::new(false);
    let turns: u32 = if context.emulated() { 50 } else { 300 };
    let reads = thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(node.agent.socket(), &done));
        let churned = churn(&tier, turns);
        done.store(true, Ordering::Relaxed);
        let reads = reader
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the reader panicked")));
        churned.and(reads)
    })?;
    eventually(node.limit(), || {
        let left = node.agent.pods()?.len();
        ensure!(left == 0, "{left} pods still listed");
        Ok(())
    })?;
    let drops = node.agent.node()?.kernel_drops;
    ensure!(
        drops.accounts == 0,
        "{} cgroups found no account",
        drops.accounts
    );
    context.figure("reads_meanwhile", f64::from(reads), "");
    node.finish()
}

fn churn(tier: &Cgroup, turns: u32) -> Result<()> {
    for _ in 0..turns {
        let pod = tier.child(&format!("pod{}", fresh_uid()));
        let main = pod.child("main");
        pod.create()?;
        main.create()?;
        main.remove()?;
        pod.remove()?;
    }
    Ok(())
}

fn read_all(socket: &Path, done: &AtomicBool) -> Result<u32> {
    let mut reads = 0;
    while !done.load(Ordering::Relaxed) {
        for path in ["/v1/pods", "/v1/node", "/metrics"] {
            let answer = http_get(socket, path)?;
            ensure!(answer.status == 200, "GET {path}: {}", answer.text());
            reads += 1;
        }
    }
    Ok(reads)
}
