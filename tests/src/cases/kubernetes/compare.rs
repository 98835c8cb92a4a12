//! What `podwarden plan` and `podwarden explain` say beside what the kernel holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::Bytes;
use serde_json::Value;

use self::asked::{Asked, as_if_granted, as_started};
use self::systemd::{round_quota, tasks_of_scopes};
use crate::containerd::linear_weight;
use crate::harness::values::{self, Values};
use crate::harness::{Cgroup, eventually, sleep};
use crate::kubernetes::{Cluster, Driver, restricts_oom_score, uid};

mod asked;
mod systemd;

/// Between two comparisons.
const LOOK: Duration = Duration::from_secs(2);
const OOM_SCORE: &str = "oom_score_adj";
/// Limits and protections of memory are whole pages.
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

/// What the program says of the pods.
struct Known<'a> {
    /// Of them as they are.
    asked: &'a Asked<'a>,
    /// Of containers as they were started, by the pod's uid, where that is not as they are.
    scores: BTreeMap<String, Value>,
    /// Tasks of a container that no kubelet limits.
    tasks: Option<String>,
}

/// What was compared, and what was not the same.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Files that a kubelet or a runtime writes.
    pub(super) values: usize,
    pub(super) cgroups: usize,
    pub(super) containers: usize,
    /// Quotas that systemd has rounded.
    pub(super) rounded: usize,
    pub(super) differences: Vec<String>,
}

impl Comparison {
    /// The two sides are read one after the other: what changes between is a difference.
    pub(super) fn now(cluster: &Cluster, program: &Path) -> Result<Self> {
        Self::after_resizes(cluster, program, &BTreeMap::new())
    }

    /// The same where the containers of some pods were started with other resources, by the pods' names: they keep the
    /// `oom_score_adj` of their start, and `explain` says what a start gives now.
    pub(super) fn after_resizes(
        cluster: &Cluster,
        program: &Path,
        specs: &BTreeMap<String, Value>,
    ) -> Result<Self> {
        let pods = cluster.api.list("/api/v1/pods")?;
        let asked = Asked::new(cluster, program, &pods)?;
        let mut planned = asked.plan()?;
        // The kubelet's burstable tier counts the requests of specs, those that are not granted too.
        let granted = Asked::new(cluster, program, &as_if_granted(&pods))?.plan()?;
        let burstable = cluster.tier("burstable");
        let of_tier = |path: &String| cluster.cgroup(path).path() == burstable.path();
        planned.extend(granted.into_iter().filter(|(path, _)| of_tier(path)));
        let started = Asked::new(cluster, program, &as_started(&pods, specs))?;
        let mut scores = BTreeMap::new();
        for pod in &pods {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            if specs.contains_key(name) {
                let uid = uid(pod)?;
                let mut explained = started.answer(&["explain", &uid])?;
                scores.insert(uid, explained["containers"].take());
            }
        }
        asked.write()?;
        let known = Known {
            asked: &asked,
            scores,
            tasks: tasks_of_scopes(cluster)?,
        };
        Self::of(cluster, &known, &pods, &planned)
    }

    /// The same by what the agent beside the kubelet knows of the node: as if it owned the tree.
    pub(super) fn as_told(cluster: &Cluster, program: &Path) -> Result<Self> {
        let pods = cluster.api.list("/api/v1/pods")?;
        let mut document: Value = cluster.ask("/v1/plan")?;
        document["recorded"]["ownership"] = "own".into();
        let asked = Asked::of(cluster, program, document)?;
        let planned = asked.plan()?;
        let known = Known {
            asked: &asked,
            scores: BTreeMap::new(),
            tasks: tasks_of_scopes(cluster)?,
        };
        Self::of(cluster, &known, &pods, &planned)
    }

    fn of(
        cluster: &Cluster,
        known: &Known<'_>,
        pods: &[Value],
        planned: &BTreeMap<String, Vec<Value>>,
    ) -> Result<Self> {
        let mut this = Self::default();
        let paths = planned
            .keys()
            .map(|path| cluster.cgroup(path).path().to_owned());
        let wanted: BTreeSet<_> = paths.filter(|path| cluster.is_pod(path)).collect();
        let found = cluster.pod_cgroups().into_iter();
        let found: BTreeSet<_> = found.map(|pod| pod.path().to_owned()).collect();
        for path in wanted.difference(&found) {
            this.differences
                .push(format!("there is no {path}, which is planned"));
        }
        for path in found.difference(&wanted) {
            this.differences.push(format!("{path} is not planned"));
        }
        for (path, rows) in planned {
            let cgroup = cluster.cgroup(path);
            if cgroup.exists() {
                this.cgroups += 1;
                let said = said(&rows.iter().collect::<Vec<_>>())?;
                this.add(cluster, path, &cgroup, said)?;
            }
        }
        for pod in pods {
            this.containers_of(cluster, known, pod)?;
        }
        Ok(this)
    }

