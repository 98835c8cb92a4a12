//! The kernel programs' accounts: what they take of the kernel's memory, and what holds when there are too few.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::kernel::size;

use super::eviction::small;
use super::recorder::restart;
use super::{Case, Context, portable};
use crate::harness::{KernelMemory, Node, Options, PodSpec, Sandbox, eventually};

pub(super) const CASES: &[Case] = &[
    portable("accounts_memory", accounts_memory),
    portable("accounts_full", accounts_full),
    portable("accounts_of_many_at_start", accounts_of_many_at_start),
];

fn possible_cpus() -> Result<u32> {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next();
    Ok(last.context("no possible CPU")?.parse::<u32>()? + 1)
}

/// The maps take no more than the formula says that keeps large machines below 48 MiB.
fn accounts_memory(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let cpus = possible_cpus()?;
    let told = fs::read_to_string("/proc/cmdline")?;
    let told = told
        .split_whitespace()
        .find_map(|word| word.strip_prefix("possible_cpus="));
    ensure!(
        told.is_none_or(|told| told == cpus.to_string()),
        "the machine was to have {told:?} possible CPUs, it has {cpus}"
    );
    let formula = size::memory(size::accounts(250, cpus), cpus, 1 << 20);
    let taken = KernelMemory::of_process(node.agent.pid())?.maps;
    ensure!(taken > 0, "the agent has no maps");
    context.figure("maps", taken as f64 / 1e6, "MB");
    context.figure("possible_cpus", f64::from(cpus), "");
    ensure!(
        taken <= formula + formula / 10,
        "the maps take {taken} bytes, {formula} at most on {cpus} CPUs"
    );
    ensure!(
        taken <= 48 << 20 || cpus > 384,
        "the maps take {taken} bytes on {cpus} CPUs"
    );
    node.finish()
}

/// Far too few accounts: every pod is seen and may be evicted, before and after a restart.
fn accounts_full(context: &Context) -> Result<()> {
    const PODS: usize = 40;
    let options = Options {
        env: vec![("PODWARDEN_ACCOUNTS".to_owned(), "8".to_owned())],
        ..small("enforce")
    };
    let mut node = Node::start(context, &options)?;
    let specs = (0..PODS).map(|n| PodSpec::best_effort(&format!("pod-{n}")));
    let pods = node.pods(specs.collect())?;
    let all_are_seen = |node: &Node| {
        eventually(node.limit(), || {
            let seen = node.agent.pods()?.len();
            ensure!(seen == PODS, "{seen} of {PODS} pods");
            let degradations = node.agent.node()?.degradations;
            let said = degradations.iter().any(|d| d.contains("no account left"));
            ensure!(said, "{degradations:?}");
            Ok(())
        })
    };
    all_are_seen(&node)?;
    node.agent.signal(Signal::SIGKILL)?;
    node.agent.wait(node.limit())?;
    restart(context, &mut node, &options)?;
    all_are_seen(&node)?;
    let hog = &pods[PODS - 1];
    let mib = (node.level()? >> 20) + 64;
    let mut fill = hog.start(&["fill", "--mib", &mib.to_string(), "--rate", "400"])?;
    let ended = fill.wait(node.limit())?;
    ensure!(!ended.success(), "the hog ended by itself");
    eventually(node.limit(), || {
        let evicted = node.agent.evictions()?;
        ensure!(
            evicted.iter().any(|e| e.pod.uid == hog.uid()),
            "{evicted:?}"
        );
        Ok(())
    })?;
    node.finish()
}

/// More pods at once than there are free accounts when the programs are attached: they come between the first pass over
/// the cgroups and the next. Each has an account of its own.
fn accounts_of_many_at_start(context: &Context) -> Result<()> {
    // Each takes an emulated machine a seventh of a second; more than 256 is what it takes.
    let pods = if context.emulated() { 320 } else { 600 };
    let mut node = Node::unready(context, Sandbox::new()?, &small("enforce"))?;
    node.tier("besteffort")?;
    for n in 0..pods {
        node.manifest(&PodSpec::best_effort(&format!("pod-{n}")))?;
    }
    node.agent.wait_ready(context.limit(60))?;
    eventually(node.limit(), || {
        let seen = node.agent.pods()?.len();
        ensure!(seen == pods, "{seen} of {pods} pods");
        Ok(())
    })?;
    let stats = node.agent.node()?;
    let lost = stats.kernel_drops.accounts;
    ensure!(lost == 0, "{lost} cgroups have no account");
    let said = stats
        .degradations
        .iter()
        .any(|d| d.contains("no account left"));
    ensure!(!said, "{:?}", stats.degradations);
    node.finish()
}
