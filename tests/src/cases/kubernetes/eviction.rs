//! What follows a kill, beside a real kubelet: the pod is marked, and it does not run again.

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use podwarden_policy::quantity::parse_memory;
use serde_json::{Value, json};

use super::{LIMIT, enforcing};
use crate::cases::{Case, Context, case};
use crate::harness::{Cgroup, eventually, sleep};
use crate::kubernetes::{Cluster, Pod, condition, uid};

pub(in crate::cases) const CASES: &[Case] = &[
    case("kubernetes_eviction", kubernetes_eviction),
    case("kubernetes_eviction_cut_off", kubernetes_eviction_cut_off),
    case("kubernetes_event_forbidden", kubernetes_event_forbidden),
];

/// How long an evicted pod is looked at for a restart. A kubelet that has not seen its status writes its own
/// over it every 10 s (`syncPeriod` of `pkg/kubelet/status/status_manager.go`).
pub(super) const WATCHED: Duration = Duration::from_secs(11);
/// How long the API server is away: the kubelet starts a container again at once, and 10 s later.
pub(super) const AWAY: Duration = Duration::from_secs(12);
/// How long a kubelet and the agent may take to find an API server that is back.
pub(super) const BACK: Duration = Duration::from_secs(150);
/// No container of an evicted pod may come to do anything. What it takes to find one is measured, not asserted:
/// this is a hundred times that.
pub(super) const LIVED: Duration = Duration::from_secs(3);
const MIB: u64 = 1 << 20;
/// Page cache beside the filler. It counts as usage, and for nothing when it comes to evicting.
const CACHED: u64 = 96 * MIB;

/// A node with a pod that fills memory when it is told, and one beside it.
pub(super) struct Scene {
    pub(super) cluster: Rc<Cluster>,
    filler: String,
    calm: String,
}

/// A pod with the status that a kubelet gives one that it evicts.
pub(super) fn marked(cluster: &Cluster, name: &str) -> Result<Value> {
    let pod = cluster.pod(name)?;
    let status = &pod["status"];
    let words = (&status["phase"], &status["reason"]);
    ensure!(
        words == (&json!("Failed"), &json!("Evicted")),
        "{name}: {status}"
    );
    let target = condition(&pod, "DisruptionTarget").context("no DisruptionTarget")?;
    ensure!(target["status"] == "True", "{name}: {target}");
    Ok(pod)
}

/// The pod that fills was evicted, and the one beside it was not. The event comes once its memory is free.
pub(super) fn evicted_once(cluster: &Cluster, filler: &str, calm: &str) -> Result<()> {
    let evictions = cluster.evictions()?;
    let times = |uid: &str| evictions.iter().filter(|one| one.pod.uid == uid).count();
    let (filler, calm) = (times(filler), times(calm));
    ensure!(
        (filler, calm) == (1, 0),
        "evicted {filler} times, and the other pod {calm} times"
    );
    Ok(())
}

impl Scene {
    pub(super) fn new(context: &Context) -> Result<Self> {
        let cluster = context.kubernetes()?;
        cluster.clear()?;
        cluster.agent_with(enforcing)?;
        let calm = Pod::holding("calm", 64).caching(CACHED / MIB);
        let calm = cluster.run_now(&calm.requesting("96Mi", false))?;
        let filler = cluster.run_now(&Pod::filler("filler", 1200, 500))?;
        eventually(LIMIT, || {
            cluster.pod_stats(&filler)?;
            cluster.pod_stats(&calm).map(drop)
        })?;
        Ok(Self {
            cluster,
            filler,
            calm,
        })
    }

    pub(super) fn cgroup(&self) -> Cgroup {
        let tier = self.cluster.kubepods().child("besteffort");
        tier.child(&format!("pod{}", self.filler))
    }

    /// Has it fill memory and waits until it is killed.
    pub(super) fn evict(&self) -> Result<()> {
        self.cluster.go("filler")?;
        eventually(LIMIT, || self.evicted_once())
    }

