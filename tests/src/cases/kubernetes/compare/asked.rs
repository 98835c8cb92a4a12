//! The program, and what it is asked about: the pods of a node as they are, and as they were or would be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use podwarden_cgroup::Controller;
use serde_json::{Value, json};

use crate::containerd::weighs_linearly;
use crate::harness::values;
use crate::kubernetes::{Cluster, NODE, condition};

/// The program, asked about these pods on this node.
pub(super) struct Asked<'a> {
    program: &'a Path,
    document: Value,
    snapshot: PathBuf,
    /// Whether containers have weights by the curve that the kubelet's own cgroups have.
    linear: bool,
}

impl<'a> Asked<'a> {
    pub(super) fn new(cluster: &Cluster, program: &'a Path, pods: &[Value]) -> Result<Self> {
        let kubelet = cluster.kubelet_config()?;
        let config = json!({
            "ownership": "own",
            "systemReserved": kubelet["systemReserved"],
            "evictionHard": kubelet["evictionHard"],
        });
        let on_v2 = cluster.kubepods().mounts().memory_on_v2();
        let document = json!({
            "apiVersion": "podwarden.io/v1alpha1",
            "kind": "Snapshot",
            "cgroupVersion": if on_v2 { "v2" } else { "v1" },
            "cgroupDriver": kubelet["cgroupDriver"],
            "node": {"pids": values::machine_pids()?, "hugepages": huge_pages(cluster)?},
            "config": config,
            "pods": pods,
        });
        Self::of(cluster, program, document)
    }

    pub(super) fn of(cluster: &Cluster, program: &'a Path, document: Value) -> Result<Self> {
        let this = Self {
            program,
            document,
            snapshot: cluster.dir().join("snapshot.json"),
            linear: cluster.kubepods().mounts().memory_on_v2() && weighs_linearly()?,
        };
        this.write()?;
        Ok(this)
    }

    pub(super) fn write(&self) -> Result<()> {
        fs::write(&self.snapshot, self.document.to_string()).context("write the snapshot")
    }

    /// The rows of the tree, by cgroup.
    pub(super) fn plan(&self) -> Result<BTreeMap<String, Vec<Value>>> {
        let plan = self.answer(&["plan"])?;
        let rows = plan["tree"].as_array().context("the plan has no tree")?;
        let mut planned: BTreeMap<_, Vec<Value>> = BTreeMap::new();
        for row in rows {
            let path = row["path"].as_str().context("a row has no path")?;
            planned
                .entry(path.to_owned())
                .or_default()
                .push(row.clone());
        }
        Ok(planned)
    }

    /// The containers' values on v1, which has shares; none where the runtime's weight is the one that is explained.
    pub(super) fn shares(&self, uid: &str) -> Result<Option<Value>> {
        if !self.linear {
            return Ok(None);
        }
        let mut explained = self.answer(&["explain", uid, "--cgroup-version", "v1"])?;
        Ok(Some(explained["containers"].take()))
    }

    pub(super) fn answer(&self, args: &[&str]) -> Result<Value> {
        let mut command = Command::new(self.program);
        command
            .args(args)
            .arg("-f")
            .arg(&self.snapshot)
            .args(["-o", "json"]);
        let output = command.output().context("start podwarden")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success() && said.is_empty(),
            "{args:?}: {said}"
        );
        serde_json::from_slice(&output.stdout).with_context(|| format!("{args:?}: no JSON"))
    }
}

/// Page sizes of the node with how much it has of each; none where the cgroups of pods do not count them.
fn huge_pages(cluster: &Cluster) -> Result<Value> {
    let kubepods = cluster.kubepods();
    let mounts = kubepods.mounts();
    let with_memory = mounts.is_on_v2(Controller::HugeTlb) == mounts.memory_on_v2();
    if mounts.of(Controller::HugeTlb).is_none() || !with_memory {
        return Ok(json!({}));
    }
    let node = cluster.api.get(&format!("/api/v1/nodes/{NODE}"))?;
    let capacity = node["status"]["capacity"].as_object();
    let of_sizes = capacity.into_iter().flatten().filter_map(|(name, amount)| {
        let size = name.strip_prefix("hugepages-")?;
        Some((size.to_owned(), amount.clone()))
    });
    Ok(of_sizes.collect::<serde_json::Map<_, _>>().into())
}

/// The pods as if every resize that is asked for were granted.
pub(super) fn as_if_granted(pods: &[Value]) -> Vec<Value> {
    let mut pods = pods.to_vec();
    for pod in &mut pods {
        if condition(pod, "PodResizePending").is_some() {
            pod["status"]["containerStatuses"] = json!([]);
        }
    }
    pods
}

/// The pods with the resources that those of `specs` were started with.
pub(super) fn as_started(pods: &[Value], specs: &BTreeMap<String, Value>) -> Vec<Value> {
    let mut pods = pods.to_vec();
    for pod in &mut pods {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        if let Some(spec) = specs.get(name) {
            pod["spec"]["containers"] = spec["containers"].clone();
            pod["status"]["containerStatuses"] = json!([]);
        }
    }
    pods
}
