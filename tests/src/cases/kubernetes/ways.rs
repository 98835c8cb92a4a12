//! Evictions through the Eviction API and by a soft threshold, and none of a static pod.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use podwarden::api::types::{Event, EventKind, Eviction};
use serde_json::{Value, json};

use super::eviction::{BACK, marked};
use super::{LIMIT, enforcing};
use crate::cases::graceful::soft;
use crate::cases::{Case, Context, case, slow};
use crate::harness::{eventually, sleep};
use crate::kubernetes::{Cluster, NODE, PODS, Pod};

pub(in crate::cases) const CASES: &[Case] = &[
    case("kubernetes_evicts_in_budget", kubernetes_evicts_in_budget),
    case("kubernetes_asks_budgets", kubernetes_asks_budgets),
    case("kubernetes_evicts_softly", kubernetes_evicts_softly),
    case("kubernetes_evicts_gracefully", kubernetes_evicts_gracefully),
    slow("kubernetes_static_of_kubelet", kubernetes_static_of_kubelet),
];

const MIB: u64 = 1 << 20;
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/podwarden";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
/// A kubelet looks at its thresholds every 10 s.
const LOOKS: Duration = Duration::from_secs(100);
/// What the kubelet of the cases keeps free of its pods' memory.
const THRESHOLD: u64 = 50 * MIB;

fn evictions_of(cluster: &Cluster, uid: &str) -> Result<Vec<Eviction>> {
    let mut evictions = cluster.evictions()?;
    evictions.retain(|one| *one.pod.uid == *uid);
    Ok(evictions)
}

/// How often a pod was evicted.
fn times(cluster: &Cluster, uid: &str) -> Result<usize> {
    Ok(evictions_of(cluster, uid)?.len())
}

fn evicted_once(cluster: &Cluster, uid: &str) -> Result<()> {
    let times = times(cluster, uid)?;
    ensure!(times == 1, "evicted {times} times");
    Ok(())
}

/// A PodDisruptionBudget delays what is told through the Eviction API; it does not delay the kill.
fn kubernetes_evicts_in_budget(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(|shipped| {
        format!(
            "{}\nevictionStatus: {{how: evictionApi}}\n",
            enforcing(shipped)
        )
    })?;
    allowed_to_evict(&cluster, delayed)?;
    cluster.clear()
}

/// Does something while the agent may post Evictions, and takes the right and the budget away.
fn allowed_to_evict(cluster: &Cluster, act: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let granted = cluster.api.get(ROLE)?["rules"].take();
    let mut more = granted.clone();
    let rules = more.as_array_mut().context("it has no rules")?;
    rules.push(json!({"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}));
    cluster.api.patch(ROLE, &json!({"rules": more}))?;
    let done = act(cluster);
    cluster.api.patch(ROLE, &json!({"rules": granted}))?;
    cluster.api.delete(&format!("{BUDGETS}/filler"))?;
    done
}

/// Where the node's CPUs are in use, a best-effort pod that its budget keeps is passed over for one without a budget,
/// and goes once the budget is gone.
fn kubernetes_asks_budgets(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    // Before the agent, which evicts none in its first 20 s.
    budget(&cluster)?;
    let burner = |name: &str| {
        let script = "/e2e workload burn --threads 1; true";
        Pod::new(name, script).labelled("koordinator.sh/eviction-enabled", "true")
    };
    let kept = burner("kept").labelled("app", "filler");
    let kept = cluster.run_now(&kept)?;
    counts_one(&cluster)?;
    cluster.agent_with(|shipped| {
        format!(
            "{}\nevictionStatus: {{how: evictionApi}}\n\
             colocation: {{cpuEvictThresholdPercent: 2, cpuEvictLowerPercent: 1}}\n",
            enforcing(shipped)
        )
    })?;
    let other = cluster.run_now(&burner("other"))?;
    allowed_to_evict(&cluster, |cluster| asked(cluster, &kept, &other))?;
    cluster.clear()
}

fn asked(cluster: &Cluster, kept: &str, other: &str) -> Result<()> {
    eventually(LIMIT, || evicted_once(cluster, other))?;
    eventually(BACK, || is_deleted(cluster, "other"))?;
    eventually(LIMIT, || {
        ensure!(
            says(
                cluster,
                "PodDisruptionBudgets refuse 1 (of the first: The disruption budget filler"
            )?,
            "nothing is said of the refusal"
        );
        Ok(())
    })?;
    runs_on(cluster, "kept")?;
    ensure!(times(cluster, kept)? == 0, "it was evicted");
    cluster.api.delete(&format!("{BUDGETS}/filler"))?;
    eventually(LIMIT, || evicted_once(cluster, kept))?;
    eventually(BACK, || is_deleted(cluster, "kept"))
}

/// Whether the agent has said so as a degradation.
fn says(cluster: &Cluster, words: &str) -> Result<bool> {
    let events: Vec<Event> = cluster.ask("/v1/events?after=0")?;
    Ok(events.iter().any(|event| match &event.kind {
        EventKind::Degraded { message } => message.contains(words),
        _ => false,
    }))
}

fn is_deleted(cluster: &Cluster, name: &str) -> Result<()> {
    let pod = cluster.api.find(&format!("{PODS}/{name}"))?;
    ensure!(
        pod.is_none(),
        "it is not deleted: {}",
        pod.unwrap_or_default()["metadata"]
    );
    Ok(())
}

/// One pod with the label `app: filler` has to be there.
fn budget(cluster: &Cluster) -> Result<()> {
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "filler"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "filler"}}},
    });
    cluster.api.create(BUDGETS, &budget)?;
    Ok(())
}

