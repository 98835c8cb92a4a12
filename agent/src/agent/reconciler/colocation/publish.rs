//! What the threads of co-location report, as events.

use super::super::{Environment, Fact};
use crate::{
    api::types::EventKind,
    base::clock,
    colocation::{
        burst::{self, Report},
        hold::{self, Suppressed, What},
    },
};

/// A quota that the thread changed.
pub(super) fn quota(report: Report, env: &Environment) -> Vec<Fact> {
    let pod = report.pod;
    let (container, step) = match report.what {
        burst::What::Step { container, step } => (container, step),
        burst::What::Refused(error) => {
            return vec![Fact::Degraded(format!(
                "{}/{} exceeds no CPU limit: {error}",
                pod.namespace, pod.name
            ))];
        }
    };
    let kind = EventKind::CpuQuota {
        container,
        throttled_nanos: step.throttled_nanos,
        from_us: step.from_us,
        to_us: step.to_us,
        period_us: step.period_us,
        reason: step.why.as_str().to_owned(),
        dry_run: report.dry_run,
    };
    env.published
        .event(clock::text_of(report.at), Some(pod), kind);
    Vec::new()
}

/// What best effort may use.
pub(super) fn hold(report: hold::Report, env: &Environment) -> Vec<Fact> {
    let dry_run = report.dry_run;
    let (pod, kind) = match report.what {
        What::Held {
            pod,
            waited_nanos,
            delay_nanos,
            from,
            to,
        } => {
            let kind = EventKind::BestEffortHeld {
                from_milli: from.0,
                to_milli: to.0,
                waited_nanos,
                delay_nanos,
                dry_run,
            };
            (Some(pod), kind)
        }
        What::Freed { held, waits } => {
            let kind = EventKind::BestEffortFreed {
                held_nanos: clock::nanos(held),
                waits,
                dry_run,
            };
            (None, kind)
        }
        What::Suppressed(step) => (None, suppressed(step, dry_run, env)),
        What::Refused(error) => {
            return vec![Fact::Degraded(format!(
                "best-effort CPU cannot be held back: {error}"
            ))];
        }
    };
    env.published.event(clock::text_of(report.at), pod, kind);
    Vec::new()
}

fn suppressed(step: Suppressed, dry_run: bool, env: &Environment) -> EventKind {
    let config = env.config.colocation.suppress;
    EventKind::BestEffortSuppressed {
        from_milli: step.from.map(|from| from.0),
        to_milli: step.to.0,
        cpus: step.cpus.map(|cpus| cpus.to_string()),
        others_milli: step.others.0,
        capacity_milli: env.node.cpu_capacity.0,
        threshold_percent: config.map_or(0, |config| config.threshold.percent),
        dry_run,
    }
}
