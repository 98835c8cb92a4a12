//! Co-location beside a kubelet that is started anew time and again: neither writes against the other, and no write of
//! the kubelet's is refused. `--repeat N` starts it N times, five minutes apart.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::{LIMIT, enforcing};
use crate::cases::colocation::quota;
use crate::cases::{Case, Context, case};
use crate::harness::{Cgroup, eventually, sleep};
use crate::kubernetes::{Cluster, PODS, Pod, condition};

pub(in crate::cases) const CASES: &[Case] = &[
    case("kubernetes_colocation", kubernetes_colocation),
    case("kubernetes_burst_resize", kubernetes_burst_resize),
];

/// How often the kubelet is started anew.
const RESTARTS: u32 = 2;
/// Between two of these, in a run of a few and in one that was asked for.
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(300);
/// Of 100m and 60m in a period of 100 ms, microseconds.
const LIMITED: u64 = 10_000;
const LOWER: u64 = 6_000;
/// How long a resize may take that was refused: a kubelet tries it again with the pod's next sync, a minute later.
const RESIZED: Duration = Duration::from_secs(150);
/// All that works by itself, on a node with so many CPUs that some are free.
const CONFIG: &str = "capacity: {cpu: 64, memory: 256Gi}\n\
    colocation: {cpuBurstStrategy: {policy: auto}, cpuSuppressThresholdPercent: 65, \
    cpuSuppressPolicy: cfsQuota, cpuWaitStrategy: {enable: true, objective: 1ms}}\n";
/// What a kernel answers where it refuses a write to a cgroup's file.
const REFUSALS: [&str; 4] = [
    "invalid argument",
    "operation not permitted",
    "device or resource busy",
    "numerical result out of range",
];

fn kubernetes_colocation(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    let web = protected(&cluster, "100m")?;
    let batch = Pod::new("batch", &working(1_000_000, "true"));
    let batch = cluster.run_now(&batch.labelled("koordinator.sh/qosClass", "BE"))?;
    relieved(&cluster, &web).context("before the kubelet was started anew")?;

    let (seen, degraded) = (kubelet_log(&cluster)?.len(), degradations(&cluster)?);
    let restarts = context.repetitions(RESTARTS);
    let apart = if restarts > RESTARTS { LONG } else { SHORT };
    for restart in 1..=restarts {
        cluster.kill_kubelet();
        cluster.start_kubelet()?;
        comes_up(&cluster, restart)?;
        sleep(apart)?;
        relieved(&cluster, &web).with_context(|| format!("after restart {restart}"))?;
        for uid in [&web, &batch] {
            ensure!(cluster.starts(uid)? == 1, "a container was started again");
        }
        let log = kubelet_log(&cluster)?;
        ensure_not_refused(&log[seen.min(log.len())..])?;
        let writes = cluster.node_stats()?.foreign_writes;
        ensure!(
            writes.contested_files == 0 && writes.properties.is_empty(),
            "after restart {restart}: {writes:?}"
        );
        let now = degradations(&cluster)?;
        ensure!(now == degraded, "had {degraded:?}, has {now:?}");
    }
    context.figure("restarts", f64::from(restarts), "");

    cluster.without_agent()?;
    for cgroup in cgroups(&cluster, &web)? {
        let left = quota(&cgroup)?;
        ensure!(left == Some(LIMITED), "{} has {left:?}", cgroup.path());
    }
    let tier = cluster.kubepods().child("besteffort");
    ensure!(quota(&tier)?.is_none(), "the tier is left with a quota");
    cluster.clear()
}

/// An agent that does all of it, and a protected pod that requests so much CPU and works up to its limit of 100m.
fn protected(cluster: &Cluster, cpu: &str) -> Result<String> {
    cluster.clear()?;
    cluster.agent_with(|shipped| format!("{}\n{CONFIG}", enforcing(shipped)))?;
    let web = Pod::new("web", &working(20_000, "sleep 0.3")).with_resources(json!({
        "requests": {"cpu": cpu, "memory": "16Mi"},
        "limits": {"cpu": "100m", "memory": "64Mi"},
    }));
    cluster.run_now(&web.labelled("koordinator.sh/qosClass", "LS"))
}