/// The budget has counted its pod.
fn counts_one(cluster: &Cluster) -> Result<()> {
    eventually(LIMIT, || {
        let budget = cluster.api.get(&format!("{BUDGETS}/filler"))?;
        let healthy = &budget["status"]["currentHealthy"];
        ensure!(*healthy == 1, "the budget does not count it: {budget}");
        Ok(())
    })
}

fn delayed(cluster: &Cluster) -> Result<()> {
    budget(cluster)?;
    let filler = Pod::filler("filler", 1200, 500).labelled("app", "filler");
    let uid = cluster.run_now(&filler)?;
    eventually(LIMIT, || cluster.pod_stats(&uid).map(drop))?;
    counts_one(cluster)?;
    cluster.go("filler")?;
    eventually(LIMIT, || evicted_once(cluster, &uid))?;
    cluster.stay("filler")?;
    eventually(LIMIT, || {
        ensure!(
            says(cluster, "disruption budget")?,
            "nothing is said of the refusal"
        );
        Ok(())
    })?;
    let pod = cluster.pod("filler")?;
    ensure!(
        pod["metadata"]["uid"] == *uid && pod["metadata"]["deletionTimestamp"].is_null(),
        "the budget did not count: {pod}"
    );
    cluster.api.delete(&format!("{BUDGETS}/filler"))?;
    eventually(BACK, || is_deleted(cluster, "filler"))?;
    let path = format!(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={uid},reason=Evicted"
    );
    let events = cluster.api.list(&path)?;
    ensure!(events.len() == 1, "{} Events tell of it", events.len());
    Ok(())
}

/// Memory that stays short for longer than the grace period of a soft threshold.
fn kubernetes_evicts_softly(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    let grace = Duration::from_secs(3);
    cluster.agent_with(|shipped| {
        format!(
            "{}\nevictionSoft: {{memory.available: 512Mi}}\n\
             evictionSoftGracePeriod: {{memory.available: {}s}}\n",
            enforcing(shipped),
            grace.as_secs()
        )
    })?;
    let used = cluster.kubepods().memory()?.working_set();
    // Between the two thresholds.
    let room = limit(&cluster)?.saturating_sub(used + 320 * MIB) / MIB;
    let filler = Pod::filler("filler", room, 500);
    let uid = cluster.run_now(&filler)?;
    eventually(LIMIT, || cluster.pod_stats(&uid).map(drop))?;
    ensure!(times(&cluster, &uid)? == 0, "it was evicted before");
    cluster.go("filler")?;
    eventually(LIMIT, || evicted_once(&cluster, &uid))?;
    let pod = eventually(LIMIT, || marked(&cluster, "filler"))?;
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    ensure!(
        message.contains("Threshold quantity: 512Mi"),
        "the threshold is not the soft one: {message}"
    );
    cluster.clear()
}

/// A pod that a soft threshold evicts has time to end: the kubelet runs its hook and tells it, once each. One that goes on
/// is killed when the time is over, whatever it asks for.
fn kubernetes_evicts_gracefully(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    for (heeds, most) in [(true, 50), (false, 8)] {
        cluster.agent_with(|shipped| format!("{}\n{}", enforcing(shipped), soft(512, most)))?;
        ends(&cluster, heeds, most).with_context(|| format!("it ends when told: {heeds}"))?;
        cluster.clear()?;
    }
    Ok(())
}

/// What a pod that ends says to its log, in order.
const HOOK: &str = "hook";
const TOLD: &str = "told";

