//! Events about the CPU as text.

use crate::{api::types::EventKind, cli::output};

/// A container's quota was raised or lowered.
pub(super) fn quota(kind: &EventKind) -> String {
    let EventKind::CpuQuota {
        container,
        throttled_nanos,
        from_us,
        to_us,
        period_us,
        reason,
        dry_run,
    } = kind
    else {
        return String::new();
    };
    let (from, to) = (from_us / 1000, to_us / 1000);
    let container = output::printable(container);
    let why = match reason.as_str() {
        "throttled" => format!(
            "throttled {} of {} ms",
            output::nanos(*throttled_nanos),
            period_us / 1000
        ),
        "nodeBusy" => "no free CPU left".to_owned(),
        _ => "its tokens are used up".to_owned(),
    };
    let would = if *dry_run { "would be " } else { "" };
    format!("{container} {why}: quota {would}{from} -> {to} ms")
}

/// What the besteffort tier may use.
pub(super) fn held(kind: &EventKind) -> String {
    let would = |dry_run: &bool| if *dry_run { "would be " } else { "" };
    let cpus = |milli: &u64| *milli as f64 / 1000.0;
    match kind {
        EventKind::BestEffortHeld {
            from_milli,
            to_milli,
            waited_nanos,
            dry_run,
            ..
        } => {
            format!(
                "waited {} for a CPU: best-effort {}held from {:.1} to {:.1} CPUs",
                output::nanos(*waited_nanos),
                would(dry_run),
                cpus(from_milli),
                cpus(to_milli)
            )
        }
        EventKind::BestEffortSuppressed {
            from_milli,
            to_milli,
            cpus: list,
            others_milli,
            capacity_milli,
            threshold_percent,
            dry_run,
        } => {
            let from = from_milli
                .as_ref()
                .map(|from| format!("from {:.1} ", cpus(from)));
            let list = list
                .as_ref()
                .map(|list| format!(" ({})", output::printable(list)));
            format!(
                "best-effort {}held {}to {:.1} CPUs{}: others use {:.1}, all may use {threshold_percent} % of {:.1}",
                would(dry_run),
                from.unwrap_or_default(),
                cpus(to_milli),
                list.unwrap_or_default(),
                cpus(others_milli),
                cpus(capacity_milli),
            )
        }
        EventKind::BestEffortFreed {
            held_nanos,
            waits,
            dry_run,
        } => format!(
            "best-effort {}free again after {}: {waits} waits were too long",
            would(dry_run),
            output::nanos(*held_nanos)
        ),
        _ => String::new(),
    }
}
