//! Observe mode decides what enforce mode does, and writes nothing: by every file's value before and
//! after, and by what the kernel says of writes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{CgroupWrites, Eviction};
use podwarden_policy::plan::Snapshot;
use serde::Deserialize;

use super::eviction::{Scene, small};
use super::{Case, Context, portable};
use crate::harness::values::{self, Values};
use crate::harness::{Cgroup, Node, Writes, eventually};

pub(super) const CASES: &[Case] = &[portable("observe_same_decisions", observe_same_decisions)];

const MIB: u64 = 1 << 20;

/// `GET /v1/plan`.
#[derive(Deserialize)]
struct Planned {
    recorded: Snapshot,
}

/// What an eviction is decided by; its sizes and times differ from run to run.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    victim: String,
    class: String,
    scope: String,
    /// As configured: how far below it counts depends on how fast it was filled.
    level: u64,
}

impl Decision {
    fn of(eviction: &Eviction) -> Self {
        Self {
            victim: eviction.pod.name.to_string(),
            class: eviction.qos_class.clone(),
            scope: eviction.scope.to_string(),
            level: eviction.level_bytes + eviction.headroom_bytes,
        }
    }
}

/// Every cgroup of kubepods by its path in which uids are replaced by the pods' names.
fn named(scene: &Scene) -> Result<BTreeMap<String, Cgroup>> {
    fn visit(cgroup: &Cgroup, found: &mut Vec<Cgroup>) {
        found.push(cgroup.clone());
        cgroup
            .children()
            .iter()
            .for_each(|child| visit(child, found));
    }
    let node = &scene.node;
    let pods = node.agent.pods()?;
    let mut all = Vec::new();
    visit(&node.kubepods(), &mut all);
    let name = |cgroup: &Cgroup| {
        let path = cgroup.path().replace(node.sandbox.root.path(), "");
        pods.iter().fold(path, |path, pod| {
            path.replace(pod.pod_ref.uid.as_str(), &pod.pod_ref.name)
        })
    };
    Ok(all
        .into_iter()
        .map(|cgroup| (name(&cgroup), cgroup))
        .collect())
}

/// What the agent would have the cgroups hold, by the same names.
fn planned(scene: &Scene) -> Result<BTreeMap<String, Values>> {
    let node = &scene.node;
    let planned: Planned = node.agent.get("/v1/plan")?;
    let said = values::expected(&planned.recorded, &node.sandbox.mounts);
    let named = named(scene)?;
    said.into_iter()
        .map(|(name, values)| {
            let path = node.sandbox.cgroup("cgroupfs", &name).path().to_owned();
            let (label, _) = named
                .iter()
                .find(|(_, cgroup)| cgroup.path() == path)
                .with_context(|| format!("the plan has a cgroup that is not there, {path}"))?;
            Ok((label.clone(), values))
        })
        .collect()
}

/// Every setting of the tree.
fn tree(node: &Node) -> Result<BTreeMap<std::path::PathBuf, String>> {
    let mut found = BTreeMap::new();
    node.kubepods().every_setting(&mut found)?;
    Ok(found)
}

fn observe_same_decisions(context: &Context) -> Result<()> {
    let (planned, decided) = observed(context).context("in observe mode")?;
    let scene = Scene::new(context, &small("enforce"))?;
    eventually(scene.node.limit(), || {
        let named = named(&scene)?;
        for (label, said) in &planned {
            let cgroup = named.get(label).with_context(|| format!("no {label}"))?;
            let shown = values::read(cgroup)?;
            // A tree that the agent makes itself may have more controllers than one that it finds.
            for (file, value) in said {
                let found = shown.get(file);
                ensure!(
                    found == Some(value),
                    "{file} of {label} holds {found:?}, {value} was planned"
                );
            }
        }
        Ok(())
    })
    .context("enforce mode did not write what observe mode had planned")?;
    let (hog, _stamps) = scene.start_hog(96 * MIB, 300)?;
    let enforced = Decision::of(&scene.first_eviction()?);
    ensure!(
        enforced == decided,
        "enforce mode decided {enforced:?}, observe mode {decided:?}"
    );
    drop(hog);
    scene.finish()
}

/// What observe mode plans and decides, having looked that it writes nothing.
fn observed(context: &Context) -> Result<(BTreeMap<String, Values>, Decision)> {
    let scene = Scene::new(context, &small("observe"))?;
    let node = &scene.node;
    let mut writes = Writes::new()?;
    for cgroup in named(&scene)?.values() {
        writes.watch(cgroup)?;
    }
    let planned = eventually(node.limit(), || {
        let planned = planned(&scene)?;
        // kubepods, two tiers and four pods.
        ensure!(planned.len() >= 7, "only {:?} are planned", planned.keys());
        Ok(planned)
    })?;
    let before = tree(node)?;
    ensure!(before.len() > 7 * 5, "only {} settings", before.len());
    let (mut hog, _stamps) = scene.start_hog(96 * MIB, 300)?;
    let first = scene.first_eviction()?;
    ensure!(first.dry_run && first.processes == 0, "{first:?}");
    // Another comparison of the tree with the plan, should it come to write something.
    let compared = node.agent.node()?.reconciles;
    node.pod(crate::harness::PodSpec::best_effort("late"))?;
    eventually(node.limit(), || {
        let now = node.agent.node()?.reconciles;
        ensure!(now > compared, "{now} comparisons");
        Ok(())
    })?;
    ensure!(hog.is_alive(), "the hog was killed");
    let after = tree(node)?;
    for (file, value) in &before {
        let now = after.get(file);
        ensure!(
            now == Some(value),
            "{} held {value:?} and now {now:?}",
            file.display()
        );
    }
    let written = writes.take()?;
    ensure!(written.is_empty(), "written: {written:?}");
    let counted = node.agent.node()?.cgroup_writes;
    ensure!(counted == CgroupWrites::default(), "{counted:?}");
    hog.kill();
    drop(hog);
    scene.finish_observed()?;
    Ok((planned, Decision::of(&first)))
}