    /// How often the agent has logged that the node's own level cannot be watched: in the enclosure no cgroup is the
    /// machine's topmost.
    fn warned(&self) -> Result<usize> {
        // The kubelet removes the logs of agents before it some time after their ends.
        let agent = uid(&self.cluster.agent_pod()?)?;
        let log = self.cluster.agent_log_of(&agent)?;
        Ok(log.matches("its level cannot be watched").count())
    }

    fn evicted_once(&self) -> Result<()> {
        evicted_once(&self.cluster, &self.filler, &self.calm)
    }

    /// The status that a kubelet gives a pod that it evicts, by our hand.
    fn marked(&self) -> Result<()> {
        let pod = marked(&self.cluster, "filler")?;
        let managers = pod["metadata"]["managedFields"].as_array();
        let mut managers = managers.context("no managedFields")?.iter();
        let ours =
            managers.any(|one| one["manager"] == "podwarden" && one["subresource"] == "status");
        ensure!(ours, "podwarden is not a manager of its status");
        Ok(())
    }

    /// The figures in its status are those that decided: less was available than the threshold, or it says why that was
    /// enough, and the page cache is not among what was used.
    fn says_what_decided(&self) -> Result<()> {
        let evictions = self.cluster.evictions()?;
        let eviction = evictions.iter().find(|one| *one.pod.uid == *self.filler);
        let eviction = eviction.context("it was not evicted")?;
        let used = eviction.working_set_bytes.context("no working set")?;
        ensure!(
            eviction.usage_bytes >= used + CACHED / 2 && used >= eviction.level_bytes,
            "{eviction:?}"
        );
        let pod = self.cluster.pod("filler")?;
        let message = pod["status"]["message"].as_str().context("no message")?;
        let quantity = |before: &str| {
            let (_, rest) = message.split_once(before)?;
            parse_memory(rest.split([',', '.']).next()?).ok()
        };
        let (threshold, available) = quantity("Threshold quantity: ")
            .zip(quantity("available: "))
            .with_context(|| format!("it has no quantities: {message}"))?;
        let limit = fs::read_to_string(self.cluster.kubepods().memory_limit_file())?;
        let limit: u64 = limit.trim().parse()?;
        ensure!(
            available.as_u64() == limit - used,
            "of {limit} bytes {used} were used: {message}"
        );
        // At its level a scope is short, by the last page.
        ensure!(
            available <= threshold || message.contains("a headroom of"),
            "nothing was short: {message}"
        );
        Ok(())
    }

    /// Waits until it is marked and its kubelet has ended it, then looks that it stays so.
    pub(super) fn stays_evicted(&self, limit: Duration) -> Result<()> {
        eventually(limit, || {
            self.marked()?;
            ensure!(!self.cgroup().exists(), "its kubelet has not ended it");
            Ok(())
        })?;
        self.says_what_decided()?;
        sleep(WATCHED)?;
        self.marked().context("the mark did not stay")?;
        self.evicted_once()?;
        ensure!(
            self.cluster.starts(&self.calm)? == 1,
            "another pod was started again"
        );
        Ok(())
    }
}

/// A BestEffort pod that fills memory dies, is marked as the kubelet marks one, and is never started again.
fn kubernetes_eviction(context: &Context) -> Result<()> {
    for run in 1..=context.repetitions(1) {
        let scene = Scene::new(context)?;
        let lives = Lives::watch(scene.cgroup());
        let warned = scene.warned()?;
        let evicted = || {
            scene.evict()?;
            scene.stays_evicted(LIMIT)?;
            let now = scene.warned()?;
            ensure!(
                now == warned,
                "it warns at each change: {warned} times, and {now} after an eviction"
            );
            Ok(())
        };
        evicted().with_context(|| format!("run {run}"))?;
        lives.end(context)?;
        scene.cluster.clear()?;
    }
    Ok(())
}

