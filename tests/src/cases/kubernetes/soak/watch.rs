//! What the agent says during the churn: its events, the pods that it knows, and their accounts beside the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use podwarden::api::types::{Event, EventKind, Eviction, PodStats};
use serde::Deserialize;
use serde_json::Value;

use crate::cases::kubernetes::LIMIT;
use crate::cases::kubernetes::eviction::BACK;
use crate::cases::{Context, close_cpu};
use crate::harness::{Cgroup, eventually};
use crate::kubernetes::{Cluster, uid};

/// A pod's working set may be told this far from the kernel's: both change while they are read.
const APART: u64 = 1 << 20;

/// See the module.
pub(super) struct Watch<'a> {
    cluster: &'a Cluster,
    agent: u32,
    own: String,
    last: u64,
    /// The evictions of each pod.
    evicted: BTreeMap<String, Vec<Eviction>>,
    /// Every pod that there was.
    pods: BTreeSet<String>,
    /// Pods with a mark, and since when the kubelet has written over it.
    marked: BTreeMap<String, Option<Instant>>,
    /// For how long each such mark was away.
    away: Vec<Duration>,
    /// What the agent has said of itself, and how often.
    said: BTreeMap<String, u32>,
    kernel_oom: usize,
    /// What the kernel had counted when the agent's account began, nanoseconds.
    before: BTreeMap<String, u64>,
    compared: usize,
}

/// `/v1/pods`.
#[derive(Deserialize)]
struct Pods {
    pods: Vec<PodStats>,
}

impl<'a> Watch<'a> {
    pub(super) fn begin(cluster: &'a Cluster) -> Result<Self> {
        let own = uid(&cluster.agent_pod()?)?;
        let events: Vec<Event> = cluster.ask("/v1/events?after=0")?;
        Ok(Self {
            cluster,
            agent: cluster.agent_pid(&own)?,
            own,
            last: events.last().map_or(0, |event| event.id),
            evicted: BTreeMap::new(),
            pods: BTreeSet::new(),
            marked: BTreeMap::new(),
            away: Vec::new(),
            said: BTreeMap::new(),
            kernel_oom: 0,
            before: BTreeMap::new(),
            compared: 0,
        })
    }

    /// The agent's process, which is one and the same all the time.
    pub(super) fn agent(&self) -> u32 {
        self.agent
    }

    pub(super) fn pods(&self) -> usize {
        self.pods.len()
    }

    pub(super) fn compared(&self) -> usize {
        self.compared
    }

    /// How often a pod was evicted.
    pub(super) fn evictions(&self, uid: &str) -> usize {
        self.evicted.get(uid).map_or(0, Vec::len)
    }

    /// The events since the last look.
    pub(super) fn look(&mut self) -> Result<()> {
        let path = format!("/v1/events?after={}", self.last);
        let events: Vec<Event> = self.cluster.ask(&path)?;
        for event in events {
            self.last = event.id;
            match event.kind {
                EventKind::Eviction(eviction) => {
                    let uid = eviction.pod.uid.to_string();
                    self.evicted.entry(uid).or_default().push(*eviction);
                }
                EventKind::Degraded { message } => *self.said.entry(message).or_default() += 1,
                EventKind::KernelOom { .. } => self.kernel_oom += 1,
                kind @ (EventKind::ForeignWrite { .. }
                | EventKind::ForeignWriteContested { .. }
                | EventKind::ForeignWriteSettled { .. }) => bail!("a foreign write: {kind:?}"),
                _ => {}
            }
        }
        Ok(())
    }

    /// The pods of the server: where a kubelet that has not seen a mark writes over it, it comes back.
    pub(super) fn look_at(&mut self, pods: &[Value]) -> Result<()> {
        for pod in pods {
            let uid = uid(pod)?;
            let status = &pod["status"];
            if status["phase"] == "Failed" && status["reason"] == "Evicted" {
                let since = self.marked.insert(uid.clone(), None).flatten();
                self.away.extend(since.map(|since| since.elapsed()));
            } else if let Some(since) = self.marked.get_mut(&uid) {
                let away = since.get_or_insert_with(Instant::now).elapsed();
                ensure!(
                    away < BACK,
                    "an evicted pod has another status for {away:?}: {status}"
                );
            }
            self.pods.insert(uid);
        }
        Ok(())
    }

    /// Those were evicted once, and no others.
    pub(super) fn ensure_victims(&self, uids: &[String]) -> Result<()> {
        for (uid, evictions) in &self.evicted {
            ensure!(
                uids.contains(uid),
                "pod {uid} was evicted and fills nothing: {evictions:?}; all evictions: {:?}; the agent: {}",
                self.in_order(),
                self.cluster.agent_log()?
            );
            ensure!(
                evictions.len() == 1,
                "pod {uid} was evicted more than once: {evictions:?}"
            );
        }
        ensure!(
            self.evicted.len() == uids.len(),
            "{} of {} were evicted",
            self.evicted.len(),
            uids.len()
        );
        Ok(())
    }

