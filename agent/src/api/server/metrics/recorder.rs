//! The recorder of what the agent counts and times itself, and what each of those metrics means.
//!
//! The places that count use `counter!`, `gauge!` and `histogram!`; nothing is recorded on the reactor's thread.

use std::sync::OnceLock;

use ::metrics::{
    counter, describe_counter, describe_gauge, describe_histogram, histogram, set_global_recorder,
    with_local_recorder,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use podwarden_policy::{
    QosClass,
    signal::{Detector, ScopeName},
};

use crate::{
    api::published::{CROSSING_TO_KILL, KILL_TO_FREED, NOT_FREED, OVERSHOOT},
    colocation::burst::Why,
    hierarchy::act::{Operation, Outcome},
};

/// How long operations on cgroups take, as they are counted.
const OPERATION_DURATION: &str = "podwarden_cgroup_operation_duration_seconds";

/// Upper bounds of times of evictions, seconds: from a tenth of a millisecond to the longest wait for memory.
const SECONDS: [f64; 17] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0,
];

/// Upper bounds of amounts of memory, bytes: none, then 1 MiB to 4 GiB.
const AMOUNTS: [f64; 8] = [
    0.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
];

/// The handle on the process's recorder, which is installed with the first call.
pub fn recorder() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let bounds: Vec<_> = super::log2_bounds().take(19).collect();
        let buckets = [
            (OPERATION_DURATION, bounds.as_slice()),
            (CROSSING_TO_KILL, &SECONDS),
            (KILL_TO_FREED, &SECONDS),
            (OVERSHOOT, &AMOUNTS),
        ];
        // Refused for an empty list of bounds alone.
        let builder =
            buckets
                .into_iter()
                .try_fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
                    builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
                });
        let recorder = builder.unwrap_or_default().build_recorder();
        with_local_recorder(&recorder, describe);
        let handle = recorder.handle();
        if set_global_recorder(recorder).is_err() {
            tracing::warn!(
                "another recorder of metrics is installed: /metrics lacks what the agent counts"
            );
        }
        handle
    })
}

/// What each counter counts.
#[rustfmt::skip]
const COUNTERS: [(&str, &str); 11] = [
    ("podwarden_cgroup_operations_total",
        "Operations on cgroups (create, update, delete, reclaim), by result (done, failed, unchanged)"),
    ("podwarden_cgroup_corrections_total", "Values written again because another process had changed them"),
    ("podwarden_reconciles_total", "Comparisons of the whole tree with what it should be"),
    ("podwarden_foreign_writes_total",
        "Values of ours that other processes changed, by property and by what came of it: corrected, refused by \
         the kernel, or contested (another process insists)"),
    ("podwarden_evictions_total", "Pods evicted, or in observe mode (dry_run) that would have been"),
    ("podwarden_level_crossings_total", "Armed levels that were crossed, by scope and by what noticed it first"),
    ("podwarden_cpu_quota_changes_total",
        "Reported changes of containers' CPU quotas, at most one of a container in a second, by reason: raised for \
         throttled, lowered for nodeBusy and noTokens"),
    (NOT_FREED,
        "Evictions whose victim was killed and kept its memory for 5 s, by scope: a process waits inside the kernel"),
    ("podwarden_events_dropped_total",
        "Events that /v1/events does not have because their pod has too many of this type"),
    ("podwarden_event_log_lines_total",
        "Lines for the event log, by result (written, dropped); no series without one"),
    ("podwarden_eviction_status_deliveries_total",
        "Events and statuses of evictions, by result (delivered, given_up); no series without an API server"),
];

/// What each gauge shows.
#[rustfmt::skip]
const GAUGES: [(&str, &str); 3] = [
    ("podwarden_last_reconcile_duration_seconds", "How long carrying out the last plan for the whole tree took"),
    ("podwarden_event_log_size_bytes",
        "Size of the event log without the generation before; no series without one"),
    ("podwarden_eviction_status_waiting",
        "Events and statuses of evictions that the API server does not have yet; no series without one"),
];

/// What each histogram has.
#[rustfmt::skip]
const HISTOGRAMS: [(&str, &str); 4] = [
    (OPERATION_DURATION, "How long operations on cgroups took, reading back included"),
    (CROSSING_TO_KILL, "From a crossed level to the last SIGKILL, by scope"),
    (KILL_TO_FREED,
        "From the last SIGKILL until the victim's memory was free, by scope; without evictions whose memory was not \
         seen free"),
    (OVERSHOOT, "Memory in use above the configured level when the victim was chosen, by scope"),
];

/// Describes each metric, and begins with zero those that are always there.
fn describe() {
    for (name, meaning) in COUNTERS {
        describe_counter!(name, meaning);
    }
    for (name, meaning) in GAUGES {
        describe_gauge!(name, meaning);
    }
    for (name, meaning) in HISTOGRAMS {
        describe_histogram!(name, meaning);
    }
    for operation in Operation::ALL.map(Operation::as_str) {
        for result in Outcome::ALL.map(Outcome::as_str) {
            counter!("podwarden_cgroup_operations_total", "operation" => operation, "result" => result)
                .absolute(0);
        }
        drop(histogram!(OPERATION_DURATION, "operation" => operation));
    }
    counter!("podwarden_cgroup_corrections_total").absolute(0);
    counter!("podwarden_reconciles_total").absolute(0);
    for scope in ScopeName::ALL {
        for class in QosClass::ALL {
            for dry_run in ["false", "true"] {
                counter!("podwarden_evictions_total",
                    "qos_class" => class.as_str(), "scope" => scope.as_str(), "dry_run" => dry_run)
                .absolute(0);
            }
        }
        for detector in Detector::ALL {
            counter!("podwarden_level_crossings_total",
                "scope" => scope.as_str(), "detected_by" => detector.as_str())
            .absolute(0);
        }
        drop(histogram!(CROSSING_TO_KILL, "scope" => scope.as_str()));
        drop(histogram!(KILL_TO_FREED, "scope" => scope.as_str()));
        counter!(NOT_FREED, "scope" => scope.as_str()).absolute(0);
        if scope.is_of_memory() {
            drop(histogram!(OVERSHOOT, "scope" => scope.as_str()));
        }
    }
    for reason in Why::ALL.map(Why::as_str) {
        for dry_run in ["false", "true"] {
            counter!("podwarden_cpu_quota_changes_total", "reason" => reason, "dry_run" => dry_run)
                .absolute(0);
        }
    }
    counter!("podwarden_events_dropped_total", "type" => "processExit").absolute(0);
}
