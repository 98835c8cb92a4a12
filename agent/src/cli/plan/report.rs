//! A plan, as rows that a table and JSON both print.

use std::fmt::Write as _;

use podwarden_policy::{
    Pod,
    desired::{self, Desired},
    evict::{self, Ranked},
    plan::{self, Action, Snapshot},
};
use serde::Serialize;

use super::{
    cpu,
    files::{File, files},
    input::Input,
    reclaimed,
};
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
    #[serde(flatten)]
    pub(crate) file: File,
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
            reclaimed: input.reclaimed.iter().flat_map(reclaimed::rows).collect(),
            cpu_strategies: cpu::rows(&input.cpu_strategies, snapshot),
            errors: input.errors.clone(),
        }
    }

    /// For people: three tables.
    pub(crate) fn table(&self) -> String {
        let tree = self.tree.iter().map(|Row { path, file }| {
            [path, &file.name, &file.value, &file.reason].map(String::clone)
        });
        let mut text = output::table(["CGROUP", "FILE", "VALUE", "REASON"], tree);

        text.push_str("\nEviction order\n");
        let ranked = (1..).zip(&self.ranking).map(|(number, place)| {
            let used = place.working_set_bytes.map(output::bytes);
            [
                format!("{number}"),
                full_name(&place.pod_ref),
                place.qos_class.to_owned(),
                used.unwrap_or_else(|| "unknown".to_owned()),
                place.reason.clone(),
            ]
        });
        let protected = self.protected.iter().map(|protected| {
            let name = full_name(&protected.pod_ref);
            let never = "never".to_owned();
            let (class, used) = (String::new(), String::new());
            [never, name, class, used, protected.reason.clone()]
        });
        let order: Vec<_> = ranked.chain(protected).collect();
        if order.is_empty() {
            text.push_str("no pod has a cgroup\n");
        } else {
            let titles = ["", "POD", "CLASS", "WORKING SET", "REASON"];
            text.push_str(&output::table(titles, order));
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
        text.push_str(&cpu::section(&self.cpu_strategies));
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
        .map(|file| {
            let path = path.clone();
            Row { path, file }
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