    /// Every eviction: when its level was crossed and when its pod was killed, nanoseconds, whose, and what that used.
    fn in_order(&self) -> Vec<(u64, Option<u64>, &str, u64)> {
        let all = self.evicted.values().flatten();
        let all = all.map(|one| {
            let (line, name) = (&one.timeline, one.pod.name.as_str());
            (
                line.crossing_nanos,
                line.killed_nanos,
                name,
                one.victim_usage_bytes,
            )
        });
        let mut all: Vec<_> = all.collect();
        all.sort_unstable();
        all
    }

    /// The agent knows the pods that run here, and no others.
    pub(super) fn ensure_same_pods(&self) -> Result<()> {
        let pods = self.cluster.api.list("/api/v1/pods")?;
        let here = pods.iter().filter(|pod| {
            let phase = &pod["status"]["phase"];
            pod["spec"]["nodeName"].is_string() && phase != "Failed" && phase != "Succeeded"
        });
        let here: BTreeSet<_> = here.map(of_source).collect::<Result<_>>()?;
        let told = self.told()?;
        ensure!(told == here, "the agent knows {told:?}, there are {here:?}");
        Ok(())
    }

    /// When all have gone, the agent knows its own alone.
    pub(super) fn ensure_forgotten(&self) -> Result<()> {
        eventually(LIMIT, || {
            let told = self.told()?;
            ensure!(told == BTreeSet::from([self.own.clone()]), "{told:?}");
            Ok(())
        })?;
        ensure!(
            self.cluster.agent_pid(&self.own)? == self.agent,
            "the agent was started again"
        );
        let log = self.cluster.agent_log()?;
        let trouble = log
            .lines()
            .find(|line| line.contains("panic") || line.contains("ERROR"));
        ensure!(trouble.is_none(), "the agent says {trouble:?}");
        Ok(())
    }

    fn told(&self) -> Result<BTreeSet<String>> {
        let told: Pods = self.cluster.ask("/v1/pods")?;
        let uids = told.pods.into_iter().map(|pod| pod.pod_ref.uid.to_string());
        Ok(uids.collect())
    }

    /// Each pod's CPU time and working set are the kernel's.
    pub(super) fn accounts(&mut self) -> Result<()> {
        for cgroup in self.cluster.pod_cgroups() {
            let path = cgroup.path();
            let uid = path.rsplit("/pod").next().unwrap_or_default().to_owned();
            let same = eventually(Duration::from_secs(20), || self.account(&uid, &cgroup));
            let Some(before) = same.with_context(|| format!("the accounts of {path}"))? else {
                continue;
            };
            self.before.entry(uid).or_insert(before);
            self.compared += 1;
        }
        Ok(())
    }

    /// What the kernel counted and the agent did not, nanoseconds: what the runtime did before the agent heard of the pod.
    /// `None` where the pod goes meanwhile.
    fn account(&self, uid: &str, cgroup: &Cgroup) -> Result<Option<u64>> {
        match self.compare(uid, cgroup) {
            Err(_) if !cgroup.exists() => Ok(None),
            compared => compared,
        }
    }

    fn compare(&self, uid: &str, cgroup: &Cgroup) -> Result<Option<u64>> {
        let (asked, kernel) = (Timestamp::now(), cgroup.cpu_ns()?);
        let told = eventually(LIMIT, || {
            if !cgroup.exists() {
                return Ok(None);
            }
            let told = self.cluster.pod_stats(uid)?;
            let time: Timestamp = told.cpu.time.parse()?;
            ensure!(time > asked, "figures of {time}, before {asked}");
            Ok(Some(told))
        })?;
        let Some(told) = told else {
            return Ok(None);
        };
        let (memory, now) = (cgroup.memory()?, cgroup.cpu_ns()?);
        close_cpu(kernel, now).context("it uses CPU")?;
        let working_set = told.memory.context("no memory is told")?.working_set_bytes;
        ensure!(
            working_set.abs_diff(memory.working_set()) < APART,
            "{working_set} bytes and {memory:?}"
        );
        let told = told.cpu.usage_core_nano_seconds;
        let before = match self.before.get(uid) {
            Some(before) => close_cpu(told + before, now).map(|()| *before),
            None => Ok(now.saturating_sub(told)),
        };
        before.map(Some)
    }

    pub(super) fn tell(&self, context: &Context) {
        context.figure("kernel_oom", self.kernel_oom as f64, "");
        context.figure("degradations", self.said.values().sum::<u32>().into(), "");
        for (message, times) in &self.said {
            println!("     the agent said {times} times: {message}");
        }
        let most = self.before.values().max().copied().unwrap_or_default();
        context.figure("marks_written_over", self.away.len() as f64, "");
        let longest = self.away.iter().max().copied().unwrap_or_default();
        context.figure("mark_away_longest", longest.as_secs_f64(), "s");
        context.figure("longest_before_account", most as f64 / 1e6, "ms");
    }
}

/// The uid by which a node knows a pod: of a mirror that of its static pod.
fn of_source(pod: &Value) -> Result<String> {
    let mirror = &pod["metadata"]["annotations"]["kubernetes.io/config.mirror"];
    mirror
        .as_str()
        .map_or_else(|| uid(pod), |uid| Ok(uid.to_owned()))
}
