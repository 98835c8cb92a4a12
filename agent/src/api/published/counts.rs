//! What events add to `/metrics`: the bounded list of events forgets.

use metrics::{counter, histogram};

use crate::api::types::{EventKind, Eviction};

/// Metric: from a crossed level to the last SIGKILL, seconds.
pub(crate) const CROSSING_TO_KILL: &str = "podwarden_eviction_crossing_to_kill_seconds";
/// Metric: from the last SIGKILL to the victim's memory being free, seconds.
pub(crate) const KILL_TO_FREED: &str = "podwarden_eviction_kill_to_freed_seconds";
/// Metric: evictions whose victim's memory was not seen free.
pub(crate) const NOT_FREED: &str = "podwarden_evictions_not_freed_total";
/// Metric: usage above the configured level when the victim was chosen, bytes.
pub(crate) const OVERSHOOT: &str = "podwarden_eviction_overshoot_bytes";

/// Counts what the bounded list of events forgets.
pub(super) fn count(kind: &EventKind) {
    match kind {
        EventKind::Eviction(eviction) => {
            counter!(
                "podwarden_evictions_total",
                "qos_class" => eviction.qos_class.clone(),
                "scope" => eviction.scope.as_str(),
                "dry_run" => eviction.dry_run.to_string(),
            )
            .increment(1);
            time(eviction);
        }
        EventKind::LevelCrossed {
            scope, detected_by, ..
        } => counter!(
            "podwarden_level_crossings_total",
            "scope" => scope.as_str(),
            "detected_by" => detected_by.as_str(),
        )
        .increment(1),
        EventKind::CpuQuota {
            reason, dry_run, ..
        } => counter!(
            "podwarden_cpu_quota_changes_total",
            "reason" => reason.clone(),
            "dry_run" => dry_run.to_string(),
        )
        .increment(1),
        _ => {}
    }
}

/// Counts how fast an eviction was. One that an agent before this one made counts no second time, and one of a pod that
/// has time to end is in no hurry.
fn time(eviction: &Eviction) {
    let timeline = &eviction.timeline;
    let counts = !eviction.interrupted && eviction.grace_seconds.is_none();
    let Some(killed) = timeline.killed_nanos.filter(|_| counts) else {
        return;
    };
    let scope = eviction.scope.as_str();
    let seconds = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9;
    histogram!(CROSSING_TO_KILL, "scope" => scope).record(seconds(timeline.crossing_nanos, killed));
    match timeline.freed_nanos {
        Some(freed) => {
            histogram!(KILL_TO_FREED, "scope" => scope).record(seconds(killed, freed));
        }
        None => counter!(NOT_FREED, "scope" => scope).increment(1),
    }
    if eviction.scope.is_of_memory() {
        // The level in force is lower by the headroom that the filling asked for.
        let configured = eviction.level_bytes.saturating_add(eviction.headroom_bytes);
        let overshoot = eviction.usage_bytes.saturating_sub(configured);
        histogram!(OVERSHOOT, "scope" => scope).record(overshoot as f64);
    }
}
