//! A tier that holds a critical pod and uses more than its target: its other pods are slowed one by one (cgroup v2).

use anyhow::{Context as _, Result, ensure};

use super::scene::CONFIG;
use super::seen::{self, file, limit};
use super::{figures, kill, kill_with_guard};
use crate::cases::{Context, skip};
use crate::harness::{Agent, Cgroup, Mounts, Node, Options, PodSpec, Workload, eventually};

/// A `memory.high` without a value.
const NONE: u64 = u64::MAX;

fn high(cgroup: &Cgroup) -> u64 {
    limit(&seen::high(cgroup))
}

/// How often tasks of it were slowed, `high` of `memory.events`.
fn slowed(cgroup: &Cgroup) -> Result<u64> {
    let text = std::fs::read_to_string(file(cgroup, "none", "memory.events"))?;
    let count = text.lines().find_map(|line| line.strip_prefix("high "));
    Ok(count.context("no count of high")?.parse()?)
}

pub(super) fn beside_critical_pod(context: &Context) -> Result<()> {
    if !Mounts::detect()?.memory_on_v2() {
        return skip("memory.high is cgroup v2's");
    }
    let options = || Options {
        memory: "640Mi".to_owned(),
        config: CONFIG.to_owned(),
        ..Options::default()
    };
    let mut node = Node::start(context, &options())?;
    let critical = node.pod(PodSpec::best_effort("critical").critical())?;
    let calm = node.pod(PodSpec::best_effort("calm"))?;
    let grows = node.pod(PodSpec::best_effort("grows"))?;
    let tier = node.tier("besteffort")?;
    let (others, spared) = ([&calm.cgroup, &grows.cgroup], &critical.cgroup);
    let rest = Workload::start(&calm.main, &["anon", "--mib", "96"])?;
    let base = Workload::start(&grows.main, &["anon", "--mib", "192"])?;
    eventually(context.limit(60), || {
        let usage = tier.memory()?.usage;
        ensure!(usage >= 288 << 20, "the tier uses {usage}");
        Ok(())
    })?;

    node.manifest(&PodSpec::guaranteed("arrives", "384Mi"))?;
    let are_slowed = |node: &Node| {
        eventually(node.limit(), || {
            for pod in others {
                let (high, usage) = (high(pod), pod.memory()?.usage);
                ensure!(high <= usage, "memory.high {high} at {usage}");
            }
            let figures = figures(node)?;
            ensure!(figures.slowed_pods == 2, "{figures:?}");
            Ok(())
        })
    };
    let are_as_found = |node: &Node| {
        eventually(node.limit(), || {
            for pod in others {
                ensure!(high(pod) == NONE, "memory.high is {}", high(pod));
            }
            Ok(())
        })
    };
    are_slowed(&node)?;
    ensure!(high(&tier) == NONE, "the tier is slowed");
    ensure!(high(spared) == NONE, "the critical pod is slowed");

    // Both want more: only the one waits.
    let before = slowed(others[1])?;
    let args = ["fill", "--mib", "8", "--rate", "50", "--step-kib", "64"];
    let more = [&critical.main, &grows.main].map(|main| Workload::start(main, &args));
    eventually(node.limit(), || {
        ensure!(slowed(others[1])? > before, "the other pod is not slowed");
        let usage = spared.memory()?.usage;
        ensure!(usage >= 8 << 20, "the critical pod has {usage}");
        Ok(())
    })?;
    ensure!(slowed(spared)? == 0, "the critical pod was slowed");
    for workload in more {
        drop(workload?);
    }

    kill(&mut node)?;
    are_as_found(&node).context("by the guard")?;
    let start = |node: &mut Node| -> Result<()> {
        node.agent = Agent::spawn(context.agent(), &node.sandbox, &options())?;
        context.watch(&node.agent.log);
        node.agent.wait_ready(context.limit(30))?;
        are_slowed(node)
    };
    start(&mut node)?;
    kill_with_guard(&mut node)?;
    ensure!(high(others[1]) != NONE, "another process restored it");
    start(&mut node).context("after the guard was killed, too")?;

    drop(base);
    eventually(node.limit(), || {
        let figures = figures(&node)?;
        ensure!(figures.reached && figures.slowed_pods == 0, "{figures:?}");
        Ok(())
    })?;
    are_as_found(&node).context("when the tier has its target")?;
    ensure!(tier.oom_kills()? == 0, "a process was killed");
    let evictions = node.agent.evictions()?;
    ensure!(evictions.is_empty(), "{evictions:?}");
    drop(rest);
    node.finish()
}
