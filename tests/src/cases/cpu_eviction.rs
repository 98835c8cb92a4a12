//! Best-effort pods that go for the CPU, and for what they request.

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{EventKind, Eviction};
use podwarden_policy::signal::ScopeName;

use super::colocation::limit;
use super::{Case, Context, portable};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, http_get};
use budget::disruption_budgets_keep_best_effort;

mod budget;

pub(super) const CASES: &[Case] = &[
    portable(
        "unsatisfied_best_effort_is_evicted",
        unsatisfied_best_effort_is_evicted,
    ),
    portable(
        "observed_cpu_eviction_kills_nothing",
        observed_cpu_eviction_kills_nothing,
    ),
    portable(
        "disruption_budgets_keep_best_effort",
        disruption_budgets_keep_best_effort,
    ),
];

/// The formula leaves best effort half a CPU, which is too little for requests of 1250m and more.
fn options(mode: &'static str) -> Options {
    let suppress = "cpuSuppressThresholdPercent: 50, cpuSuppressPolicy: cfsQuota";
    let evict = "cpuEvictBESatisfactionLowerPercent: 40, cpuEvictBESatisfactionUpperPercent: 60";
    Options {
        mode,
        cpu: "16",
        config: format!("systemReserved: {{cpu: 7500m}}\ncolocation: {{{suppress}, {evict}}}\n"),
        ..Options::default()
    }
}

/// Two best-effort pods at work, the one that is to go first before the other.
struct Scene {
    node: Node,
    low: Pod,
    work: Vec<Workload>,
}

impl Scene {
    fn start(context: &Context, mode: &'static str) -> Result<Self> {
        let node = Node::start(context, &options(mode))?;
        let spec = |name, priority| PodSpec::batch(name, 1000, "64Mi").prioritized(priority);
        let pods = node.pods(vec![spec("low", 5001), spec("high", 5002)])?;
        let work = pods.iter().map(|pod| pod.start(&["burn"]));
        let work = work.collect::<Result<Vec<_>>>()?;
        let low = pods.into_iter().next().context("two pods")?;
        Ok(Self { node, low, work })
    }

    fn evictions(&self) -> Result<Vec<Eviction>> {
        let events = self.node.agent.events(0)?;
        let of = |event: podwarden::api::types::Event| match event.kind {
            EventKind::Eviction(eviction) => Some(*eviction),
            _ => None,
        };
        Ok(events.into_iter().filter_map(of).collect())
    }

    /// The first eviction, which is the only one within the cool-down.
    fn eviction(&self, context: &Context) -> Result<Eviction> {
        // None comes in the first 20 s of an agent.
        eventually(context.limit(60), || {
            ensure!(!self.evictions()?.is_empty(), "no pod is evicted");
            Ok(())
        })?;
        let evictions = self.evictions()?;
        ensure!(evictions.len() == 1, "{evictions:?}");
        let eviction = evictions.into_iter().next().context("one eviction")?;
        ensure!(eviction.pod.uid == self.low.uid(), "{eviction:?}");
        ensure!(eviction.scope == ScopeName::Cpu, "{eviction:?}");
        ensure!(
            eviction.reason.contains("best effort may use"),
            "{}",
            eviction.reason
        );
        Ok(eviction)
    }
}

fn unsatisfied_best_effort_is_evicted(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, "enforce")?;
    // Its first 20 s pass at the same time.
    let requests = Requests::start(context)?;
    let eviction = scene.eviction(context)?;
    ensure!(!eviction.dry_run && eviction.processes > 0, "{eviction:?}");
    ensure!(eviction.timeline.freed_nanos.is_some(), "{eviction:?}");
    let [low, high] = scene.work.as_mut_slice() else {
        anyhow::bail!("two workloads");
    };
    low.wait(context.limit(10))?;
    ensure!(high.is_alive(), "the pod of the higher priority was killed");
    let metrics = http_get(scene.node.agent.socket(), "/metrics")?.text();
    let counted = metrics.lines().any(|line| {
        line.starts_with("podwarden_evictions_total")
            && line.contains("scope=\"cpu\"")
            && line.contains("dry_run=\"false\"")
            && line.ends_with(" 1")
    });
    ensure!(counted, "the metrics do not count it");
    drop(scene.work);
    scene.node.finish()?;
    requests.one_goes(context)
}

/// Pods that request more than the node has to spare are evicted.
const BY_REQUESTS: &str = "colocation: {reclaimed: {enable: true, memoryCalculatePolicy: request}, \
                           memoryAllocatableEvictThresholdPercent: 100}\n";

/// A pod with 6 GiB, of about 10 that the node has to spare.
fn batch(name: &str, priority: i32) -> PodSpec {
    PodSpec::batch(name, 100, "6Gi")
        .prioritized(priority)
        .labelled("koordinator.sh/eviction-enabled", "true")
}

/// Two batch pods that request 12 GiB of memory, where the node has 65 % of 16 GiB to spare.
struct Requests {
    node: Node,
    pods: Vec<Pod>,
    work: Vec<Workload>,
}

impl Requests {
    fn start(context: &Context) -> Result<Self> {
        let options = Options {
            config: BY_REQUESTS.to_owned(),
            ..Options::default()
        };
        let node = Node::start(context, &options)?;
        let pods = node.pods(vec![batch("first", 5001), batch("second", 5002)])?;
        let work = pods.iter().map(|pod| pod.start(&["anon", "--mib", "8"]));
        let work = work.collect::<Result<Vec<_>>>()?;
        Ok(Self { node, pods, work })
    }

    /// The one of the lower priority. What the pods hold raises the offer, and not what the node has to spare.
    fn one_goes(mut self, context: &Context) -> Result<()> {
        let [first, second] = self.work.as_mut_slice() else {
            anyhow::bail!("two workloads");
        };
        first
            .wait(context.limit(60))
            .context("the first pod was not evicted")?;
        ensure!(
            second.is_alive(),
            "the pod of the higher priority was killed"
        );
        // It is reported once its memory is free.
        let evictions = eventually(context.limit(30), || {
            let evictions = self.node.agent.evictions()?;
            ensure!(!evictions.is_empty(), "no eviction is reported");
            Ok(evictions)
        })?;
        let [eviction] = evictions.as_slice() else {
            anyhow::bail!("{evictions:?}");
        };
        ensure!(
            eviction.pod.uid == self.pods[0].uid() && eviction.scope == ScopeName::BatchMemory,
            "{eviction:?}"
        );
        ensure!(
            eviction
                .reason
                .contains("of memory that the node has to spare"),
            "{}",
            eviction.reason
        );
        drop(self.work);
        self.node.finish()
    }
}

fn observed_cpu_eviction_kills_nothing(context: &Context) -> Result<()> {
    let mut scene = Scene::start(context, "observe")?;
    // What another program lets the tier use.
    limit(&scene.node.tier("besteffort")?, 50_000)?;
    let eviction = scene.eviction(context)?;
    ensure!(eviction.dry_run && eviction.processes == 0, "{eviction:?}");
    for work in &mut scene.work {
        ensure!(work.is_alive(), "a process was killed");
    }
    drop(scene.work);
    scene.node.empty()
}
