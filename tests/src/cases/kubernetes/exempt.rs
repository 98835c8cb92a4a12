//! A pod that may not be evicted fills memory: the others are not spent on it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{Event, EventKind};

use super::{LIMIT, enforcing};
use crate::cases::{Case, Context, case};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, Pod};

pub(in crate::cases) const CASES: &[Case] = &[
    case("kubernetes_static_filler", kubernetes_static_filler),
    case("kubernetes_critical_filler", kubernetes_critical_filler),
];

const MIB: u64 = 1 << 20;
/// Pods that hold next to nothing.
const SMALL: usize = 5;
/// A kubelet evicts a pod every 10 s (`monitoringInterval` of `pkg/kubelet/eviction/eviction_manager.go`); less than
/// that.
const WATCHED: Duration = Duration::from_secs(6);

/// The kubelet's manifest directory has the filler: no priority, and not to be evicted.
fn kubernetes_static_filler(context: &Context) -> Result<()> {
    spares(context, |cluster, filler| cluster.run_static(&filler))
}

fn kubernetes_critical_filler(context: &Context) -> Result<()> {
    spares(context, |cluster, filler| {
        cluster.run_now(&filler.critical())
    })
}

fn spares(context: &Context, run: impl Fn(&Cluster, Pod) -> Result<String>) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let names: Vec<_> = (0..SMALL).map(|i| format!("small-{i}")).collect();
    let small = names.iter().map(|name| cluster.run(&Pod::holding(name, 4)));
    let small = small.collect::<Result<Vec<_>>>()?;
    let guaranteed = Pod::holding("guaranteed", 8).requesting("64Mi", true);
    let guaranteed = cluster.run(&guaranteed)?;
    for name in names.iter().map(String::as_str).chain(["guaranteed"]) {
        cluster.running(name)?;
    }
    // Past the level, and not so far that the kernel ends it.
    let tiers = cluster.node_stats()?.tiers;
    let all = tiers.iter().find(|tier| tier.name == "kubepods");
    let level = all
        .and_then(|tier| tier.armed_level_bytes)
        .context("kubepods has no level")?;
    let room = level.saturating_sub(cluster.kubepods().memory()?.usage) / MIB;
    let filler = run(&cluster, Pod::filler("filler", room + 24, 100))?;
    eventually(LIMIT, || {
        for uid in small.iter().chain([&guaranteed, &filler]) {
            cluster.pod_stats(uid)?;
        }
        Ok(())
    })?;
    let before = cluster.evictions()?.len();
    cluster.go("filler")?;
    eventually(LIMIT, || {
        let events: Vec<Event> = cluster.ask("/v1/events?after=0")?;
        let said = events.iter().any(|event| {
            let EventKind::Degraded { message } = &event.kind else {
                return false;
            };
            message.contains("what grew is no pod that may be evicted")
        });
        ensure!(said, "the agent does not say why it waits");
        Ok(())
    })?;
    sleep(WATCHED)?;
    let evicted = cluster.evictions()?;
    let evicted: Vec<_> = evicted[before..]
        .iter()
        .map(|one| one.pod.name.as_str())
        .collect();
    ensure!(evicted.len() <= 1, "evicted: {evicted:?}");
    ensure!(
        evicted.iter().all(|name| name.starts_with("small")),
        "evicted: {evicted:?}"
    );
    ensure!(
        cluster.starts(&guaranteed)? == 1,
        "the guaranteed pod was started again"
    );
    cluster.clear()
}
