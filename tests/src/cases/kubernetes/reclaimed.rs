//! Reclaimed resources with a real scheduler, kubelet and API server: published, scheduled, enforced, given way to a
//! guaranteed pod, and asked for by a profile in place of a pod's own cpu and memory. The agent's token is good for its own
//! node alone.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{LIMIT, confined, enforcing};
use crate::cases::reclaimed::{BATCH_CPU, BATCH_MEMORY, holds};
use crate::cases::{Case, Context, case};
use crate::harness::{Cgroup, eventually, sleep};
use crate::kubernetes::{Cluster, NODE, PODS, Pod, condition};

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_reclaimed", kubernetes_reclaimed)];

/// The label that a profile takes pods and namespaces by.
const PROFILE_LABEL: &str = "podwarden.io/colocation";
const MID_CPU: &str = "kubernetes.io/mid-cpu";
const SLEEP: &str = "while true; do sleep 1; done";
/// How long usage is compared.
const COMPARED: Duration = Duration::from_secs(2);

fn kubernetes_reclaimed(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    allow_publishing(&cluster)?;
    cluster.agent_with(|shipped| {
        // More than other work on the machine can take, which counts against the offer as far as it is more than what
        // the kubelet leaves to no pod.
        let enforced = enforcing(shipped);
        format!(
            "{enforced}\ncapacity: {{cpu: 64, memory: 256Gi}}\n\
             colocation: {{reclaimed: {{publish: true, enforce: true, cpuReclaimThresholdPercent: 100, \
             memoryReclaimThresholdPercent: 100}}}}\n"
        )
    })?;
    is_published(&cluster)?;
    confined::to_its_own_node(&cluster)?;

    let batch = Pod::new("batch", &burning("batch", 1)).with_resources(asking("500", "64Mi"));
    let uid = cluster.run_now(&batch)?;
    let batch = has_values(&cluster, "batch", &uid)?;
    let larger = Pod::new("larger", SLEEP).with_resources(asking("1000000000", "64Mi"));
    cluster.run(&larger)?;
    eventually(LIMIT, || {
        let larger = cluster.pod("larger")?;
        let scheduled = condition(&larger, "PodScheduled").context("not looked at yet")?;
        let message = scheduled["message"].as_str().unwrap_or_default();
        ensure!(
            message.contains("Insufficient kubernetes.io/batch-cpu"),
            "{scheduled}"
        );
        Ok(())
    })?;
    gives_way(context, &cluster, &batch)?;
    turned_by_a_profile(&cluster)?;
    taken_back(&cluster)?;
    cluster.clear()
}

/// What an agent that was killed offers goes with the next one, which offers nothing; what another manager offers stays.
fn taken_back(cluster: &Cluster) -> Result<()> {
    cluster.without_agent()?;
    let node = format!("/api/v1/nodes/{NODE}");
    let offer = |manager: &str, resource: &str, amount: Value| {
        let list = json!({resource: amount});
        let status = json!({"status": {"capacity": list, "allocatable": list}});
        let path = format!("{node}/status?fieldManager={manager}");
        cluster.api.patch(&path, &status)
    };
    offer("podwarden", BATCH_CPU, "500".into())?;
    offer("another", MID_CPU, "700".into())?;
    cluster.agent_with(enforcing)?;
    let left = eventually(LIMIT, || {
        let status = cluster.api.get(&node)?["status"].take();
        for list in ["capacity", "allocatable"] {
            let offered = &status[list];
            ensure!(offered[BATCH_CPU].is_null(), "{list}: {offered}");
            ensure!(offered[MID_CPU] == "700", "{list}: {offered}");
        }
        Ok(())
    });
    offer("another", MID_CPU, Value::Null)?;
    left
}

/// The Node's status has what the agent computes; nothing else offers it.
fn is_published(cluster: &Cluster) -> Result<()> {
    eventually(LIMIT, || {
        // To ask has the agent sample at its full pace.
        let computed = cluster.node_stats()?.reclaimed;
        computed.context("nothing is computed")?;
        let node = cluster.api.get(&format!("/api/v1/nodes/{NODE}"))?;
        let offered = &node["status"]["allocatable"];
        for (resource, least) in [(BATCH_CPU, 500), (BATCH_MEMORY, 64 << 20)] {
            let amount = offered[resource].as_str().context("it is not offered")?;
            ensure!(offer(amount)? >= least, "{offered}");
        }
        Ok(())
    })
}

/// Thousandths of a CPU or bytes, as the server writes them.
fn offer(amount: &str) -> Result<u64> {
    let amount = podwarden_policy::quantity::parse_count(amount);
    amount.context("no whole number")
}

/// Requests and limits alike.
fn asking(cpu: &str, memory: &str) -> Value {
    let asked = json!({BATCH_CPU: cpu, BATCH_MEMORY: memory});
    json!({"requests": asked, "limits": asked})
}

/// A script that takes the machine's first CPU, once it may.
fn burning(name: &str, threads: usize) -> String {
    format!(
        "while [ ! -e /go/{name} ]; do usleep 10000; done; /e2e workload burn --pin 0 --threads {threads}; true"
    )
}

