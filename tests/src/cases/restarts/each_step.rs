//! The agent is killed at every step of folding a container.
//!
//! Its main thread is led from system call to system call (ptrace(2)), and dies before the n-th that changes
//! a map of the kernel's: between two of them nothing is written.

use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use super::figures::Figures;
use super::{Rig, exits_of, storm};
use crate::cases::{Context, skip};
use crate::harness::{Call, Pod, PodSpec, Traced, eventually};

/// `enum bpf_cmd` of include/uapi/linux/bpf.h.
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_MAP_DELETE_ELEM: u64 = 3;

/// Processes that end in the container, and in the cgroup inside it.
const STORMS: [u64; 2] = [6, 3];

/// What a step is: a change of a map.
fn changes_a_map(call: &Call) -> bool {
    call.number == libc::SYS_bpf
        && matches!(call.argument, BPF_MAP_UPDATE_ELEM | BPF_MAP_DELETE_ELEM)
}

pub(super) fn each_step(context: &Context) -> Result<()> {
    if context.emulated() {
        skip("that takes the same steps on every kernel, and minutes here")?;
    }
    let mut rig = Rig::new(context)?;
    // Without a tier above it, a cgroup inside its container has an account of its own.
    let pod = rig.node.pod(PodSpec::guaranteed("stays", "64Mi"))?;
    let stay = pod.start(&["sleep"])?;
    let mut figures = Figures::default();
    let steps = end_a_container(&mut rig, &pod, &mut figures, None)?;
    // Two accounts to fold, each with its record, its entry, its clearing and its return.
    ensure!(steps >= 8, "only {steps} maps were changed");
    for step in 0..steps {
        end_a_container(&mut rig, &pod, &mut figures, Some(step))
            .map_err(|error| error.context(format!("killed before step {step} of {steps}")))?;
    }
    context.figure("steps", steps as f64, "");
    context.figure("figures_compared", figures.compared() as f64, "");
    drop(stay);
    rig.node.finish()
}

/// A container is used, and goes; the agent dies before it changes a map for the `step`-th time, or never.
/// Whichever agent is there then counts every process once. The answer is how many changes there were.
fn end_a_container(
    rig: &mut Rig,
    pod: &Pod,
    figures: &mut Figures,
    step: Option<usize>,
) -> Result<usize> {
    // Another one made anew under its name begins at nothing.
    let name = step.map_or("first".to_owned(), |step| format!("short-{step}"));
    let container = pod.cgroup.child(&name);
    let nested = container.child("nested");
    nested.create_below(&pod.cgroup)?;
    storm(rig, pod, &container, STORMS[0])?;
    storm(rig, pod, &nested, STORMS[1])?;
    let before = rig.node.agent.pod(pod.uid())?.exits.total;
    figures.look_at(&rig.node.agent)?;

    let mut traced = Traced::thread(rig.node.agent.pid(), "podwarden")?;
    eventually(rig.node.limit(), || nested.remove())?;
    eventually(rig.node.limit(), || container.remove())?;
    let mut taken = 0;
    let patience = 6 * rig.context.quiet();
    let mut quiet_since = std::time::Instant::now();
    while quiet_since.elapsed() < patience {
        let Some(call) = traced.next_call(Duration::from_millis(100))? else {
            continue;
        };
        if changes_a_map(&call) {
            if step == Some(taken) {
                break;
            }
            taken += 1;
            quiet_since = std::time::Instant::now();
        }
    }
    match step {
        Some(step) if step == taken => {
            rig.node.agent.signal(Signal::SIGKILL)?;
            traced.killed()?;
            rig.node.agent.wait(rig.context.limit(10))?;
            rig.start()?;
        }
        // The steps are not the same every time: levels are armed in between.
        _ => drop(traced),
    }
    figures.look_at(&rig.node.agent)?;
    rig.node.expect(pod.uid(), |stats| {
        let exits = stats.exits.total;
        ensure!(exits == before, "{exits} exits of {before}");
        let shown = exits_of(stats, &name);
        ensure!(shown.is_none(), "the container is shown still");
        Ok(())
    })?;
    Ok(taken)
}
