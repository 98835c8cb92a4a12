//! Ends: whatever way the agent ends, the node is as it was.

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{Case, Context, case, portable};
use crate::harness::{Agent, Cgroup, Node, Objects, Options, PodSpec, eventually, until};

pub(super) const CASES: &[Case] = &[
    case(
        "clean_shutdown_leaves_nothing",
        clean_shutdown_leaves_nothing,
    ),
    portable("ctrl_c", ctrl_c),
    portable(
        "shutdown_leaves_running_pods_alone",
        shutdown_leaves_running_pods_alone,
    ),
    case(
        "killed_agent_leaves_no_programs_and_can_restart",
        killed_agent_can_restart,
    ),
    case("half_a_cgroup_is_the_next_agents", half_a_cgroup),
];

fn loaded(node: &Node) -> Result<Objects> {
    let objects = Objects::of_process(node.agent.pid())?;
    let profile = node.agent.node()?.profile;
    ensure!(
        (profile == "sampling") == (objects.programs() == 0),
        "{} programs with profile {profile}",
        objects.programs()
    );
    Ok(objects)
}

fn ends_cleanly(context: &Context, signal: Signal) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::guaranteed("one", "64Mi"),
        PodSpec::burstable("two", "64Mi"),
        PodSpec::best_effort("three"),
    ])?;
    for pod in &pods {
        pod.start(&["storm", "--count", "3"])?
            .done(context.limit(20))?;
    }
    let objects = loaded(&node)?;
    context.figure("programs", objects.programs() as f64, "");
    node.empty()?;
    node.agent.stop(signal, node.limit())?;
    objects.ensure_gone()?;
    node.ensure_nothing_left()
}

fn clean_shutdown_leaves_nothing(context: &Context) -> Result<()> {
    ends_cleanly(context, Signal::SIGTERM)
}

fn ctrl_c(context: &Context) -> Result<()> {
    ends_cleanly(context, Signal::SIGINT)
}

fn shutdown_leaves_running_pods_alone(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("runs-on", "64Mi"))?;
    let mut workload = pod.start(&["anon", "--mib", "16"])?;
    let settings = pod.cgroup.settings();
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    ensure!(workload.is_alive(), "the agent's end killed the pod");
    ensure!(
        pod.main.procs() == [workload.pid()],
        "in the cgroup: {:?}",
        pod.main.procs()
    );
    ensure!(
        pod.cgroup.settings() == settings,
        "settings were changed: {:?}",
        pod.cgroup.settings()
    );
    Ok(())
}

fn killed_agent_can_restart(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("survives", "64Mi"))?;
    let mut workload = pod.start(&["anon", "--mib", "16"])?;
    let objects = loaded(&node)?;
    node.agent.signal(Signal::SIGKILL)?;
    node.agent.wait(node.limit())?;
    eventually(node.limit(), || objects.ensure_gone())?;
    ensure!(workload.is_alive(), "the agent's death killed the pod");
    // Its socket and its lock are still there; neither may keep the next one out.
    node.agent = Agent::spawn(context.agent(), &node.sandbox, &Options::default())?;
    context.watch(&node.agent.log);
    node.agent.wait_ready(context.limit(30))?;
    node.expect(pod.uid(), |stats| {
        let usage = stats.memory.as_ref().map_or(0, |memory| memory.usage_bytes);
        ensure!(usage >= 16 << 20, "usage is {usage} bytes");
        Ok(())
    })?;
    workload.kill();
    node.empty()?;
    // What the first one made is the next one's to remove.
    node.withdraw(&pod.spec)?;
    until(node.limit(), "the end of the pod's cgroup", || {
        !pod.cgroup.exists()
    })?;
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    node.ensure_nothing_left()
}

/// An agent that is killed while it makes or removes a pod's cgroup leaves it in some hierarchies: the next
/// one removes it from those, and where the pod is still there, completes it and owns it whole.
fn half_a_cgroup(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    let specs = ["gone", "stays"].map(PodSpec::best_effort);
    let mut pods = Vec::new();
    for spec in &specs {
        pods.push(node.manifest(spec)?);
    }
    until(node.limit(), "the pods' cgroups", || {
        pods.iter().all(Cgroup::exists)
    })?;
    if pods[0].dirs().count() < 2 {
        super::skip("there is one hierarchy: a cgroup is there or not")?;
    }
    node.agent.signal(Signal::SIGKILL)?;
    node.agent.wait(node.limit())?;
    for pod in &pods {
        // That by which cgroups are known, and others.
        for dir in pod.dirs().step_by(2).chain([pod.memory_usage_file()]) {
            let dir = if dir.is_file() {
                dir.parent()
                    .context("a file is in no directory")?
                    .to_owned()
            } else {
                dir
            };
            if dir.exists() {
                std::fs::remove_dir(&dir).with_context(|| format!("remove {}", dir.display()))?;
            }
        }
    }
    node.withdraw(&specs[0])?;

    node.agent = Agent::spawn(context.agent(), &node.sandbox, &Options::default())?;
    context.watch(&node.agent.log);
    node.agent.wait_ready(context.limit(30))?;
    let somewhere = |pod: &Cgroup| pod.dirs().any(|dir| dir.exists());
    until(
        node.limit(),
        "the end of one, the rest of the other",
        || !somewhere(&pods[0]) && pods[1].exists(),
    )?;
    node.withdraw(&specs[1])?;
    until(node.limit(), "the end of both", || {
        !pods.iter().any(somewhere)
    })?;
    node.agent.stop(Signal::SIGTERM, node.limit())?;
    node.ensure_nothing_left()
}
