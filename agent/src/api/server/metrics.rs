//! `/metrics`, in Prometheus text.
//!
//! What the agent counts and times itself comes from the process's recorder. The series of pods and tiers are
//! written from the figures when they are asked for: they agree with `/v1/pods`, and a pod that is gone has no
//! series.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use metrics_exporter_prometheus::LabelSet;

mod recorder;
mod text;

pub use self::recorder::recorder;
use self::text::{Family, labels};
use super::Shared;
use crate::api::{
    published::{Figures, Published},
    types::{
        DropStats, NodeStats, PodStats, ReclaimedStats, SourceStats, ThrottlingStats, TierStats,
    },
};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Nanoseconds in a second.
const NANOS: f64 = 1e9;

pub(super) async fn metrics(State(shared): State<Shared>) -> Response {
    let mut text = recorder().render();
    let figures = shared.published.figures();
    node(&mut text, &figures.node, &shared.published);
    sources(&mut text, &shared.published.sources());
    tiers(&mut text, &figures.node.tiers);
    pods(&mut text, &figures);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

#[rustfmt::skip]
fn node(text: &mut String, node: &NodeStats, published: &Published) {
    let none = labels([]);
    Family::gauge(text, "podwarden_info",
        "Always 1; the labels say which version runs, in which mode and profile, on which cgroups")
        .add(&labels([
            ("version", env!("CARGO_PKG_VERSION")),
            ("mode", &node.mode),
            ("profile", &node.profile),
            ("cgroup_version", &node.cgroup_version),
            ("cgroup_driver", &node.cgroup_driver),
        ]), 1);
    Family::gauge(text, "podwarden_reactor_up",
        "1 while the thread that evicts is at work, 0 when it has ended or is stuck")
        .add(&none, u64::from(published.is_reactor_up()));
    if let Some(runtime) = &node.runtime {
        let up = runtime.name.is_some() && runtime.problem.is_none();
        Family::gauge(text, "podwarden_runtime_up", "1 while the container runtime answers")
            .add(&none, u64::from(up));
    }
    let log = published.event_log();
    let failing = log.iter().filter(|log| log.failing.is_some()).count();
    Family::gauge(text, "podwarden_degradations", "Capabilities that this node lacks; /v1/node names them")
        .add(&none, node.degradations.len() + failing);
    Family::gauge(text, "podwarden_allocatable_memory_bytes", "Memory that pods may use")
        .add(&none, node.allocatable_memory_bytes);
    reclaimed(text, node.reclaimed.as_ref());
    drops(text, &node.kernel_drops);
    Family::gauge(text, "podwarden_contested_files",
        "Files that other processes keep writing, so that they are corrected at growing intervals")
        .add(&none, node.foreign_writes.contested_files);
    Family::gauge(text, "podwarden_watched_cgroups", "Cgroups in which a foreign write is noticed at once")
        .add(&none, node.foreign_writes.watched_cgroups);
    Family::gauge(text, "podwarden_unexplained_cgroups",
        "Pods' cgroups that no source explains, though every source has reported: victims that ask for nothing")
        .add(&none, node.unexplained_cgroups);
}

#[rustfmt::skip]
fn reclaimed(text: &mut String, reclaimed: Option<&ReclaimedStats>) {
    let Some(reclaimed) = reclaimed else {
        return;
    };
    let offers = [("batch", reclaimed.batch), ("mid", reclaimed.mid)];
    let mut family = Family::gauge(text, "podwarden_reclaimed_cpu_cores",
        "CPU that the node offers to pods of a band; no series where that is not computed");
    for (band, offer) in offers {
        family.add(&labels([("band", band)]), offer.cpu_milli as f64 / 1e3);
    }
    let mut family = Family::gauge(text, "podwarden_reclaimed_memory_bytes",
        "Memory that the node offers to pods of a band; no series where that is not computed");
    for (band, offer) in offers {
        family.add(&labels([("band", band)]), offer.memory_bytes);
    }
}

fn drops(text: &mut String, drops: &DropStats) {
    let help = "What the kernel programs could not deliver, by kind";
    let mut family = Family::counter(text, "podwarden_kernel_drops_total", help);
    for (kind, count) in [
        ("decision", drops.decisions),
        ("telemetry", drops.telemetry),
        ("account", drops.accounts),
        ("stall", drops.stalls),
        ("wait", drops.waits),
    ] {
        family.add(&labels([("kind", kind)]), count);
    }
}

#[rustfmt::skip]
fn sources(text: &mut String, sources: &[SourceStats]) {
    if sources.is_empty() {
        return;
    }
    let mut family = Family::gauge(text, "podwarden_pod_source_up",
        "1 while a source of pods has sent what it has and is followed");
    for source in sources {
        let up = source.reported && source.problem.is_none();
        family.add(&labels([("source", &source.name)]), u64::from(up));
    }
    let mut family = Family::gauge(text, "podwarden_pod_source_pods", "Pods that a source has");
    for source in sources {
        family.add(&labels([("source", &source.name)]), source.pods);
    }
    let mut family = Family::counter(text, "podwarden_pod_source_updates_total",
        "Changes of pods that a source sent");
    for source in sources {
        family.add(&labels([("source", &source.name)]), source.updates);
    }
}

#[rustfmt::skip]
fn tiers(text: &mut String, tiers: &[TierStats]) {
    let tiers: Vec<_> = tiers.iter().map(|tier| (labels([("tier", &tier.name)]), tier)).collect();
    let mut family = Family::counter(text, "podwarden_tier_cpu_usage_seconds_total",
        "CPU time of everything below the tier's cgroup");
    for (labels, tier) in &tiers {
        family.add(labels, tier.cpu.usage_core_nano_seconds as f64 / NANOS);
    }
    type Figure = fn(&TierStats) -> Option<u64>;
    let gauges: [(_, _, Figure); 5] = [
        ("podwarden_tier_memory_usage_bytes", "Memory of everything below the tier's cgroup",
            |tier| Some(tier.memory.as_ref()?.usage_bytes)),
        ("podwarden_tier_memory_limit_bytes", "Memory limit in force on the tier's cgroup; no series when there is none",
            |tier| tier.memory.as_ref()?.limit_bytes),
        ("podwarden_tier_armed_level_bytes", "Usage at which podwarden acts; no series when nothing is armed",
            |tier| tier.armed_level_bytes),
        ("podwarden_tier_memory_target_bytes", "Memory limit that qosReserved leaves to the tier; no series without one",
            |tier| tier.convergence.as_ref()?.target_bytes),
        ("podwarden_tier_memory_gap_bytes", "Memory that the tier uses above its target, and that its limit waits for",
            |tier| Some(tier.convergence.as_ref()?.gap_bytes)),
    ];
    for (name, help, of) in gauges {
        let mut family = Family::gauge(text, name, help);
        for (labels, tier) in &tiers {
            if let Some(value) = of(tier) {
                family.add(labels, value);
            }
        }
    }
    let converging = || tiers.iter().filter_map(|(labels, tier)| Some((labels, tier.convergence.as_ref()?)));
    let mut family = Family::counter(text, "podwarden_tier_convergence_steps_total",
        "Steps towards the tier's target, by the file that was written: max, high, reclaim");
    for (labels, convergence) in converging() {
        let steps = &convergence.steps;
        for (file, count) in [("max", steps.max), ("high", steps.high), ("reclaim", steps.reclaim)] {
            family.add_with(labels, ("file", file), count);
        }
    }
    let mut family = Family::counter(text, "podwarden_tier_reclaimed_bytes_total",
        "Page cache that was dropped to bring the tier to its target");
    for (labels, convergence) in converging() {
        family.add(labels, convergence.reclaimed_bytes);
    }
}

/// A pod with the labels of its series, which are made once.
type Labelled<'a> = (LabelSet, &'a PodStats);

