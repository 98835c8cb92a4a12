//! Protected pods that reach their CPU limit while the node has free CPU.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::{Event, EventKind};
use podwarden_policy::settings::Controller;

use super::{Case, Context, portable, skip, slow};
use crate::harness::{Agent, Cgroup, Node, Options, Pod, PodSpec, Qos, eventually, sleep};

mod delay;
mod killed;
pub(super) mod scene;

pub(super) const CASES: &[Case] = &[
    portable("throttled_pod_is_relieved", throttled_pod_is_relieved),
    portable("burst_without_tokens_ends", burst_without_tokens_ends),
    portable(
        "burst_ends_with_the_next_agent",
        burst_ends_with_the_next_agent,
    ),
    portable(
        "burst_ends_with_a_killed_agent",
        burst_ends_with_a_killed_agent,
    ),
    portable(
        "observed_burst_writes_nothing",
        observed_burst_writes_nothing,
    ),
    portable(
        "nothing_stays_of_killed_agents",
        killed::nothing_stays_of_killed_agents,
    ),
    portable("refused_quota_is_of_one_pod", refused_quota_is_of_one_pod),
    slow("throttled_until_relieved", delay::throttled_until_relieved),
    slow("waiting_until_relieved", delay::waiting_until_relieved),
    portable(
        "burst_needs_labels_that_agree",
        burst_needs_labels_that_agree,
    ),
];

/// A limit of 100m, in a period of 100 ms.
const BASE_US: u64 = 10_000;

/// On a node of so many CPUs the machine's own work leaves free ones.
fn options(strategy: &str) -> Options {
    Options {
        cpu: "1024",
        config: format!("colocation:\n  cpuBurstStrategy: {{{strategy}}}\n"),
        ..Options::default()
    }
}

/// Quota and burst, microseconds.
fn bandwidth(cgroup: &Cgroup) -> Result<(u64, u64)> {
    let file = |v1: &str, v2: &str| {
        let mounts = cgroup.mounts();
        let name = if mounts.is_on_v2(Controller::Cpu) {
            v2
        } else {
            v1
        };
        let mount = mounts.of(Controller::Cpu).context("no cpu controller")?;
        let path = mount.join(cgroup.path()).join(name);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let first = text.split_ascii_whitespace().next().unwrap_or_default();
        first
            .parse::<u64>()
            .with_context(|| format!("{name} is {text}"))
    };
    Ok((
        file("cpu.cfs_quota_us", "cpu.max")?,
        file("cpu.cfs_burst_us", "cpu.max.burst")?,
    ))
}

/// The quota, microseconds; `None` for none.
pub(super) fn quota(cgroup: &Cgroup) -> Result<Option<u64>> {
    let mounts = cgroup.mounts();
    let mount = mounts.of(Controller::Cpu).context("no cpu controller")?;
    let name = match mounts.is_on_v2(Controller::Cpu) {
        true => "cpu.max",
        false => "cpu.cfs_quota_us",
    };
    let path = mount.join(cgroup.path()).join(name);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    match text.split_ascii_whitespace().next() {
        Some("max" | "-1") => Ok(None),
        first => Ok(Some(first.unwrap_or_default().parse()?)),
    }
}

/// Sets a quota as a runtime does.
pub(super) fn limit(cgroup: &Cgroup, quota_us: u64) -> Result<()> {
    limit_in(cgroup, quota_us, 100_000)
}

/// Sets a quota of a period.
pub(super) fn limit_in(cgroup: &Cgroup, quota_us: u64, period_us: u64) -> Result<()> {
    let mounts = cgroup.mounts();
    let mount = mounts.of(Controller::Cpu).context("no cpu controller")?;
    let dir = mount.join(cgroup.path());
    let write = |file: &str, text: String| {
        fs::write(dir.join(file), text).with_context(|| format!("write {file}"))
    };
    if mounts.is_on_v2(Controller::Cpu) {
        return write("cpu.max", format!("{quota_us} {period_us}"));
    }
    write("cpu.cfs_period_us", period_us.to_string())?;
    write("cpu.cfs_quota_us", quota_us.to_string())
}

/// A pod with a limit of 100m on its own and its container's cgroup.
fn limited(node: &Node, spec: PodSpec) -> Result<Pod> {
    let pod = node.pod(spec)?;
    limit(&pod.cgroup, BASE_US)?;
    limit(&pod.main, BASE_US)?;
    Ok(pod)
}

fn spec(name: &str) -> PodSpec {
    PodSpec::new(name, Qos::Guaranteed, "100m", "64Mi")
}

