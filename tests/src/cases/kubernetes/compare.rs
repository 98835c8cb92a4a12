//! What `podwarden plan` and `podwarden explain` say beside what the kernel holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::Bytes;
use serde_json::{Value, json};

use crate::harness::values::{self, Values};
use crate::harness::{Cgroup, eventually, sleep};
use crate::kubernetes::{Cluster, condition};

/// Between two comparisons.
const LOOK: Duration = Duration::from_secs(2);
const OOM_SCORE: &str = "oom_score_adj";
const BURSTABLE: &str = "/kubepods/burstable";
/// `memory.limit_in_bytes` is whole pages.
const PAGE: Bytes = Bytes(4096);

/// Compares until nothing differs; after `limit`, what differs.
pub(super) fn until_same<const N: usize>(
    limit: Duration,
    mut compare: impl FnMut() -> Result<[Comparison; N]>,
) -> Result<[Comparison; N]> {
    eventually(limit, || {
        let same = compare().and_then(|compared| {
            let differences: Vec<_> = compared.iter().flat_map(|one| &one.differences).collect();
            ensure!(differences.is_empty(), "{differences:?}");
            Ok(compared)
        });
        if same.is_err() {
            sleep(LOOK)?;
        }
        same
    })
    .context("files differ from what is said")
}

/// What was compared, and what was not the same.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Files that a kubelet or a runtime writes.
    pub(super) values: usize,
    pub(super) cgroups: usize,
    pub(super) containers: usize,
    pub(super) differences: Vec<String>,
}

impl Comparison {
    /// The two sides are read one after the other: what changes between is a difference.
    pub(super) fn now(cluster: &Cluster, program: &Path) -> Result<Self> {
        let pods = cluster.api.list("/api/v1/pods")?;
        let asked = Asked::new(cluster, program, &pods)?;
        let mut planned = asked.plan()?;
        // The kubelet's burstable tier counts the requests of specs, those that are not granted too.
        let specs = Asked::new(cluster, program, &as_if_granted(&pods))?.plan()?;
        planned.extend(specs.into_iter().filter(|(path, _)| path == BURSTABLE));
        asked.write()?;
        Self::of(cluster, &asked, &pods, &planned)
    }

    /// The same by what the agent beside the kubelet knows of the node: as if it owned the tree.
    pub(super) fn as_told(cluster: &Cluster, program: &Path) -> Result<Self> {
        let pods = cluster.api.list("/api/v1/pods")?;
        let mut document: Value = cluster.ask("/v1/plan")?;
        document["recorded"]["ownership"] = "own".into();
        let asked = Asked::of(cluster, program, document)?;
        let planned = asked.plan()?;
        Self::of(cluster, &asked, &pods, &planned)
    }

    fn of(
        cluster: &Cluster,
        asked: &Asked<'_>,
        pods: &[Value],
        planned: &BTreeMap<String, Vec<Value>>,
    ) -> Result<Self> {
        let mut this = Self::default();
        let root = cluster.kubepods();
        let root = root.path().strip_suffix("/kubepods").unwrap_or_default();
        let of_pods = planned.keys().filter(|path| path.contains("/pod"));
        let wanted: BTreeSet<_> = of_pods.map(|path| format!("{root}{path}")).collect();
        let found: BTreeSet<_> = cluster.pod_cgroups().into_iter().collect();
        for path in wanted.difference(&found) {
            this.differences
                .push(format!("there is no {path}, which is planned"));
        }
        for path in found.difference(&wanted) {
            this.differences.push(format!("{path} is not planned"));
        }
        for (path, rows) in planned {
            let cgroup = Cgroup::new(cluster.kubepods().mounts(), &format!("{root}{path}"));
            if cgroup.exists() {
                this.cgroups += 1;
                this.add(path, &cgroup, &rows.iter().collect::<Vec<_>>())?;
            }
        }
        for pod in pods {
            this.containers_of(cluster, asked, pod)?;
        }
        Ok(this)
    }

    fn add(&mut self, what: &str, cgroup: &Cgroup, rows: &[&Value]) -> Result<()> {
        let said = said(rows)?;
        let (compared, differences) = values::differences(cgroup, &said)?;
        self.values += compared;
        let differences = differences.into_iter().map(|one| format!("{what}: {one}"));
        self.differences.extend(differences);
        Ok(())
    }