/// The API server is away when the pod is killed: the kubelet starts its container again, which dies at once,
/// until the server is back and the pod is marked.
fn kubernetes_eviction_cut_off(context: &Context) -> Result<()> {
    for run in 1..=context.repetitions(1) {
        let scene = Scene::new(context)?;
        let lives = Lives::watch(scene.cgroup());
        scene.cluster.kill_apiserver();
        let cut_off = scene.evict().and_then(|()| sleep(AWAY));
        scene.cluster.start_apiserver()?;
        let evicted = cut_off.and_then(|()| scene.stays_evicted(BACK));
        evicted.with_context(|| format!("run {run}"))?;
        lives.end(context)?;
        let log = scene.cluster.agent_log()?;
        let noise = log.lines().find(|line| line.contains("kube_client"));
        ensure!(noise.is_none(), "the client logs by itself: {noise:?}");
        scene.cluster.clear()?;
    }
    Ok(())
}

/// The right to make Events comes late: the pod is marked meanwhile, and the Event is sent once it may be.
fn kubernetes_event_forbidden(context: &Context) -> Result<()> {
    let scene = Scene::new(context)?;
    let cluster = &scene.cluster;
    let role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/podwarden";
    let granted = cluster.api.get(role)?["rules"].take();
    let mut fewer = granted.clone();
    let rules = fewer.as_array_mut().context("it has no rules")?;
    rules.retain(|rule| rule["resources"] != json!(["events"]));
    cluster.api.patch(role, &json!({"rules": fewer}))?;
    let marked = scene.evict().and_then(|()| scene.stays_evicted(LIMIT));
    cluster.api.patch(role, &json!({"rules": granted}))?;
    marked?;
    let path = format!(
        "/api/v1/namespaces/default/events?fieldSelector=involvedObject.uid={},reason=Evicted",
        scene.filler
    );
    eventually(BACK, || {
        let events = cluster.api.list(&path)?;
        ensure!(
            events.len() == 1,
            "{} Events tell of the eviction",
            events.len()
        );
        Ok(())
    })?;
    cluster.clear()
}

/// Watches the containers that come to be in a pod's cgroup, and for how long processes are in them.
pub(super) struct Lives {
    ended: Arc<AtomicBool>,
    watching: JoinHandle<BTreeMap<String, Duration>>,
}

impl Lives {
    pub(super) fn watch(pod: Cgroup) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        Self {
            ended,
            watching: thread::spawn(move || follow(&pod, &until)),
        }
    }

    /// By the names of new cgroups, how long processes were in them.
    pub(super) fn stop(self) -> BTreeMap<String, Duration> {
        self.ended.store(true, Ordering::Relaxed);
        let lives = self.watching.join();
        lives.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    pub(super) fn end(self, context: &Context) -> Result<()> {
        let lives = self.stop();
        let longest = lives.values().max().copied().unwrap_or_default();
        context.figure("started_again", lives.len() as f64, "");
        context.figure("lived_longest", longest.as_secs_f64() * 1000.0, "ms");
        ensure!(longest < LIVED, "a container lived on: {lives:?}");
        Ok(())
    }
}

/// By the names of new cgroups, how long what runs in them was seen there.
fn follow(pod: &Cgroup, until: &AtomicBool) -> BTreeMap<String, Duration> {
    let names = || {
        pod.children()
            .into_iter()
            .map(|child| child.path().to_owned())
    };
    let before: Vec<_> = names().collect();
    let mut seen: BTreeMap<String, (Instant, Instant)> = BTreeMap::new();
    while !until.load(Ordering::Relaxed) {
        let children = pod.children().into_iter();
        let fresh = children.filter(|child| !before.iter().any(|path| path == child.path()));
        for child in fresh.filter(|child| !child.procs().is_empty()) {
            let now = Instant::now();
            let times = seen.entry(child.path().to_owned()).or_insert((now, now));
            times.1 = now;
        }
        thread::sleep(Duration::from_millis(2));
    }
    let lived = seen
        .into_iter()
        .map(|(path, (first, last))| (path, last - first));
    lived.collect()
}