/// Waits until a pod's quota and its container's are above their limit.
fn raised(node: &Node, pod: &Pod) -> Result<()> {
    eventually(node.limit(), || {
        for cgroup in [&pod.cgroup, &pod.main] {
            let (quota, burst) = bandwidth(cgroup)?;
            ensure!(quota > BASE_US, "{}: quota {quota}", cgroup.path());
            ensure!(burst >= BASE_US, "{}: burst {burst}", cgroup.path());
        }
        Ok(())
    })
}

fn at_its_limit(pod: &Pod) -> Result<()> {
    for cgroup in [&pod.cgroup, &pod.main] {
        let found = bandwidth(cgroup)?;
        ensure!(found == (BASE_US, 0), "{}: {found:?}", cgroup.path());
    }
    Ok(())
}

/// The reasons of a pod's events about its quota.
fn reasons(events: &[Event], pod: &Pod, dry: bool) -> Vec<String> {
    let of_pod = |event: &&Event| event.pod.as_ref().is_some_and(|p| p.uid == pod.uid());
    let reason = |event: &Event| match &event.kind {
        EventKind::CpuQuota {
            reason, dry_run, ..
        } if *dry_run == dry => Some(reason.clone()),
        _ => None,
    };
    events.iter().filter(of_pod).filter_map(reason).collect()
}

fn throttled_pod_is_relieved(context: &Context) -> Result<()> {
    let node = Node::start(
        context,
        &options("policy: auto, sharePoolThresholdPercent: 100"),
    )?;
    let pod = limited(&node, spec("web"))?;
    // Another pod that does nothing keeps its quota.
    let idle = limited(&node, spec("idle"))?;
    let mut burner = pod.start(&["burn"])?;
    raised(&node, &pod)?;
    // As far as three times the limit, and no farther.
    eventually(node.limit(), || {
        let (quota, _) = bandwidth(&pod.main)?;
        ensure!(quota == 3 * BASE_US, "quota {quota}");
        Ok(())
    })?;
    eventually(node.limit(), || {
        let found = reasons(&node.agent.events(0)?, &pod, false);
        ensure!(
            found.iter().any(|one| one == "throttled"),
            "events: {found:?}"
        );
        Ok(())
    })?;
    ensure!(
        bandwidth(&idle.main)?.0 == BASE_US,
        "the idle pod's quota was raised"
    );
    // Passes over the tree take podwarden's own quota for no foreign write.
    sleep(Duration::from_secs(2))?;
    ensure!(
        bandwidth(&pod.cgroup)?.0 == 3 * BASE_US,
        "the pod's quota was put back"
    );
    let foreign = |event: &Event| matches!(event.kind, EventKind::ForeignWrite { .. });
    let fights = node.agent.events(0)?.into_iter().filter(foreign).count();
    // The harness wrote the quota of each pod that the agent had written.
    context.figure("foreign_writes", fights as f64, "");
    ensure!(fights <= 2, "{fights} foreign writes");
    burner.kill();
    ends_restored(node, &[&pod, &idle])
}

/// Ends the agent by SIGTERM with the containers' cgroups in place.
fn ends_restored(mut node: Node, pods: &[&Pod]) -> Result<()> {
    let limit = node.limit();
    node.agent.stop(Signal::SIGTERM, limit)?;
    for pod in pods {
        at_its_limit(pod)?;
    }
    node.empty()?;
    remove(&node, pods)
}

fn remove(node: &Node, pods: &[&Pod]) -> Result<()> {
    for pod in pods {
        if pod.cgroup.exists() {
            eventually(node.limit(), || pod.cgroup.remove())?;
        }
    }
    Ok(())
}

fn burst_without_tokens_ends(context: &Context) -> Result<()> {
    let strategy = "policy: auto, sharePoolThresholdPercent: 100, cfsQuotaBurstPeriodSeconds: 1";
    let node = Node::start(context, &options(strategy))?;
    let pod = limited(&node, spec("greedy"))?;
    let mut burner = pod.start(&["burn"])?;
    raised(&node, &pod)?;
    eventually(node.limit(), || {
        let (quota, _) = bandwidth(&pod.main)?;
        ensure!(quota == BASE_US, "quota {quota}");
        let found = reasons(&node.agent.events(0)?, &pod, false);
        ensure!(
            found.iter().any(|one| one == "noTokens"),
            "events: {found:?}"
        );
        Ok(())
    })?;
    burner.kill();
    ends_restored(node, &[&pod])
}

