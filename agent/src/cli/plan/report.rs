//! A plan, as rows that a table and JSON both print.

use std::{borrow::Cow, fmt::Write as _};

use podwarden_policy::{
    Pod,
    desired::{self, Desired},
    evict::{self, Ranked},
    plan::{self, Action, Snapshot},
};
use serde::Serialize;

use super::{cpu, files::files, input::Input, reclaimed};
use crate::{api::types::PodRef, cli::output};

/// What `-o json` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Every value of the tree, parents before children.
    pub(crate) tree: Vec<Row>,
    /// The first to be evicted first.
    pub(crate) ranking: Vec<Place>,
    /// Pods that are never evicted.
    pub(crate) protected: Vec<Protected>,
    /// What the agent would do, in order.
    pub(crate) actions: Vec<Step>,
    /// What the node offers a second time, and where each figure comes from; empty where that is not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) reclaimed: Vec<reclaimed::Row>,
    /// What the CPU strategies give and hold back; empty where all are off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) cpu_strategies: Vec<cpu::Row>,
    /// What is left out, and why.
    pub(crate) errors: Vec<String>,
}

/// One file of a cgroup.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    /// Below the controller's mount point and the configured root.
    pub(crate) path: String,
    pub(crate) file: String,
    pub(crate) value: String,
    pub(crate) reason: String,
}

/// A pod's place in the order of eviction.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    pub(crate) pod_ref: PodRef,
    pub(crate) qos_class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) working_set_bytes: Option<u64>,
    pub(crate) reason: String,
}

/// A pod that is never evicted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Protected {
    pub(crate) pod_ref: PodRef,
    pub(crate) reason: String,
}

/// One thing that the agent would do.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Step {
    /// `make`, `write`, `remove` or `evict`.
    pub(crate) action: &'static str,
    pub(crate) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod_ref: Option<PodRef>,
    pub(crate) reason: String,
}

impl Report {
    pub(crate) fn of(input: &Input) -> Self {
        let snapshot = &input.snapshot;
        let tree = desired::tree(snapshot);
        Self {
            tree: tree.iter().flat_map(|cgroup| rows(input, cgroup)).collect(),
            ranking: ranking(snapshot).iter().map(place).collect(),
            protected: protected(snapshot),
            actions: plan::plan(snapshot)
                .iter()
                .flat_map(|action| steps(input, action))
                .collect(),
            reclaimed: input
                .reclaimed
                .as_ref()
                .map_or_else(Vec::new, reclaimed::rows),
            cpu_strategies: cpu::rows(&input.cpu_strategies, snapshot),
            errors: input.errors.clone(),
        }
    }

    /// For people: three tables.
    pub(crate) fn table(&self) -> String {
        let mut rows = vec![["CGROUP", "FILE", "VALUE", "REASON"].map(Cow::Borrowed)];
        rows.extend(
            self.tree
                .iter()
                .map(|row| [&row.path, &row.file, &row.value, &row.reason].map(Cow::from)),
        );
        let mut text = columns(&rows);

        text.push_str("\nEviction order\n");
        let mut rows = vec![["", "POD", "CLASS", "WORKING SET", "REASON"].map(Cow::Borrowed)];
        for (number, place) in (1..).zip(&self.ranking) {
            let used = place.working_set_bytes.map(output::bytes);
            rows.push([
                format!("{number}").into(),
                full_name(&place.pod_ref).into(),
                place.qos_class.into(),
                used.map_or("unknown".into(), Cow::from),
                Cow::from(&place.reason),
            ]);
        }
        for protected in &self.protected {
            rows.push([
                "never".into(),
                full_name(&protected.pod_ref).into(),
                "".into(),
                "".into(),
                Cow::from(&protected.reason),
            ]);
        }
        match rows.len() {
            1 => text.push_str("no pod has a cgroup\n"),
            _ => text.push_str(&columns(&rows)),
        }

        text.push_str("\nActions\n");
        if self.actions.is_empty() {
            text.push_str("nothing to do\n");
        }
        for step in &self.actions {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", step.line());
        }
        if !self.reclaimed.is_empty() {
            text.push_str("\nReclaimed resources\n");
            text.push_str(&reclaimed::table(&self.reclaimed));
        }
        if !self.cpu_strategies.is_empty() {
            text.push_str("\nCPU strategies\n");
            text.push_str(&cpu::table(&self.cpu_strategies));
        }
        text
    }
}