fn ends(cluster: &Cluster, heeds: bool, most: u32) -> Result<()> {
    let used = cluster.kubepods().memory()?.working_set();
    let room = limit(cluster)?.saturating_sub(used + 320 * MIB) / MIB;
    let then = if heeds { "sleep 1; exit 0" } else { "true" };
    let script = format!(
        "trap 'echo {TOLD}; {then}' TERM; while [ ! -e /go/filler ]; do usleep 10000; done; \
         /e2e workload anon --mib {room} & while true; do wait; sleep 1; done"
    );
    let hook = json!({"preStop": {"exec": {"command": ["/bin/sh", "-c", format!("echo {HOOK} > /proc/1/fd/1")]}}});
    let filler = Pod::new("filler", &script).ending(60, hook);
    let uid = cluster.run_now(&filler)?;
    eventually(LIMIT, || cluster.pod_stats(&uid).map(drop))?;
    cluster.go("filler")?;
    eventually(LIMIT, || evicted_once(cluster, &uid))?;
    eventually(LIMIT, || marked(cluster, "filler"))?;
    eventually(LIMIT, || is_freed(cluster, &uid))?;
    let said = cluster.said(&filler, &uid)?;
    ensure!(said == [HOOK, TOLD], "it said {said:?}");
    let killed = cluster.agent_log()?.contains("its time to end is over");
    ensure!(killed != heeds, "killed: {killed}");
    let own = evictions_of(cluster, &uid)?;
    let [eviction] = &own[..] else {
        bail!("it was evicted {} times", own.len());
    };
    ensure!(eviction.grace_seconds == Some(most), "{eviction:?}");
    let container = &cluster.pod("filler")?["status"]["containerStatuses"][0];
    ensure!(
        container["restartCount"] == 0,
        "it was started again: {container}"
    );
    Ok(())
}

fn is_freed(cluster: &Cluster, uid: &str) -> Result<()> {
    let evictions = evictions_of(cluster, uid)?;
    let freed = evictions.first().and_then(|one| one.timeline.freed_nanos);
    freed.map(drop).context("its memory is not free")
}

/// A kubelet alone does not evict a static pod that fills memory, and podwarden beside it does not either,
/// whatever `evictStaticPods` says: that is about pods of its own directory.
fn kubernetes_static_of_kubelet(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.without_agent()?;
    cluster.clear()?;
    let log = cluster.dir().join("kubelet.log");
    let filler = static_filler(&cluster, THRESHOLD / 2)?;
    let refused = eventually(LOOKS, || {
        let said = fs::read_to_string(&log)?;
        let refused = said
            .lines()
            .any(|line| line.contains("cannot evict a critical pod") && line.contains(&filler));
        ensure!(refused, "the kubelet says nothing of it");
        runs_on(&cluster, &filler)
    });
    refused.context("the kubelet alone")?;
    cluster.clear()?;

    cluster.agent_with(|shipped| format!("{}\nevictStaticPods: true\n", enforcing(shipped)))?;
    let before = cluster.evictions()?.len();
    let filler = static_filler(&cluster, 100 * MIB)?;
    eventually(LIMIT, || {
        let log = cluster.agent_log()?;
        ensure!(
            log.contains("no pod may be evicted"),
            "the agent does not say why it waits"
        );
        Ok(())
    })?;
    sleep(Duration::from_secs(6))?;
    runs_on(&cluster, &filler)?;
    let evicted = cluster.evictions()?.len() - before;
    ensure!(evicted == 0, "{evicted} pods were evicted");
    cluster.clear()
}

/// Has a static pod fill memory up to so much below the limit; the answer is its mirror's name.
fn static_filler(cluster: &Cluster, below: u64) -> Result<String> {
    let room = limit(cluster)?.saturating_sub(cluster.kubepods().memory()?.working_set() + below);
    cluster.run_static(&Pod::filler("filler", room / MIB, 200))?;
    cluster.go("filler")?;
    Ok(format!("filler-{NODE}"))
}

/// The one container of a pod runs, and has since its start.
fn runs_on(cluster: &Cluster, name: &str) -> Result<()> {
    let status: Value = cluster.pod(name)?["status"].take();
    let container = &status["containerStatuses"][0];
    ensure!(
        status["phase"] == "Running" && container["restartCount"] == 0,
        "{name}: {status}"
    );
    Ok(())
}

/// The memory limit of `kubepods`, bytes.
fn limit(cluster: &Cluster) -> Result<u64> {
    let text = fs::read_to_string(cluster.kubepods().memory_limit_file())?;
    text.trim().parse().context("a limit")
}