fn pods(text: &mut String, figures: &Figures) {
    let labelled = |pod: &PodStats| {
        let pod_ref = &pod.pod_ref;
        labels([
            ("namespace", &pod_ref.namespace),
            ("pod", &pod_ref.name),
            ("uid", pod_ref.uid.as_str()),
            ("qos_class", &pod.qos_class),
        ])
    };
    let pods: Vec<Labelled<'_>> = figures
        .pods
        .iter()
        .map(|pod| (labelled(pod), pod))
        .collect();
    pod_cpu(text, &pods);
    pod_memory(text, &pods);
    pod_exits(text, &pods);
}

#[rustfmt::skip]
fn pod_cpu(text: &mut String, pods: &[Labelled<'_>]) {
    let mut family = Family::counter(text, "podwarden_pod_cpu_usage_seconds_total", "CPU time of the pod");
    for (labels, pod) in pods {
        family.add(labels, pod.cpu.usage_core_nano_seconds as f64 / NANOS);
    }
    let mut family = Family::counter(text, "podwarden_pod_context_switches_total",
        "Context switches into tasks of the pod");
    for (labels, pod) in pods {
        family.add(labels, pod.cpu.context_switches);
    }
    type Figure = fn(ThrottlingStats) -> f64;
    let counters: [(_, _, Figure); 3] = [
        ("podwarden_pod_cpu_periods_total", "Periods of CPU quotas in which the pod ran",
            |throttling| throttling.periods as f64),
        ("podwarden_pod_cpu_throttled_periods_total", "Periods at whose end the pod was throttled by its CPU quota",
            |throttling| throttling.throttled_periods as f64),
        ("podwarden_pod_cpu_throttled_seconds_total", "Time that the pod was throttled by its CPU quota, summed over CPUs",
            |throttling| throttling.throttled_nano_seconds as f64 / NANOS),
    ];
    for (name, help, of) in counters {
        let mut family = Family::counter(text, name, help);
        for (labels, pod) in pods {
            if let Some(throttling) = pod.cpu.throttling {
                family.add(labels, of(throttling));
            }
        }
    }
    let mut family = Family::histogram(text, "podwarden_pod_run_queue_wait_seconds",
        "How long runnable tasks of the pod waited for a CPU");
    for (labels, pod) in pods {
        let sum = pod.cpu.run_queue_wait_nano_seconds as f64 / NANOS;
        let counts = &pod.cpu.run_queue_wait_histogram;
        let last = counts.len().saturating_sub(1);
        let bounds = log2_bounds().take(last).map(Some).chain([None]);
        family.add_buckets(labels, sum, bounds.zip(counts.iter().copied()));
    }
}

#[rustfmt::skip]
fn pod_memory(text: &mut String, pods: &[Labelled<'_>]) {
    type Figure = fn(&PodStats) -> Option<u64>;
    let gauges: [(_, _, Figure); 4] = [
        ("podwarden_pod_memory_usage_bytes", "Memory charged to the pod, page cache included",
            |pod| Some(pod.memory.as_ref()?.usage_bytes)),
        ("podwarden_pod_memory_working_set_bytes", "Usage without inactive page cache, as cAdvisor computes it",
            |pod| Some(pod.memory.as_ref()?.working_set_bytes)),
        ("podwarden_pod_memory_rss_bytes", "Anonymous memory of the pod",
            |pod| Some(pod.memory.as_ref()?.rss_bytes)),
        ("podwarden_pod_memory_limit_bytes", "Memory limit in force on the pod's cgroup; no series when there is none",
            |pod| pod.memory.as_ref()?.limit_bytes),
    ];
    for (name, help, of) in gauges {
        let mut family = Family::gauge(text, name, help);
        for (labels, pod) in pods {
            if let Some(value) = of(pod) {
                family.add(labels, value);
            }
        }
    }
    let mut family = Family::counter(text, "podwarden_pod_reclaim_stall_seconds_total",
        "Time that tasks of the pod reclaimed memory instead of running, by kind of reclaim");
    for (labels, pod) in pods {
        for (kind, nanos) in [
            ("direct_reclaim", pod.stall.direct_reclaim_nano_seconds),
            ("memcg_reclaim", pod.stall.memcg_reclaim_nano_seconds),
        ] {
            family.add_with(labels, ("kind", kind), nanos as f64 / NANOS);
        }
    }
}

#[rustfmt::skip]
fn pod_exits(text: &mut String, pods: &[Labelled<'_>]) {
    let mut family = Family::counter(text, "podwarden_pod_process_exits_total",
        "Processes of the pod that ended, by outcome");
    for (labels, PodStats { exits, .. }) in pods {
        let succeeded = exits.total.saturating_sub(exits.failed + exits.signaled);
        for (outcome, count) in [
            ("succeeded", succeeded),
            ("failed", exits.failed),
            ("signaled", exits.signaled),
        ] {
            family.add_with(labels, ("outcome", outcome), count);
        }
    }
    let mut family = Family::counter(text, "podwarden_pod_oom_kills_total",
        "Processes of the pod that the kernel's OOM killer chose");
    for (labels, pod) in pods {
        family.add(labels, pod.exits.oom_killed);
    }
}

/// Upper bounds of buckets in seconds: bucket `i` ends at `2^(i+1)` microseconds.
fn log2_bounds() -> impl Iterator<Item = f64> {
    (1..).map(|exponent| 2f64.powi(exponent) / 1e6)
}
