//! Beside a kubelet its limits are facts: levels lie below the limits in force, whatever is configured.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;
use serde_json::json;

use super::apiserver::World;
use super::{Case, Context, portable, skip};
use crate::harness::{
    Cgroup, NODE, Node, Options, Pod, PodSpec, Sandbox, Workload, eventually, until,
};

pub(super) const CASES: &[Case] = &[
    portable("levels_below_the_kubelets_limit", below_the_kubelets_limit),
    portable("levels_below_a_tiers_limit", below_a_tiers_limit),
    portable("levels_by_the_node_object", by_the_node_object),
    portable("levels_of_the_node", of_the_node),
];

const MIB: u64 = 1 << 20;
/// What the kubelet leaves to pods; the configuration makes it 16 GiB.
const LIMIT: u64 = 256 * MIB;
/// `evictionHard`.
const KEPT: u64 = 64 * MIB;

fn beside_a_kubelet() -> Options {
    Options {
        assist: true,
        eviction_hard: Some("64Mi".to_owned()),
        // Manifests of a directory are static pods.
        config: "evictStaticPods: true\n".to_owned(),
        ..Options::default()
    }
}

/// Writes a limit as a kubelet does.
fn set_limit(cgroup: &Cgroup, bytes: u64) -> Result<()> {
    let file = cgroup.memory_limit_file();
    fs::write(&file, bytes.to_string()).with_context(|| format!("write {}", file.display()))
}

fn level_of(node: &Node, tier: &str) -> Result<Option<u64>> {
    let tiers = node.agent.node()?.tiers;
    let tier = tiers.into_iter().find(|found| found.name == tier);
    Ok(tier.and_then(|tier| tier.armed_level_bytes))
}

fn expect_level(node: &Node, tier: &str, level: u64) -> Result<()> {
    eventually(node.limit(), || {
        let armed = level_of(node, tier)?;
        ensure!(
            armed == Some(level),
            "{tier} acts at {armed:?} and not at {level}"
        );
        Ok(())
    })
}

/// A bystander that holds memory, and a filler that goes far beyond the limit.
fn fill(node: &Node) -> Result<(Pod, Workload, Workload)> {
    let pods = node.pods(vec![
        PodSpec::burstable("bystander", "64Mi"),
        PodSpec::best_effort("filler"),
    ])?;
    let [bystander, filler]: [Pod; 2] = pods.try_into().ok().context("two pods")?;
    let rests = bystander.start(&["anon", "--mib", "32"])?;
    until(node.limit(), "the bystander's memory", || {
        bystander
            .cgroup
            .memory()
            .is_ok_and(|memory| memory.usage >= 32 * MIB)
    })?;
    let fills = filler.start(&["fill", "--mib", "512", "--rate", "200"])?;
    Ok((filler, rests, fills))
}

/// The filler was evicted, and the kernel's OOM killer had nothing to do.
fn ensure_evicted(
    node: &Node,
    filler: &Pod,
    rests: &mut Workload,
    mut fills: Workload,
) -> Result<()> {
    let ended = fills.wait(node.limit())?;
    ensure!(!ended.success(), "the filler ended by itself");
    let kills = node.kubepods().oom_kills()?;
    ensure!(kills == 0, "the kernel's OOM killer killed {kills}");
    let evictions = eventually(node.limit(), || {
        let evictions = node.agent.evictions()?;
        ensure!(!evictions.is_empty(), "no eviction is reported");
        Ok(evictions)
    })?;
    ensure!(
        evictions.len() == 1 && evictions[0].pod.uid == filler.uid(),
        "{evictions:?}"
    );
    ensure!(rests.is_alive(), "the bystander was killed as well");
    Ok(())
}

/// The configuration makes the pods' limit 16 GiB, the kubelet made it 256 MiB.
fn below_the_kubelets_limit(context: &Context) -> Result<()> {
    let node = Node::start(context, &beside_a_kubelet())?;
    expect_level(&node, "kubepods", (16 << 30) - KEPT)?;
    // Noticed when it is written.
    set_limit(&node.kubepods(), LIMIT)?;
    expect_level(&node, "kubepods", LIMIT - KEPT)?;
    let degradations = node.agent.node()?.degradations;
    ensure!(
        degradations
            .iter()
            .any(|text| text.contains("256Mi") && text.contains("16Gi")),
        "no degradation has both figures: {degradations:?}"
    );
    let (filler, mut rests, fills) = fill(&node)?;
    ensure_evicted(&node, &filler, &mut rests, fills)?;
    // And it follows the limit up again, to what is configured and no further.
    set_limit(&node.kubepods(), 32 << 30)?;
    expect_level(&node, "kubepods", (16 << 30) - KEPT)?;
    let written = fs::read_to_string(node.kubepods().memory_limit_file())?;
    ensure!(
        written.trim() == (32_u64 << 30).to_string(),
        "the agent wrote the kubelet's limit: {written}"
    );
    let events = node.agent.events(0)?;
    let foreign = |kind: &EventKind| matches!(kind, EventKind::ForeignWrite { .. });
    ensure!(
        !events.iter().any(|event| foreign(&event.kind)),
        "a limit of the kubelet's was taken for a foreign write"
    );
    drop(rests);
    let own = node.kubepods();
    node.finish_with(&own)
}

