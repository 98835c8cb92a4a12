//! What is left of an agent that is removed from a node, and what it says where it owns the tree beside a kubelet.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::NodeStats;
use serde_json::{Value, json};

use super::LIMIT;
use crate::cases::undo::found;
use crate::cases::{Case, Context, case};
use crate::containerd::BUSYBOX;
use crate::harness::eventually;
use crate::kubernetes::{Cluster, Pod, condition};

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_removed", kubernetes_removed)];

const UNDO: &str = include_str!("../../../../deploy/kubernetes/undo.yaml");
const SETS: &str = "/apis/apps/v1/namespaces/podwarden/daemonsets";
/// Where an agent with `stateDir` pins its accounts.
const PINS: &str = "/sys/fs/bpf/podwarden";

/// An agent that would own the tree says that a kubelet does. Once it is deleted the shipped undo removes what is left,
/// and nothing of the kubelet's.
fn kubernetes_removed(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(|shipped| shipped.replace("ownership: assist", "ownership: own"))?;
    eventually(LIMIT, || {
        let node: NodeStats = cluster.ask("/v1/node")?;
        let said = |message: &String| message.contains("and a kubelet runs here");
        ensure!(
            node.degradations.iter().any(said),
            "it does not say that a kubelet runs: {:?}",
            node.degradations
        );
        Ok(())
    })?;
    let calm = Pod::holding("calm", 4).requesting("16Mi", false);
    let calm = cluster.run_now(&calm)?;
    ensure!(!pins(&cluster)?.is_empty(), "nothing is pinned");
    let (code, _) = undo(&cluster, context.agent(), &[])?;
    ensure!(code == Some(3), "it undid beside an agent: {code:?}");

    cluster.without_agent()?;
    ensure!(
        !pins(&cluster)?.is_empty(),
        "the accounts went with the agent"
    );
    let tiers = ["burstable", "besteffort"].map(|tier| cluster.kubepods().child(tier));
    let (code, answer) = undo(&cluster, context.agent(), &["--dry-run"])?;
    ensure!(code == Some(0), "{code:?} {answer}");
    let (gone, _) = found(&answer, "cgroups")?;
    ensure!(
        gone.is_empty(),
        "cgroups of the kubelet's would go: {gone:?}"
    );
    undo_as_shipped(&cluster)?;
    let (code, answer) = undo(&cluster, context.agent(), &[])?;
    ensure!(code == Some(0), "{code:?} {answer}");
    let left = pins(&cluster)?;
    ensure!(left.is_empty(), "{left:?} are left: {answer}");
    let (gone, _) = found(&answer, "cgroups")?;
    ensure!(gone.is_empty(), "cgroups of the kubelet's went: {gone:?}");
    let pod = tiers[0].child(&format!("pod{calm}"));
    for cgroup in tiers.iter().chain([&pod]) {
        ensure!(cgroup.exists(), "{} is gone", cgroup.path());
    }
    ensure!(cluster.starts(&calm)? == 1, "a pod was started again");
    cluster.clear()
}

/// Has the shipped DaemonSet undo the node, until its pod is ready, and removes it.
fn undo_as_shipped(cluster: &Cluster) -> Result<()> {
    let mut set: Value = serde_saphyr::from_str(UNDO).context("deploy/kubernetes/undo.yaml")?;
    // The registry of its image is not there.
    let done = &mut set["spec"]["template"]["spec"]["containers"][0];
    done["image"] = BUSYBOX.into();
    done["command"] = json!(["/bin/sleep", "1000000"]);
    cluster.api.create(SETS, &set)?;
    let undone = eventually(LIMIT, || {
        let pod = cluster.agent_pod()?;
        let undone = &pod["status"]["initContainerStatuses"][0];
        ensure!(undone["restartCount"] == 0, "undo failed: {undone}");
        let ready = condition(&pod, "Ready").context("its pod has no condition Ready")?;
        ensure!(ready["status"] == "True", "{undone}");
        let left = pins(cluster)?;
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    });
    cluster.api.delete(&format!("{SETS}/podwarden-undo"))?;
    undone?;
    cluster.without_agent()
}

/// The exit code and the answer of `podwarden undo` on the node.
fn undo(cluster: &Cluster, program: &Path, more: &[&str]) -> Result<(Option<i32>, Value)> {
    let args = [&["undo", "-o", "json"], more].concat();
    let output = cluster.on_node(program, &args)?;
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok((output.status.code(), answer))
}

fn pins(cluster: &Cluster) -> Result<Vec<String>> {
    let dir = cluster.path(PINS);
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}