impl Step {
    fn line(&self) -> String {
        let Self {
            action,
            path,
            file,
            value,
            pod_ref,
            reason,
        } = self;
        match (file, value, pod_ref) {
            (Some(file), Some(value), _) => format!("{action:6}  {path}/{file} = {value}"),
            (_, _, Some(pod)) => format!("{action:6}  {}: {reason}", full_name(pod)),
            _ => format!("{action:6}  {path}  ({reason})"),
        }
    }
}

/// The values of one cgroup.
pub(crate) fn rows(input: &Input, cgroup: &Desired) -> Vec<Row> {
    let path = path(input, &cgroup.name);
    let files = cgroup
        .settings
        .iter()
        .flat_map(|(setting, reason)| files(setting, reason, input.version));
    files
        .map(|file| Row {
            path: path.clone(),
            file: file.name,
            value: file.value,
            reason: file.reason,
        })
        .collect()
}

fn path(input: &Input, name: &podwarden_policy::name::CgroupName) -> String {
    format!("/{}", input.layout.path(name))
}

/// The order of those that run; where nothing is known to run, of all.
pub(crate) fn ranking(snapshot: &Snapshot) -> Vec<Ranked<'_>> {
    if snapshot.cgroups.is_empty() {
        evict::order(
            snapshot.ranking,
            &snapshot.exemptions,
            &snapshot.pods,
            |_| None,
        )
    } else {
        plan::ranking(snapshot)
    }
}

fn place(ranked: &Ranked<'_>) -> Place {
    Place {
        pod_ref: pod_ref(ranked.pod),
        qos_class: ranked.candidate.qos.as_str(),
        working_set_bytes: ranked.candidate.working_set.map(|bytes| bytes.0),
        reason: ranked.rank.to_string(),
    }
}

fn protected(snapshot: &Snapshot) -> Vec<Protected> {
    let protected = snapshot.pods.iter().filter_map(|pod| {
        let reason = snapshot.exemptions.of(pod)?.to_string();
        let pod_ref = pod_ref(pod);
        Some(Protected { pod_ref, reason })
    });
    let mut all: Vec<_> = protected.collect();
    all.sort_by_cached_key(|protected| full_name(&protected.pod_ref));
    all
}

fn steps(input: &Input, action: &Action) -> Vec<Step> {
    let step = |action, cgroup, reason: &dyn ToString| Step {
        action,
        path: path(input, cgroup),
        file: None,
        value: None,
        pod_ref: None,
        reason: reason.to_string(),
    };
    match action {
        Action::EnsureCgroup { cgroup, reason } => vec![step("make", cgroup, reason)],
        Action::RemoveCgroup { cgroup, reason } => vec![step("remove", cgroup, reason)],
        Action::Write {
            cgroup,
            setting,
            reason,
        } => files(setting, reason, input.version)
            .into_iter()
            .map(|file| Step {
                file: Some(file.name),
                value: Some(file.value),
                ..step("write", cgroup, &file.reason)
            })
            .collect(),
        Action::Evict {
            pod,
            cgroup,
            reason,
        } => {
            let found = input.snapshot.pods.iter().find(|p| p.uid == *pod);
            vec![Step {
                pod_ref: found.map(pod_ref),
                ..step("evict", cgroup, reason)
            }]
        }
    }
}

pub(crate) fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        name: pod.name.as_str().into(),
        namespace: pod.namespace.as_str().into(),
        uid: pod.uid.clone(),
    }
}

fn full_name(pod: &PodRef) -> String {
    output::printable(&format!("{}/{}", pod.namespace, pod.name))
}

/// Left-aligned columns, two spaces between them, none at the end of a line.
pub(crate) fn columns<const N: usize>(rows: &[[Cow<'_, str>; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