/// The kubelet keeps memory from a tier (`qosReserved`), and the agent's configuration says nothing of it.
fn below_a_tiers_limit(context: &Context) -> Result<()> {
    let node = Node::start(context, &beside_a_kubelet())?;
    let tier = node.kubepods().child("besteffort");
    tier.create()?;
    set_limit(&tier, LIMIT)?;
    let (filler, mut rests, fills) = fill(&node)?;
    ensure_evicted(&node, &filler, &mut rests, fills)?;
    let level = level_of(&node, "besteffort")?.context("besteffort has no armed level")?;
    ensure!(
        level < LIMIT,
        "it acts at {level}, the limit in force is {LIMIT}"
    );
    drop(rests);
    let own = node.kubepods();
    node.finish_with(&own)
}

/// No reserve is configured; the kubelet tells the API server what it keeps.
fn by_the_node_object(context: &Context) -> Result<()> {
    let says = |allocatable: &str| {
        json!({
            "capacity": {"cpu": "2", "memory": "16Gi", "pods": "110"},
            "allocatable": {"cpu": "1500m", "memory": allocatable, "pods": "110"},
        })
    };
    let mut world = World::with(context, beside_a_kubelet(), |server| {
        server.create_node(NODE, &says("6Gi")).map(drop)
    })?;
    world.ready(context)?;
    expect_level(&world.node, "kubepods", 6 << 30)?;
    // The limit that the kubelet wrote is what its threshold above that makes it: nothing differs.
    set_limit(&world.node.kubepods(), (6 << 30) + 100 * MIB)?;
    expect_level(&world.node, "kubepods", 6 << 30)?;
    set_limit(&world.node.kubepods(), 3 << 30)?;
    expect_level(&world.node, "kubepods", (3 << 30) - KEPT)?;
    let degradations = world.node.agent.node()?.degradations;
    ensure!(
        !degradations
            .iter()
            .any(|text| text.contains("kubeReserved")),
        "{degradations:?}"
    );
    let own = world.node.kubepods();
    world.node.finish_with(&own)
}

/// A line of a file of the kernel's with a name and a number.
fn number(file: &Path, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let found = lines.find_map(|mut words| (words.next()? == name).then(|| words.next())?);
    let number = found.and_then(|number| number.parse().ok());
    number.with_context(|| format!("{name} of {}", file.display()))
}

/// What the node uses as the kubelet counts it, and how much of that is inactive page cache.
fn node_uses(sandbox: &Sandbox) -> Result<(u64, u64)> {
    let stat = sandbox.mounts.memory().join("memory.stat");
    let names = match sandbox.mounts.memory_on_v2() {
        true => ["anon", "file", "inactive_file"],
        false => ["total_rss", "total_cache", "total_inactive_file"],
    };
    let [anon, file, idle] = names.map(|name| number(&stat, name));
    Ok((anon? + file?, idle?))
}

/// Pods fill the node, far from their own level: how far past the node's level one is evicted.
fn of_the_node(context: &Context) -> Result<()> {
    // Set by hand on a machine where nothing else moves the node's memory.
    if !context.emulated() && std::env::var_os("PODWARDEN_E2E_QUIET").is_none() {
        return skip("other work on this machine moves the node's memory; it runs in a machine");
    }
    let total = number(Path::new("/proc/meminfo"), "MemTotal:")? << 10;
    let room = 192 * MIB;
    let sandbox = Sandbox::new()?;
    let (usage, idle) = node_uses(&sandbox)?;
    let options = Options {
        memory: (2 * total).to_string(),
        eviction_hard: Some(total.saturating_sub(usage - idle + room).to_string()),
        ..Options::default()
    };
    let node = Node::on(context, sandbox, &options)?;
    let mut overshoots = Vec::new();
    for round in 0..context.repetitions(3) {
        let filler = node.pod(PodSpec::best_effort(&format!("filler-{round}")))?;
        let mut fills = filler.start(&["fill", "--mib", "1024", "--rate", "500"])?;
        let ended = fills.wait(node.limit())?;
        ensure!(!ended.success(), "the filler ended by itself");
        let evictions = eventually(node.limit(), || {
            let evictions = node.agent.evictions()?;
            ensure!(evictions.len() > round as usize, "no eviction is reported");
            Ok(evictions)
        })?;
        let last = evictions.last().context("no eviction")?;
        ensure!(
            last.scope.as_str() == "node" && last.pod.uid == filler.uid(),
            "{last:?}"
        );
        let used = last.working_set_bytes.context("no working set")?;
        let past = used.saturating_sub(last.level_bytes);
        overshoots.push(past as f64 / MIB as f64);
        node.withdraw(&filler.spec)?;
    }
    context.spread("overshoot", overshoots, "MiB");
    node.finish()
}