    fn add(
        &mut self,
        cluster: &Cluster,
        what: &str,
        cgroup: &Cgroup,
        mut said: Values,
    ) -> Result<()> {
        if cluster.driver() == Driver::Systemd {
            self.rounded += usize::from(round_quota(cgroup, &mut said)?);
        }
        let (compared, differences) = values::differences(cgroup, &said)?;
        self.values += compared;
        let differences = differences.into_iter().map(|one| format!("{what}: {one}"));
        self.differences.extend(differences);
        Ok(())
    }

    /// The containers that run have files, and no others.
    fn containers_of(&mut self, cluster: &Cluster, known: &Known<'_>, pod: &Value) -> Result<()> {
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
        let explained = known.asked.answer(&["explain", uid])?;
        let shares = known.asked.shares(uid)?;
        let started = known.scores.get(uid).unwrap_or(&explained["containers"]);
        let path = explained["cgroups"][0]["path"].as_str();
        let path = path.with_context(|| format!("pod {uid} has no cgroup: {explained}"))?;
        for status in running {
            let name = status["name"].as_str().context("a container has no name")?;
            let what = format!("container {name} of {}", pod["metadata"]["name"]);
            let Some(its) = of_container(&explained["containers"], name) else {
                self.differences.push(format!("{what} is not explained"));
                continue;
            };
            let id = status["containerID"].as_str();
            let id = id
                .and_then(|id| id.split_once("://"))
                .context("no containerID")?
                .1;
            let cgroup = cluster.cgroup(path).child(&cluster.driver().container(id));
            let mut its = its["values"].clone();
            if let Some(shares) = &shares {
                reweigh(&mut its, name, shares).with_context(|| what.clone())?;
            }
            let rows: Vec<_> = its.as_array().into_iter().flatten().collect();
            self.containers += 1;
            let mut said = said(&rows)?;
            if let Some(tasks) = &known.tasks {
                said.entry("pids.max".to_owned()).or_insert(tasks.clone());
            }
            self.add(cluster, &what, &cgroup, said)?;
            let its = of_container(started, name);
            let its = its.with_context(|| format!("{what} was not explained before"))?;
            self.oom_score(&what, &cgroup, &its["values"])?;
        }
        Ok(())
    }

    /// A runtime that may not lower it gives a process its own (`restrict_oom_score_adj` of containerd).
    fn oom_score(&mut self, what: &str, cgroup: &Cgroup, rows: &Value) -> Result<()> {
        let mut rows = rows.as_array().into_iter().flatten();
        let row = rows.find(|row| row["file"] == OOM_SCORE);
        let row = row.with_context(|| format!("{what} has no {OOM_SCORE}"))?;
        let mut wanted: i32 = row["value"].as_str().context("no text")?.parse()?;
        if restricts_oom_score() {
            wanted = wanted.max(score("self")?);
        }
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
            "cpu.max" if value.starts_with("max ") => "max".clone_into(value),
            _ if file.starts_with("memory.") && value != "-1" && value != "max" => {
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

/// Values with the weight of a runc that has the linear curve: `explain` says that of newer ones.
fn reweigh(values: &mut Value, container: &str, shares: &Value) -> Result<()> {
    let its = of_container(shares, container).context("it has no shares")?;
    let mut rows = its["values"].as_array().into_iter().flatten();
    let shares = rows.find(|row| row["file"] == "cpu.shares");
    let shares = shares.and_then(|row| row["value"].as_str());
    let shares = shares.context("it has no shares")?.parse()?;
    let mut rows = values.as_array_mut().into_iter().flatten();
    let weight = rows.find(|row| row["file"] == "cpu.weight");
    weight.context("it has no weight")?["value"] = linear_weight(shares).to_string().into();
    Ok(())
}

/// What `explain` says of one container.
fn of_container<'a>(containers: &'a Value, name: &str) -> Option<&'a Value> {
    let mut all = containers.as_array()?.iter();
    all.find(|one| {
        let full = one["name"].as_str().unwrap_or_default();
        full.split(' ').next() == Some(name)
    })
}
