//! The process beside the agent that leaves the node as it was when the agent is killed.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden_cgroup::freeze_record_file;

use super::recorder::restart;
use super::undo::{found, undo};
use super::{Case, Context, portable, skip};
use crate::harness::{Agent, Cgroup, Node, Options, PodSpec, Sandbox, eventually, until};

pub(super) const CASES: &[Case] = &[
    portable("guard_outlives_the_agents_cgroup", outlives_the_cgroup),
    portable("guard_thaws_what_the_agent_froze", thaws),
    portable(
        "guard_leaves_the_freeze_of_others",
        leaves_the_freeze_of_others,
    ),
];

/// What ends a container, or a service, kills every process in its cgroup.
fn outlives_the_cgroup(context: &Context) -> Result<()> {
    let options = Options {
        config: "qosReserved: {memory: 100%}\n".to_owned(),
        ..Options::default()
    };
    let sandbox = Sandbox::new()?;
    let own = Cgroup::new(&sandbox.mounts, &format!("{}-agent", sandbox.root.path()));
    own.create()?;
    let agent = Agent::spawn_in(context.agent(), &sandbox, &options, Some(&own))?;
    let mut node = Node::of(context, sandbox, agent);
    node.agent.wait_ready(context.limit(30))?;
    let tier = node.tier("besteffort")?;
    let limit = || {
        let file = tier.memory_limit_file();
        fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
    };
    let before = limit()?;
    let guaranteed = PodSpec::guaranteed("arrives", "1Gi");
    node.manifest(&guaranteed)?;
    eventually(node.limit(), || {
        ensure!(limit()? != before, "the tier's limit is not lowered");
        Ok(())
    })?;
    let guard = node.agent.guard()?;
    let lowered = limit()?;
    eventually(node.limit(), || {
        let inside = own.procs();
        ensure!(
            !inside.contains(&guard),
            "the guard stays in the agent's cgroup"
        );
        ensure!(
            inside.contains(&node.agent.pid()),
            "the agent is not in its cgroup"
        );
        Ok(())
    })?;
    until(node.limit(), "the end of all that is in the cgroup", || {
        for pid in own.procs() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        let _ = node.agent.ended();
        own.procs().is_empty()
    })?;
    eventually(node.limit(), || {
        let now = limit()?;
        ensure!(now != lowered, "the tier is left with {now}");
        Ok(())
    })?;
    eventually(node.limit(), || own.remove())
}

/// Who thaws what a killed agent has left frozen.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Guard,
    /// The next agent, in its mode: also in the one in which it changes nothing else.
    Next(&'static str),
    Undo,
}

/// What a kill of the agent leaves frozen, noted as the agent's own kill notes it: the guard thaws it. With the
/// guard killed too the next agent does, or `podwarden undo`.
fn thaws(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    if node.sandbox.mounts.memory_on_v2() {
        return skip("nothing is frozen on v2");
    }
    let pod = node.pod(PodSpec::best_effort("victim"))?;
    let mut workload = pod.start(&["anon", "--mib", "1"])?;
    for by in [
        By::Guard,
        By::Next("observe"),
        By::Next("enforce"),
        By::Undo,
    ] {
        let guard = node.agent.guard()?;
        let record = freeze_record_file(Path::new("/run/podwarden"), node.sandbox.root.path())?;
        fs::write(&record, pod.cgroup.freezer_id()?.to_ne_bytes())?;
        pod.cgroup.freeze()?;
        if by != By::Guard {
            kill(Pid::from_raw(guard.cast_signed()), Signal::SIGKILL)?;
        }
        node.agent.signal(Signal::SIGKILL)?;
        let limit = node.limit();
        node.agent.wait(limit)?;
        let options = |mode| Options {
            mode,
            ..Options::default()
        };
        if by != By::Guard {
            ensure!(pod.cgroup.is_frozen(), "another process thawed it");
        }
        match by {
            By::Guard => until(limit, "thawed", || !pod.cgroup.is_frozen())?,
            By::Next(mode) => {
                restart(context, &mut node, &options(mode))?;
                ensure!(!pod.cgroup.is_frozen(), "left frozen by {mode} mode");
                node.agent.stop(Signal::SIGTERM, limit)?;
            }
            By::Undo => {
                let (_, answer) = undo(context, &node, &[])?;
                let (thawed, stays) = found(&answer, "frozen")?;
                ensure!(
                    thawed.len() == 1 && thawed[0].contains(pod.uid()) && stays.is_empty(),
                    "{answer}"
                );
                ensure!(!pod.cgroup.is_frozen(), "left frozen by undo");
            }
        }
        restart(context, &mut node, &options("enforce"))?;
    }
    ensure!(workload.is_alive(), "it was killed");
    drop(workload);
    node.finish()
}

/// A pod that another has frozen stays so, whatever happens to the agent.
fn leaves_the_freeze_of_others(context: &Context) -> Result<()> {
    let mut node = Node::start(context, &Options::default())?;
    if node.sandbox.mounts.memory_on_v2() {
        return skip("nothing is frozen on v2");
    }
    let pod = node.pod(PodSpec::best_effort("paused"))?;
    let mut workload = pod.start(&["anon", "--mib", "1"])?;
    let guard = node.agent.guard()?;
    pod.cgroup.freeze()?;
    node.agent.signal(Signal::SIGKILL)?;
    let limit = node.limit();
    node.agent.wait(limit)?;
    until(limit, "the end of the guard", || {
        kill(Pid::from_raw(guard.cast_signed()), None).is_err()
    })?;
    ensure!(pod.cgroup.is_frozen(), "the guard thawed it");
    for mode in ["observe", "enforce"] {
        let options = Options {
            mode,
            ..Options::default()
        };
        restart(context, &mut node, &options)?;
        node.expect(pod.uid(), |_| Ok(()))?;
        ensure!(pod.cgroup.is_frozen(), "{mode} mode thawed it");
        node.agent.stop(Signal::SIGTERM, limit)?;
    }
    pod.cgroup.thaw();
    ensure!(workload.is_alive(), "the paused pod was killed");
    drop(workload);
    node.empty()
}