fn burst_ends_with_the_next_agent(context: &Context) -> Result<()> {
    let mut node = Node::start(
        context,
        &options("policy: auto, sharePoolThresholdPercent: 100"),
    )?;
    let pod = limited(&node, spec("web"))?;
    let mut burner = pod.start(&["burn"])?;
    raised(&node, &pod)?;
    let limit = node.limit();
    node.kill_agent_and_guards()?;
    ensure!(
        bandwidth(&pod.main)?.0 > BASE_US,
        "the quota fell by itself"
    );
    // Neither this one's mode nor its strategies ask for it.
    let next = Options {
        mode: "observe",
        ..Options::default()
    };
    node.agent = Agent::spawn(context.agent(), &node.sandbox, &next)?;
    node.agent.wait_ready(limit)?;
    at_its_limit(&pod)?;
    burner.kill();
    node.agent.stop(Signal::SIGTERM, limit)?;
    at_its_limit(&pod)?;
    node.empty()?;
    remove(&node, &[&pod])
}

fn burst_ends_with_a_killed_agent(context: &Context) -> Result<()> {
    let strategy = "policy: auto, sharePoolThresholdPercent: 100";
    let mut node = Node::start(context, &options(strategy))?;
    let pod = limited(&node, spec("web"))?;
    let mut burner = pod.start(&["burn"])?;
    raised(&node, &pod)?;
    node.kill_agent()?;
    eventually(node.limit(), || at_its_limit(&pod))?;
    burner.kill();
    node.empty()?;
    remove(&node, &[&pod])
}

fn observed_burst_writes_nothing(context: &Context) -> Result<()> {
    let options = Options {
        mode: "observe",
        ..options("policy: auto, sharePoolThresholdPercent: 100")
    };
    let node = Node::start(context, &options)?;
    let pod = limited(&node, spec("web"))?;
    let mut burner = pod.start(&["burn"])?;
    eventually(node.limit(), || {
        let found = reasons(&node.agent.events(0)?, &pod, true);
        ensure!(
            found.iter().any(|one| one == "throttled"),
            "events: {found:?}"
        );
        Ok(())
    })?;
    at_its_limit(&pod)?;
    burner.kill();
    ends_restored(node, &[&pod])
}

/// On v1 the kernel refuses a quota above the parent's.
fn refused_quota_is_of_one_pod(context: &Context) -> Result<()> {
    let strategy = "policy: auto, sharePoolThresholdPercent: 100";
    let mut node = Node::start(context, &options(strategy))?;
    if node.kubepods().mounts().is_on_v2(Controller::Cpu) {
        return skip("cgroup v2 lowers such a quota without an error");
    }
    let bound = limited(&node, PodSpec::new("bound", Qos::Burstable, "100m", "64Mi"))?;
    let web = limited(&node, spec("web"))?;
    let tier = node.tier("burstable")?;
    limit(&tier, BASE_US + BASE_US / 10)?;
    let mut burners = [bound.start(&["burn"])?, web.start(&["burn"])?];
    raised(&node, &web)?;
    eventually(node.limit(), || {
        let degraded = |event: &Event| matches!(&event.kind, EventKind::Degraded { message } if message.contains("e2e/bound exceeds no CPU limit"));
        let events = node.agent.events(0)?;
        ensure!(events.iter().any(degraded), "no event names the pod");
        Ok(())
    })?;
    let (quota, _) = bandwidth(&bound.main)?;
    ensure!(quota <= BASE_US + BASE_US / 10, "a quota of {quota} us");
    for burner in &mut burners {
        burner.kill();
    }
    let ends = node.limit();
    node.agent.stop(Signal::SIGTERM, ends)?;
    at_its_limit(&web)?;
    let found = bandwidth(&bound.main)?;
    ensure!(found == (BASE_US, 0), "{found:?}");
    node.empty()?;
    remove(&node, &[&web, &bound])
}

fn burst_needs_labels_that_agree(context: &Context) -> Result<()> {
    let node = Node::start(
        context,
        &options("policy: auto, sharePoolThresholdPercent: 100"),
    )?;
    let web = limited(&node, spec("web"))?;
    let contradictory = spec("both").labelled("koordinator.sh/qosClass", "BE");
    let both = limited(&node, contradictory)?;
    let mut burners = [web.start(&["burn"])?, both.start(&["burn"])?];
    raised(&node, &web)?;
    at_its_limit(&both)?;
    eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        let told = events.iter().any(|event| match &event.kind {
            EventKind::Degraded { message } => {
                message.contains("e2e/both") && message.contains("koordinator.sh/qosClass")
            }
            _ => false,
        });
        ensure!(told, "nothing was said of the labels");
        Ok(())
    })?;
    for burner in &mut burners {
        burner.kill();
    }
    ends_restored(node, &[&web, &both])
}