/// A pod that exceeds its limit is given a lower one: the kernel refuses a quota below the burst, so the burst goes before.
fn kubernetes_burst_resize(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    let web = protected(&cluster, "60m")?;
    relieved(&cluster, &web).context("before the resize")?;
    let seen = kubelet_log(&cluster)?.len();
    let lower = json!({"name": "main", "resources": {"limits": {"cpu": "60m"}}});
    let lower = json!({"spec": {"containers": [lower]}});
    let kind = "application/strategic-merge-patch+json";
    let path = format!("{PODS}/web/resize");
    let (code, said) = cluster.api.answer("PATCH", &path, kind, &lower)?;
    ensure!(code == 200, "{code}: {said:?}");
    eventually(RESIZED, || {
        let pod = cluster.pod("web")?;
        let in_force = &pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"];
        ensure!(in_force == "60m", "the limit is {in_force}");
        let progress = condition(&pod, "PodResizeInProgress");
        ensure!(progress.is_none(), "{progress:?}");
        Ok(())
    })?;
    // A kubelet that is faster than the agent is refused once, and tries again.
    let log = kubelet_log(&cluster)?;
    let refused = log[seen.min(log.len())..]
        .lines()
        .filter(|line| is_refusal(line));
    context.figure("refused", refused.count() as f64, "");
    relieved(&cluster, &web).context("after the resize")?;
    ensure!(
        cluster.starts(&web)? == 1,
        "the container was started again"
    );
    cluster.without_agent()?;
    for cgroup in cgroups(&cluster, &web)? {
        let left = quota(&cgroup)?;
        ensure!(left == Some(LOWER), "{} has {left:?}", cgroup.path());
    }
    cluster.clear()
}

/// A script that counts, and then does something else.
fn working(count: u32, and: &str) -> String {
    format!("while true; do i=0; while [ $i -lt {count} ]; do i=$((i+1)); done; {and}; done")
}

/// The protected pod may use more than its limit.
fn relieved(cluster: &Cluster, uid: &str) -> Result<()> {
    eventually(LIMIT, || {
        let now = cgroups(cluster, uid)?;
        let mut quotas = now.iter().map(quota);
        let raised = quotas.any(|quota| quota.is_ok_and(|quota| quota > Some(LIMITED)));
        ensure!(raised, "its quota is not raised");
        Ok(())
    })
}

/// The pod's cgroup and its containers' with a quota.
fn cgroups(cluster: &Cluster, uid: &str) -> Result<Vec<Cgroup>> {
    let pod = cluster
        .kubepods()
        .child("burstable")
        .child(&format!("pod{uid}"));
    let mut all = pod.children();
    all.push(pod);
    // The sandbox has none.
    all.retain(|cgroup| quota(cgroup).is_ok_and(|quota| quota.is_some()));
    ensure!(
        all.len() == 2,
        "a pod and a container have a quota: {all:?}"
    );
    Ok(all)
}

/// The kubelet runs another pod.
fn comes_up(cluster: &Cluster, restart: u32) -> Result<()> {
    let name = format!("after-{restart}");
    cluster
        .run_now(&Pod::new(&name, "sleep 1000"))
        .with_context(|| format!("restart {restart} of the kubelet"))?;
    cluster
        .api
        .delete(&format!("{PODS}/{name}?gracePeriodSeconds=1"))
}

fn kubelet_log(cluster: &Cluster) -> Result<String> {
    let log = fs::read(cluster.dir().join("kubelet.log")).context("read the kubelet's log")?;
    Ok(String::from_utf8_lossy(&log).into_owned())
}

/// No line tells of a write that the kernel refused.
fn ensure_not_refused(log: &str) -> Result<()> {
    let refused = log.lines().find(|line| is_refusal(line));
    ensure!(refused.is_none(), "the kubelet says {refused:?}");
    Ok(())
}

fn is_refusal(line: &str) -> bool {
    line.contains("cgroup") && REFUSALS.iter().any(|refusal| line.contains(refusal))
}

fn degradations(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(cluster.node_stats()?.degradations)
}
