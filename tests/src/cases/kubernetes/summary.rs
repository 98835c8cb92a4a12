//! `/stats/summary` beside the real kubelet's own, field by field.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::enforcing;
use crate::cases::{Case, Context, slow};
use crate::harness::eventually;
use crate::kubernetes::{NODE, Pod};

pub(in crate::cases) const CASES: &[Case] = &[slow("kubernetes_summary", kubernetes_summary)];

/// cAdvisor, in the kubelet, looks for cgroups once a minute.
const SEEN: Duration = Duration::from_secs(150);

/// Figures of a pod that uses nothing any more, and how far they may be apart: what the kernel has not added up yet.
const FIGURES: [(&str, u64); 4] = [
    ("/memory/usageBytes", 1 << 20),
    ("/memory/workingSetBytes", 1 << 20),
    ("/memory/rssBytes", 1 << 20),
    ("/memory/availableBytes", 1 << 20),
];

/// Of a container alone: on v1 the kubelet has those of the pod's own cgroup without what is below it, which are 0.
const FAULTS: [(&str, u64); 2] = [("/memory/pageFaults", 256), ("/memory/majorPageFaults", 16)];

/// Of a pod alone.
const RECEIVED: (&str, u64) = ("/network/rxBytes", 0);

/// The pod of a summary.
fn pod<'a>(summary: &'a Value, uid: &str) -> Result<&'a Value> {
    let pods = summary["pods"].as_array().context("no pods")?;
    let found = pods.iter().find(|pod| pod["podRef"]["uid"] == uid);
    found.with_context(|| format!("no pod {uid}"))
}

/// The paths of all that has a value; members of lists count as one.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                shape(value, &format!("{path}/{name}"), into);
            }
        }
        Value::Array(all) => all
            .iter()
            .for_each(|one| shape(one, &format!("{path}[]"), into)),
        Value::Null => {}
        _ => drop(into.insert(path.to_owned())),
    }
}

fn number(value: &Value, at: &str) -> Option<u64> {
    value.pointer(at).and_then(Value::as_u64)
}

/// Both have the figure, or neither, and no further apart than `bound`.
fn same(ours: &Value, kubelets: &Value, at: &str, bound: u64) -> Result<()> {
    match (number(ours, at), number(kubelets, at)) {
        (Some(a), Some(b)) if a.abs_diff(b) <= bound => Ok(()),
        (None, None) => Ok(()),
        (a, b) => anyhow::bail!("{at} is {a:?}, the kubelet says {b:?}"),
    }
}

fn kubernetes_summary(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(enforcing)?;
    let held = Pod::new("held", "/e2e workload anon --mib 48; true");
    let uid = cluster.run_now(&held)?;
    let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
    eventually(SEEN, || {
        let kubelets = cluster.api.get(&path)?;
        let ours: Value = cluster.ask("/stats/summary")?;
        ensure!(
            ours["node"]["nodeName"] == kubelets["node"]["nodeName"],
            "the node is {}",
            ours["node"]["nodeName"]
        );
        let a = pod(&ours, &uid).context("ours")?;
        let b = pod(&kubelets, &uid).context("the kubelet's")?;
        ensure!(
            a["podRef"] == b["podRef"],
            "{} {}",
            a["podRef"],
            b["podRef"]
        );
        let held = number(a, "/memory/rssBytes");
        ensure!(held > Some(48 << 20), "it holds {held:?}");
        for (at, bound) in FIGURES.into_iter().chain([RECEIVED]) {
            same(a, b, at, bound).context("the pod")?;
        }
        let [a, b] = [a, b].map(|pod| &pod["containers"]);
        let names = |of: &Value| -> BTreeSet<String> {
            let all = of.as_array().into_iter().flatten();
            all.map(|one| one["name"].to_string()).collect()
        };
        ensure!(names(a) == names(b), "{:?} {:?}", names(a), names(b));
        for (at, bound) in FIGURES.into_iter().chain(FAULTS) {
            same(&a[0], &b[0], at, bound).context("its container")?;
        }
        // What the runtime did in the pod before the agent heard of it is left out.
        same(&a[0], &b[0], "/cpu/usageCoreNanoSeconds", 500_000_000).context("its container")?;
        Ok(())
    })?;
    // No name of ours is another than the kubelet's.
    let kubelets = cluster.api.get(&path)?;
    let ours: Value = cluster.ask("/stats/summary")?;
    let [mut a, mut b] = [BTreeSet::new(), BTreeSet::new()];
    shape(&ours, "", &mut a);
    shape(&kubelets, "", &mut b);
    let others: Vec<_> = a.difference(&b).collect();
    ensure!(others.is_empty(), "the kubelet has no {others:?}");
    cluster.clear()
}
