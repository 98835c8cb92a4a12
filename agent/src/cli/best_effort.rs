//! What best effort may use of the CPU, and why, as text.

use super::{events::text, output};
use crate::api::types::BestEffortCpuStats;

/// One line; `None` where nothing holds best effort back.
pub(super) fn cpu(stats: &BestEffortCpuStats) -> Option<String> {
    let limit = stats.limit_milli()?;
    let would = if stats.dry_run { "could" } else { "may" };
    let why = match (stats.wait_limit_milli, &stats.waiting) {
        (Some(wait), Some(pod)) if wait == limit => {
            let waited = stats.waited_nano_seconds.unwrap_or_default();
            format!(
                "{} waited {} for a CPU",
                text::name(pod),
                output::nanos(waited)
            )
        }
        (Some(wait), None) if wait == limit => "a protected pod waits for a CPU".to_owned(),
        _ => "colocation.cpuSuppressThresholdPercent".to_owned(),
    };
    let cpus = limit as f64 / 1000.0;
    Some(format!("best effort  {would} use {cpus:.1} CPUs: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::types::PodRef;

    #[test]
    fn the_smaller_limit_is_named_with_its_reason() {
        let pod = PodRef {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "1".into(),
        };
        let mut stats = BestEffortCpuStats::default();
        assert_eq!(cpu(&stats), None);
        stats.suppress_limit_milli = Some(1500);
        let text = "best effort  may use 1.5 CPUs: colocation.cpuSuppressThresholdPercent";
        assert_eq!(cpu(&stats).as_deref(), Some(text));
        stats.wait_limit_milli = Some(600);
        let text = "best effort  may use 0.6 CPUs: a protected pod waits for a CPU";
        assert_eq!(cpu(&stats).as_deref(), Some(text));
        stats.waiting = Some(pod);
        stats.waited_nano_seconds = Some(3_100_000);
        stats.dry_run = true;
        let text = cpu(&stats).unwrap();
        assert!(text.starts_with("best effort  could use 0.6 CPUs: shop/web waited 3.1"));
        stats.suppress_limit_milli = Some(500);
        assert!(cpu(&stats).is_some_and(|text| text.contains("cpuSuppressThresholdPercent")));
    }
}
