//! Beside a kubelet that owns the tree.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;
use podwarden_policy::{Bytes, reserve};

use super::super::Context;
use super::drift_events;
use super::files::{File, files, is_limit, is_reservation, mixed};
use crate::harness::{Node, Options, Pod, PodSpec, eventually};

/// What the kubelet's memory reservation gives the pods of `mixed` on v2, and their parents; nothing
/// on v1, which has no such files.
fn reservations(node: &Node, pods: &[Pod]) -> Result<Vec<File>> {
    let mut kept = files(&node.kubepods(), |name| name == "memory.min")?;
    kept.extend(files(&node.tier("burstable")?, |name| {
        name == "memory.low"
    })?);
    for pod in pods {
        for file in files(&pod.cgroup, is_reservation)? {
            let expected = match (pod.spec.qos.as_str(), file.path.ends_with("memory.min")) {
                ("Guaranteed", true) => Bytes::mebi(64),
                ("Burstable", false) => Bytes::mebi(32),
                _ => Bytes::ZERO,
            };
            let (found, path) = (file.kept.trim(), file.path.display());
            ensure!(found == expected.0.to_string(), "{path} holds {found}");
            kept.push(file);
        }
    }
    Ok(kept)
}

/// A kubelet owns the tree; the operator gave the tiers' memory to the agent, and the reservation
/// where there is one.
pub(super) fn assist_fights_nothing(context: &Context) -> Result<()> {
    let options = Options {
        assist: true,
        config: "qosReserved: {memory: 50%}\nmemoryReservationPolicy: TieredReservation\n"
            .to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    for tier in ["burstable", "besteffort"] {
        node.kubepods().child(tier).create()?;
    }
    let pods = node.pods(mixed(6))?;
    let tiers = [node.tier("burstable")?, node.tier("besteffort")?];
    let machine = podwarden_policy::Node {
        memory_capacity: Bytes::gibi(16),
        ..podwarden_policy::Node::default()
    };
    let allocatable = reserve::allocatable(&machine).kubepods_memory;
    let tier_files = |allocatable: Bytes| {
        // Two pods each.
        let (guaranteed, burstable) = (Bytes::mebi(128), Bytes::mebi(64));
        let limits = reserve::tier_limits(allocatable, guaranteed, burstable, 50);
        let limits = [limits.burstable, limits.besteffort];
        eventually(node.limit(), || {
            let mut given = Vec::new();
            for (tier, limit) in tiers.iter().zip(limits) {
                given.extend(files(tier, is_limit)?);
                let found = given.last().context("no limit")?.kept.trim();
                ensure!(found == limit.0.to_string(), "{found} and not {}", limit.0);
            }
            Ok(given)
        })
    };
    let mut given: Vec<File> = tier_files(allocatable)?;
    given.extend(eventually(node.limit(), || reservations(&node, &pods))?);
    let mut foreign = files(&node.kubepods(), |_| true)?;
    for cgroup in tiers.iter().chain(pods.iter().map(|pod| &pod.cgroup)) {
        foreign.extend(files(cgroup, |_| true)?);
    }
    foreign.retain(|file| given.iter().all(|other| other.path != file.path));
    // A pod that the kubelet has not made a cgroup for yet, and one that only the kubelet knows.
    let unmade = node.manifest(&PodSpec::best_effort("unmade"))?;
    let unknown = node.tier("besteffort")?.child("podunknown");
    unknown.create()?;
    for file in &foreign {
        file.spoil()?;
    }
    let written: Vec<_> = foreign.iter().map(File::read).collect::<Result<_>>()?;
    // One of them is the pods' limit, which the tiers' follow.
    let limit = foreign.iter().find(|file| {
        let name = file.path.file_name().and_then(|name| name.to_str());
        file.path
            .parent()
            .is_some_and(|dir| dir.ends_with("kubepods"))
            && name.is_some_and(is_limit)
    });
    let limit: u64 = limit.context("kubepods has no limit")?.foreign.parse()?;
    given.splice(..tiers.len(), tier_files(Bytes(limit))?);
    let reconciles = node.agent.node()?.reconciles;
    for _ in 0..2 {
        for file in &given {
            file.spoil()?;
        }
        eventually(node.limit(), || {
            for file in &given {
                ensure!(
                    file.is_kept()?,
                    "{} holds {}",
                    file.path.display(),
                    file.read()?
                );
            }
            Ok(())
        })?;
        // And after a pass over the whole tree.
        node.pods(vec![PodSpec::best_effort("another")])?;
        eventually(node.limit(), || {
            ensure!(node.agent.node()?.reconciles > reconciles, "no pass yet");
            Ok(())
        })?;
    }
    for (file, written) in foreign.iter().zip(written) {
        let found = file.read()?;
        ensure!(
            found == written,
            "{} held {written:?}, now {found:?}",
            file.path.display()
        );
    }
    ensure!(!unmade.exists(), "it made a pod's cgroup");
    ensure!(unknown.exists(), "it removed a pod's cgroup");
    let events = node.agent.events(0)?;
    for event in drift_events(&events) {
        let ours = matches!(&event.kind, EventKind::ForeignWrite { cgroup, property, .. }
            if property == "memory limit" && !cgroup.contains("/pod")
                || property == "memory min"
                || property == "memory low");
        ensure!(ours, "{event:?}");
    }
    let told = drift_events(&events).count();
    let expected = 2 * given.len();
    ensure!(told == expected, "{told} corrections of {expected}");
    let own = node.kubepods();
    node.finish_with(&own)
}
