//! Cgroups inside containers: they count to their container without an entry in the kernel's table, however many there
//! are, also with an agent that is started later.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden_policy::settings::Controller;

use super::Rig;
use crate::cases::{Context, close_cpu};
use crate::harness::{Cgroup, Pod, PodSpec, Workload, check_interrupt, eventually};

/// Levels of the deepest one, below its container.
const LEVELS: usize = 20;

/// More than the table has entries for, which is made for 64 accounts.
pub(super) fn some(context: &Context) -> Result<()> {
    many(context, 300, Some("64"))
}

/// More than the table of a node with 250 pods has entries for.
pub(super) fn thousands(context: &Context) -> Result<()> {
    many(context, 20_000, None)
}

fn many(context: &Context, count: usize, accounts: Option<&str>) -> Result<()> {
    let mut rig = Rig::with(context, |options, _| {
        let accounts = accounts.map(|n| ("PODWARDEN_ACCOUNTS".to_owned(), n.to_owned()));
        options.env.extend(accounts);
        Ok(())
    })?;
    let pod = rig.node.pod(PodSpec::best_effort("nests"))?;
    let nested: Vec<Cgroup> = (0..count)
        .map(|n| pod.main.child(&format!("n{n}")))
        .collect();
    nested[..count - 1].iter().try_for_each(create_identity)?;
    nested[count - 1].create()?;
    let chain = (0..LEVELS).scan(pod.main.clone(), |at, _| {
        *at = at.child("deep");
        Some(at.clone())
    });
    let chain: Vec<Cgroup> = chain.collect();
    chain.iter().try_for_each(Cgroup::create)?;
    // On v2 no process may be in a cgroup whose children have controllers.
    let middle = &chain[LEVELS / 2].child("leaf");
    middle.create()?;
    let (last, deepest) = (&nested[count - 1], &chain[LEVELS - 1]);
    for cgroup in [last, middle, deepest] {
        runs(context, cgroup)?;
    }
    counts(&rig, &pod, 3)?;

    rig.end(Signal::SIGKILL)?;
    let (gone, stay) = nested.split_at(count / 2);
    gone.iter().try_for_each(Cgroup::remove)?;
    let late = pod.main.child("late");
    late.create()?;
    let started = Instant::now();
    rig.start()?;
    context.figure("start", started.elapsed().as_secs_f64(), "s");
    for cgroup in [last, middle, deepest, &late] {
        runs(context, cgroup)?;
    }
    counts(&rig, &pod, 7)?;

    for cgroup in [middle]
        .into_iter()
        .chain(chain.iter().rev())
        .chain(stay)
        .chain([&late])
    {
        eventually(rig.node.limit(), || cgroup.remove())?;
    }
    counts(&rig, &pod, 7)?;
    rig.node.finish()
}

/// Makes a cgroup in the hierarchy alone that identifies pods: on v1 the others take most of the time.
fn create_identity(cgroup: &Cgroup) -> Result<()> {
    check_interrupt()?;
    let memory = cgroup.mounts().of(Controller::Memory);
    let dir = memory.context("no memory controller")?.join(cgroup.path());
    fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))
}

/// Ten processes, and one that burns, in a cgroup.
fn runs(context: &Context, cgroup: &Cgroup) -> Result<()> {
    let burn = ["burn", "--for-ms", "200"];
    Workload::start(cgroup, &burn)?.wait(context.limit(30))?;
    let storm = ["storm", "--count", "10", "--busy-us", "300"];
    Workload::start(cgroup, &storm)?.done(context.limit(30))?;
    Ok(())
}

/// All of `runs` calls count to the container, and no cgroup is without an account.
fn counts(rig: &Rig, pod: &Pod, runs: u64) -> Result<()> {
    rig.node.expect(pod.uid(), |stats| {
        let [main] = &*stats.containers else {
            anyhow::bail!("{} containers", stats.containers.len());
        };
        // The storm itself is one, and so is the one that burns.
        let exits = main.exits.total;
        ensure!(exits == 12 * runs, "{exits} exits of {}", 12 * runs);
        close_cpu(main.cpu.usage_core_nano_seconds, pod.main.cpu_ns()?)?;
        close_cpu(stats.cpu.usage_core_nano_seconds, pod.cgroup.cpu_ns()?)
    })?;
    let node = rig.node.agent.node()?;
    let lost = node.kernel_drops.accounts;
    ensure!(lost == 0, "{lost} cgroups found no account");
    let full = node
        .degradations
        .iter()
        .any(|d| d.contains("no account left"));
    ensure!(!full, "{:?}", node.degradations);
    Ok(())
}