    /// The containers that run have files, and no others.
    fn containers_of(&mut self, cluster: &Cluster, asked: &Asked<'_>, pod: &Value) -> Result<()> {
        // Ephemeral containers have no resources, and `explain` leaves them out.
        let lists = ["initContainerStatuses", "containerStatuses"];
        let of_status = lists.iter().flat_map(|list| pod["status"][list].as_array());
        let running: Vec<_> = of_status
            .flatten()
            .filter(|status| status["state"]["running"].is_object())
            .collect();
        let phase = &pod["status"]["phase"];
        if running.is_empty() || phase == "Succeeded" || phase == "Failed" {
            return Ok(());
        }
        let mirror = &pod["metadata"]["annotations"]["kubernetes.io/config.mirror"];
        let uid = mirror.as_str().or(pod["metadata"]["uid"].as_str());
        let uid = uid.context("a pod has no uid")?;
        let explained = asked.answer(&["explain", uid])?;
        let path = explained["cgroups"][0]["path"].as_str();
        let path = path.with_context(|| format!("pod {uid} has no cgroup: {explained}"))?;
        let explained = explained["containers"]
            .as_array()
            .context("no containers")?;
        let root = cluster.kubepods();
        let root = root.path().strip_suffix("/kubepods").unwrap_or_default();
        for status in running {
            let name = status["name"].as_str().context("a container has no name")?;
            let what = format!("container {name} of {}", pod["metadata"]["name"]);
            let its = explained.iter().find(|one| {
                let full = one["name"].as_str().unwrap_or_default();
                full.split(' ').next() == Some(name)
            });
            let Some(its) = its else {
                self.differences.push(format!("{what} is not explained"));
                continue;
            };
            let id = status["containerID"].as_str();
            let id = id
                .and_then(|id| id.split_once("://"))
                .context("no containerID")?
                .1;
            let cgroup = Cgroup::new(cluster.kubepods().mounts(), &format!("{root}{path}/{id}"));
            let rows: Vec<_> = its["values"].as_array().into_iter().flatten().collect();
            self.containers += 1;
            self.add(&what, &cgroup, &rows)?;
            self.oom_score(&what, &cgroup, &rows)?;
        }
        Ok(())
    }

    /// A runtime that may not lower it gives a process its own (`restrict_oom_score_adj` of containerd).
    fn oom_score(&mut self, what: &str, cgroup: &Cgroup, rows: &[&Value]) -> Result<()> {
        let row = rows.iter().find(|row| row["file"] == OOM_SCORE);
        let row = row.with_context(|| format!("{what} has no {OOM_SCORE}"))?;
        let wanted: i32 = row["value"].as_str().context("no text")?.parse()?;
        let wanted = wanted.max(score("self")?);
        for pid in cgroup.procs() {
            let found = score(&pid.to_string())?;
            self.values += 1;
            if found != wanted {
                let text = format!("{what}: {OOM_SCORE} is {found}, the plan says {wanted}");
                self.differences.push(text);
            }
        }
        Ok(())
    }
}

fn score(pid: &str) -> Result<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/{OOM_SCORE}"));
    Ok(text
        .with_context(|| format!("read {OOM_SCORE} of {pid}"))?
        .trim()
        .parse()?)
}

/// Rows in the spelling in which [`values::read`] gives the kernel's.
fn said(rows: &[&Value]) -> Result<Values> {
    let mut said = Values::new();
    for row in rows {
        let text = |key: &str| {
            row[key]
                .as_str()
                .with_context(|| format!("{row} has no {key}"))
        };
        said.insert(text("file")?.to_owned(), text("value")?.to_owned());
    }
    said.remove(OOM_SCORE);
    let period = said.remove("cpu.cfs_period_us");
    for (file, value) in &mut said {
        match &**file {
            "cpu.cfs_quota_us" if value != "-1" => {
                let period = period.as_deref().context("a quota has no period")?;
                value.push_str(&format!(" {period}"));
            }
            "memory.limit_in_bytes" if value != "-1" => {
                *value = Bytes(value.parse()?).round_down(PAGE).0.to_string();
            }
            _ => {}
        }
        if value == "-1" {
            *value = "max".to_owned();
        }
    }
    Ok(said)
}

/// The pods as if every resize that is asked for were granted.
fn as_if_granted(pods: &[Value]) -> Vec<Value> {
    let mut pods = pods.to_vec();
    for pod in &mut pods {
        if condition(pod, "PodResizePending").is_some() {
            pod["status"]["containerStatuses"] = json!([]);
        }
    }
    pods
}

/// The program, asked about these pods on this node.
struct Asked<'a> {
    program: &'a Path,
    document: Value,
    snapshot: PathBuf,
}

impl<'a> Asked<'a> {
    fn new(cluster: &Cluster, program: &'a Path, pods: &[Value]) -> Result<Self> {
        let kubelet = cluster.kubelet_config()?;
        let config = json!({
            "ownership": "own",
            "systemReserved": kubelet["systemReserved"],
            "evictionHard": kubelet["evictionHard"],
        });
        let document = json!({
            "apiVersion": "podwarden.io/v1alpha1",
            "kind": "Snapshot",
            "cgroupVersion": "v1",
            "cgroupDriver": kubelet["cgroupDriver"],
            "config": config,
            "pods": pods,
        });
        Self::of(cluster, program, document)
    }

    fn of(cluster: &Cluster, program: &'a Path, document: Value) -> Result<Self> {
        let this = Self {
            program,
            document,
            snapshot: cluster.dir().join("snapshot.json"),
        };
        this.write()?;
        Ok(this)
    }

    fn write(&self) -> Result<()> {
        fs::write(&self.snapshot, self.document.to_string()).context("write the snapshot")
    }

    /// The rows of the tree, by cgroup.
    fn plan(&self) -> Result<BTreeMap<String, Vec<Value>>> {
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

    fn answer(&self, args: &[&str]) -> Result<Value> {
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
