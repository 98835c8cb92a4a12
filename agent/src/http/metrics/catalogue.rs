//! Every metric there is.

use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram, Info};

use super::family::{
    Base::{self, Bytes, Seconds},
    Metric,
};

/// All families; the description stands beside the field.
pub(super) struct Metrics {
    pub(super) info: Metric,
    pub(super) degradations: Metric,
    pub(super) allocatable: Metric,
    pub(super) drops: Metric,
    pub(super) operations: Metric,
    pub(super) operation_duration: Metric,
    pub(super) corrections: Metric,
    pub(super) reconciles: Metric,
    pub(super) reconcile_duration: Metric,
    pub(super) tier_cpu: Metric,
    pub(super) tier_memory: Metric,
    pub(super) tier_limit: Metric,
    pub(super) tier_level: Metric,
    pub(super) pod_cpu: Metric,
    pub(super) pod_switches: Metric,
    pub(super) pod_wait: Metric,
    pub(super) pod_memory: Metric,
    pub(super) pod_working_set: Metric,
    pub(super) pod_rss: Metric,
    pub(super) pod_limit: Metric,
    pub(super) pod_stall: Metric,
    pub(super) pod_exits: Metric,
    pub(super) pod_oom_kills: Metric,
    pub(super) evictions: Metric,
    pub(super) crossings: Metric,
}

const fn metric(
    kind: MetricType,
    name: &'static str,
    unit: Option<Base>,
    help: &'static str,
) -> Metric {
    Metric {
        name,
        help,
        unit,
        kind,
    }
}

/// Labels: a pod's series carry `namespace`, `pod`, `uid` and `qos`, a tier's carry `tier`.
#[rustfmt::skip]
pub(super) const METRICS: Metrics = Metrics {
    info: metric(Info, "podwarden", None,
        "Always 1; the labels say which version runs, in which mode and profile, on which cgroups"),
    degradations: metric(Gauge, "podwarden_degradations", None,
        "Capabilities that this node lacks; /v1/node names them"),
    allocatable: metric(Gauge, "podwarden_allocatable_memory", Some(Bytes),
        "Memory that pods may use"),
    drops: metric(Counter, "podwarden_kernel_drops", None,
        "What the kernel programs could not deliver, by kind"),
    operations: metric(Counter, "podwarden_cgroup_operations", None,
        "Operations on cgroups (create, update, delete), by result (done, failed, unchanged)"),
    operation_duration: metric(Histogram, "podwarden_cgroup_operation_duration", Some(Seconds),
        "How long operations on cgroups took, reading back included"),
    corrections: metric(Counter, "podwarden_cgroup_corrections", None,
        "Values written again because somebody else had changed them"),
    reconciles: metric(Counter, "podwarden_reconciles", None,
        "Comparisons of the whole tree with what it should be"),
    reconcile_duration: metric(Gauge, "podwarden_last_reconcile_duration", Some(Seconds),
        "How long carrying out the last plan for the whole tree took"),
    tier_cpu: metric(Counter, "podwarden_tier_cpu_usage", Some(Seconds),
        "CPU time of everything below the tier's cgroup"),
    tier_memory: metric(Gauge, "podwarden_tier_memory_usage", Some(Bytes),
        "Memory of everything below the tier's cgroup"),
    tier_limit: metric(Gauge, "podwarden_tier_memory_limit", Some(Bytes),
        "Memory limit in force on the tier's cgroup; no series when there is none"),
    tier_level: metric(Gauge, "podwarden_tier_armed_level", Some(Bytes),
        "Usage at which podwarden acts; no series when nothing is armed"),
    pod_cpu: metric(Counter, "podwarden_pod_cpu_usage", Some(Seconds),
        "CPU time of the pod"),
    pod_switches: metric(Counter, "podwarden_pod_context_switches", None,
        "Context switches into tasks of the pod"),
    pod_wait: metric(Histogram, "podwarden_pod_run_queue_wait", Some(Seconds),
        "How long runnable tasks of the pod waited for a CPU"),
    pod_memory: metric(Gauge, "podwarden_pod_memory_usage", Some(Bytes),
        "Memory charged to the pod, page cache included"),
    pod_working_set: metric(Gauge, "podwarden_pod_memory_working_set", Some(Bytes),
        "Usage without inactive page cache, as cAdvisor computes it"),
    pod_rss: metric(Gauge, "podwarden_pod_memory_rss", Some(Bytes),
        "Anonymous memory of the pod"),
    pod_limit: metric(Gauge, "podwarden_pod_memory_limit", Some(Bytes),
        "Memory limit in force on the pod's cgroup; no series when there is none"),
    pod_stall: metric(Counter, "podwarden_pod_reclaim_stall", Some(Seconds),
        "Time that tasks of the pod reclaimed memory instead of running, by kind of reclaim"),
    pod_exits: metric(Counter, "podwarden_pod_process_exits", None,
        "Processes of the pod that ended, by outcome"),
    pod_oom_kills: metric(Counter, "podwarden_pod_oom_kills", None,
        "Processes of the pod that the kernel's OOM killer chose"),
    evictions: metric(Counter, "podwarden_evictions", None,
        "Pods evicted, or in observe mode (dry_run) that would have been"),
    crossings: metric(Counter, "podwarden_level_crossings", None,
        "Armed levels that were crossed, by scope and by what noticed it first"),
};
