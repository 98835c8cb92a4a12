//! `oom_score_adj` of the processes of pods.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use super::super::Context;
use super::files::read;
use crate::harness::{Node, Options, PodSpec, Workload, eventually};

fn score(pid: u32) -> Result<i32> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let text = read(Path::new(&path))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path}: {text:?}"))
}

/// Whether values may be lowered (capabilities(7): `CAP_SYS_RESOURCE` is number 24).
fn may_lower() -> Result<bool> {
    let status = read(Path::new("/proc/self/status"))?;
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("no CapEff")?;
    Ok(u64::from_str_radix(set.trim(), 16)? >> 24 & 1 == 1)
}

pub(super) fn oom_score_adj_of_processes(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::guaranteed("guaranteed", "64Mi"),
        // 1000 - 1000 * 4 / 16.
        PodSpec::burstable("burstable", "4Gi"),
        PodSpec::best_effort("best-effort"),
    ])?;
    let sleeper = ["anon", "--mib", "2"];
    let expect = |pid: u32, expected: i32, what: &str| {
        eventually(node.limit(), || {
            let found = score(pid)?;
            ensure!(found == expected, "{what}: {found} and not {expected}");
            Ok(())
        })
    };
    let before = score(std::process::id())?;
    ensure!(
        before < 750,
        "this process has {before}: too high to see a change"
    );
    let guaranteed = if may_lower()? { -997 } else { before };
    let started: Vec<_> = pods
        .iter()
        .map(|pod| pod.start(&sleeper))
        .collect::<Result<_>>()?;
    let entered = Instant::now();
    expect(started[2].pid(), 1000, "the BestEffort pod's process")?;
    context.figure(
        "set_after_start",
        entered.elapsed().as_secs_f64() * 1e3,
        "ms",
    );
    expect(started[1].pid(), 750, "the Burstable pod's process")?;
    expect(started[0].pid(), guaranteed, "the Guaranteed pod's process")?;
    if !may_lower()? {
        eventually(node.limit(), || {
            let said = node.agent.node()?.degradations;
            let says = |text: &String| text.contains("oom_score_adj");
            ensure!(said.iter().filter(|t| says(t)).count() == 1, "{said:?}");
            Ok(())
        })?;
    }
    // A container that the manifest does not name, made when the pod runs already.
    let unnamed = pods[1].cgroup.child(&"5e2e".repeat(16));
    unnamed.create()?;
    let other = Workload::start(&unnamed, &sleeper)?;
    expect(other.pid(), 750, "an unnamed container's process")?;
    // What a process has chosen itself stays, also when others enter.
    let chosen = format!("/proc/{}/oom_score_adj", started[1].pid());
    fs::write(&chosen, "888").context("raise a process's value")?;
    let elsewhere = node.sandbox.root.child("elsewhere");
    elsewhere.create()?;
    let outside = Workload::start(&elsewhere, &sleeper)?;
    ensure!(
        score(outside.pid())? == before,
        "a process of no pod was touched"
    );
    pods[1].main.attach(outside.pid())?;
    expect(outside.pid(), 750, "a process that was moved in")?;
    ensure!(score(started[1].pid())? == 888, "a chosen value was undone");
    drop((started, other, outside));
    eventually(node.limit(), || elsewhere.remove())?;
    node.finish()
}