/// It uses no more than its quota, and next to nothing while a guaranteed pod takes the CPU that it runs on.
fn gives_way(context: &Context, cluster: &Cluster, batch: &Cgroup) -> Result<()> {
    let guaranteed = json!({"cpu": "1", "memory": "32Mi"});
    let guaranteed = json!({"requests": guaranteed, "limits": guaranteed});
    let guaranteed = Pod::new("guaranteed", &burning("guaranteed", 2)).with_resources(guaranteed);
    let uid = cluster.run_now(&guaranteed)?;
    let guaranteed = cluster.kubepods().child(&format!("pod{uid}"));

    cluster.go("batch")?;
    let start = batch.cpu_ns()?;
    eventually(LIMIT, || {
        ensure!(batch.cpu_ns()? > start + 50_000_000, "it does not burn");
        Ok(())
    })?;
    let (before, since) = (batch.cpu_ns()?, Instant::now());
    sleep(COMPARED)?;
    let alone = batch.cpu_ns()? - before;
    // A period's quota more than the time allows: the first may begin with a full one.
    let allowed = since.elapsed().as_nanos() / 2 + 100_000_000;
    ensure!(
        u128::from(alone) <= allowed,
        "it used {alone} ns of {allowed}"
    );

    cluster.go("guaranteed")?;
    let start = guaranteed.cpu_ns()?;
    eventually(LIMIT, || {
        ensure!(
            guaranteed.cpu_ns()? > start + 50_000_000,
            "it does not burn"
        );
        Ok(())
    })?;
    let before = (batch.cpu_ns()?, guaranteed.cpu_ns()?);
    sleep(COMPARED)?;
    let beside = batch.cpu_ns()? - before.0;
    let taken = guaranteed.cpu_ns()? - before.1;
    context.figure("batch_alone", alone as f64 / 1e6, "ms");
    context.figure("batch_beside_guaranteed", beside as f64 / 1e6, "ms");
    context.figure("guaranteed", taken as f64 / 1e6, "ms");
    ensure!(
        beside * 10 <= taken,
        "it used {beside} ns beside a guaranteed pod that used {taken} ns on the same CPU"
    );
    for name in ["batch", "guaranteed", "larger"] {
        let path = format!("{PODS}/{name}?gracePeriodSeconds=1");
        cluster.api.delete(&path)?;
    }
    Ok(())
}

/// A plain pod in a labelled namespace asks for batch resources once the server has admitted it, and gets them.
fn turned_by_a_profile(cluster: &Cluster) -> Result<()> {
    let label = |value: Value| {
        let labels = json!({"metadata": {"labels": {PROFILE_LABEL: value}}});
        cluster.api.patch("/api/v1/namespaces/default", &labels)
    };
    profile(cluster, "apply")?;
    label("enabled".into())?;
    let amounts = json!({"cpu": "500m", "memory": "64Mi"});
    let plain = Pod::new("plain", SLEEP)
        .with_resources(json!({"requests": amounts, "limits": amounts}))
        .labelled(PROFILE_LABEL, "enabled");
    // The server takes a moment until a policy is in force; a pod made before that is a plain one.
    let manifest = cluster.manifest(&plain)?;
    eventually(LIMIT, || {
        let made = cluster
            .api
            .create(&format!("{PODS}?dryRun=All"), &manifest)?;
        turned(&made)
    })?;
    let uid = cluster.run_now(&plain)?;
    turned(&cluster.pod("plain")?)?;
    has_values(cluster, "plain", &uid)?;
    label(Value::Null)?;
    profile(cluster, "delete")
}

fn turned(pod: &Value) -> Result<()> {
    let resources = &pod["spec"]["containers"][0]["resources"];
    ensure!(*resources == asking("500", "64Mi"), "{resources}");
    Ok(())
}

fn profile(cluster: &Cluster, verb: &str) -> Result<()> {
    let workspace = xtask::paths::Workspace::locate();
    let dir = workspace.root().join("deploy/colocation");
    for file in ["priority-classes.yaml", "profile.yaml"] {
        let file = dir.join(file).display().to_string();
        cluster.kubectl(&[verb, "-f", &file])?;
    }
    Ok(())
}

/// The pod's cgroup, once it and its container's hold what 500 milli-CPUs and 64 MiB come to.
fn has_values(cluster: &Cluster, name: &str, uid: &str) -> Result<Cgroup> {
    let cgroup = cluster.kubepods().child(&format!("besteffort/pod{uid}"));
    let status = cluster.pod(name)?["status"].take();
    let id = status["containerStatuses"][0]["containerID"].as_str();
    let id = id
        .and_then(|id| id.split_once("://"))
        .context("it has no container's id")?;
    eventually(LIMIT, || {
        holds(&cgroup)?;
        holds(&cgroup.child(id.1))
    })?;
    Ok(cgroup)
}

/// What is commented out in the shipped role.
fn allow_publishing(cluster: &Cluster) -> Result<()> {
    let metadata = json!({"name": "podwarden-node-status"});
    let role: Value = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": metadata,
        "rules": [{"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata,
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "podwarden-node-status",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "podwarden", "namespace": "podwarden"}],
    });
    let dir = tempfile::tempdir()?;
    for (name, object) in [("role.json", role), ("binding.json", binding)] {
        let file = dir.path().join(name);
        fs::write(&file, object.to_string())?;
        cluster.kubectl(&["apply", "-f", &file.display().to_string()])?;
    }
    Ok(())
}
