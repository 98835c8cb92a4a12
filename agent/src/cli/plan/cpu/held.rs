//! What best effort may use, by the formula and while a protected pod waits.

use std::collections::BTreeSet;

use podwarden_cgroup::CpuList;
use podwarden_policy::{
    MilliCpu, Pod,
    colocation::{
        class::WAIT_OBJECTIVE_ANNOTATION,
        hold::{self, QUIET_NANOS},
        strategies::{Measured, Suppress, Wait},
        suppress::{self, Capacity, MIN_QUOTA_US, Policy, Step, Threshold, Usage},
    },
    convert::{DEFAULT_PERIOD_US, quota_to_milli},
};

use super::{Row, SUPPRESS, Sum, TIER, Value, WAIT, is_protected, name};
use crate::{base::clock, cli::output, colocation::hold::objective};

pub(super) fn suppress(suppress: &Suppress) -> Vec<Row> {
    let Suppress {
        node,
        threshold,
        policy,
        measured,
    } = suppress;
    let Threshold {
        percent,
        min_percent,
    } = *threshold;
    let mut sum = Sum(SUPPRESS, Vec::new());
    let part = |percent| {
        let threshold = Threshold {
            percent,
            min_percent: None,
        };
        let node = Capacity {
            reserved: MilliCpu::ZERO,
            ..*node
        };
        Value::CpuMilli(suppress::quantity(node, Usage::default(), threshold))
    };
    let capacity = node.capacity.0;
    let from = format!("{percent} % of {capacity}m");
    sum.add(TIER, ("", "node"), part(percent), from);
    let Some(Measured { usage, .. }) = measured else {
        let from = "the larger of this and what is used outside pods";
        sum.add(TIER, ("-", "reserved"), Value::of(node.reserved), from);
        let from = "pods and system are not measured: the agent records them";
        sum.add(TIER, ("=", "formula"), Value::None, from);
        return sum.1;
    };
    let others = usage.pods.saturating_sub(usage.best_effort_pods);
    let from = "what other pods use";
    sum.add(TIER, ("-", "pods"), Value::of(others), from);
    let outside = usage.node.saturating_sub(usage.pods);
    let (system, from) = match outside > node.reserved {
        true => (outside, "used outside pods"),
        false => (node.reserved, "reserved"),
    };
    sum.add(TIER, ("-", "system"), Value::of(system), from);
    if let Some(least) = min_percent {
        let from = format!("cpuSuppressMinPercent {least}");
        sum.add(TIER, (">=", "floor"), part(least), from);
    }
    let quantity = Value::CpuMilli(suppress.quantity().unwrap_or_default());
    let from = "what best effort may use";
    sum.add(TIER, ("=", "formula"), quantity, from);
    match policy {
        Policy::CfsQuota => of_quota(suppress, &mut sum),
        Policy::Cpuset => of_cpus(suppress, &mut sum),
    }
    sum.1
}

fn of_quota(suppress: &Suppress, sum: &mut Sum) {
    let milli = |quota_us| Value::of(quota_to_milli(Some(quota_us), DEFAULT_PERIOD_US));
    let measured = suppress.measured.as_ref();
    let now = measured.and_then(|measured| measured.quota_us);
    match now {
        Some(now) => sum.add(TIER, ("", "quota"), milli(now), "in force"),
        None => sum.add(TIER, ("", "quota"), Value::None, "none was written yet"),
    }
    match suppress.round().map(|round| round.quota) {
        Some(Step::Set(next)) => {
            let why = match now {
                Some(now) if next > now => {
                    "at most a tenth of the node more, a second after the last step up"
                }
                _ if next == MIN_QUOTA_US => "the least quota: 2 ms in 100 ms",
                _ => "less is written at once",
            };
            sum.add(TIER, ("", "next"), milli(next), why);
        }
        _ => {
            let why = "stays: a change below a hundredth of the node is not written";
            sum.add(TIER, ("", "next"), now.map_or(Value::None, milli), why);
        }
    }
}

fn of_cpus(suppress: &Suppress, sum: &mut Sum) {
    let list = |cpus: BTreeSet<u32>| Value::Cpus(CpuList(cpus).to_string());
    let Some(measured) = &suppress.measured else {
        return;
    };
    let sets = &measured.sets;
    if !sets.excluded.is_empty() {
        let from = "of LSE and SYSTEM pods alone";
        sum.add(TIER, ("-", "exclusive"), list(sets.excluded.clone()), from);
    }
    let (cpus, from) = match &measured.cpus {
        Some(now) => (now, "in force"),
        None => (&sets.present, "none were written yet"),
    };
    sum.add(TIER, ("", "cpus"), list(cpus.clone()), from);
    match suppress.round().map(|round| round.cpus) {
        Some(Step::Set(next)) => {
            let why = "whole cores first, at least 2, at most a tenth of the node more than now";
            sum.add(TIER, ("", "next"), list(next.into_iter().collect()), why);
        }
        _ => {
            let why = "stays: too few CPUs are free";
            sum.add(TIER, ("", "next"), Value::None, why);
        }
    }
}

pub(super) fn wait(wait: &Wait, pods: &[Pod]) -> Vec<Row> {
    let mut sum = Sum(WAIT, Vec::new());
    let (bounds, measured) = (&wait.bounds, &wait.measured);
    match measured.limit {
        None => {
            let from = "no protected pod waits: nothing is held back";
            sum.add(TIER, ("", "now"), Value::of(bounds.cpus), from);
        }
        Some(limit) => {
            sum.add(TIER, ("", "now"), Value::of(limit), waited(wait, pods));
            let quiet = output::nanos(QUIET_NANOS);
            let from = format!("a tenth of the node more, {quiet} after the last wait");
            let next = hold::raised(limit, bounds).unwrap_or(bounds.cpus);
            sum.add(TIER, ("", "after quiet"), Value::of(next), from);
        }
    }
    let used = measured.used.unwrap_or(bounds.cpus);
    let of = match measured.used {
        Some(used) => format!("half of the {}m that it uses", used.0),
        None => "half of what it uses: at most".to_owned(),
    };
    match hold::lowered(measured.limit, used, bounds) {
        Some(next) => sum.add(TIER, ("", "after a wait"), Value::of(next), of),
        None => {
            let now = measured.limit.unwrap_or(bounds.cpus);
            let from = "stays: best effort uses no more than its floor, or is held as far";
            sum.add(TIER, ("", "after a wait"), Value::of(now), from);
        }
    }
    let from = "minPercent of the node";
    sum.add(TIER, (">=", "floor"), Value::of(bounds.floor), from);
    for pod in pods.iter().filter(|pod| is_protected(pod)) {
        let annotated = objective(pod).unwrap_or_default();
        let (nanos, from) = match annotated {
            Some(own) => (clock::nanos(own), WAIT_OBJECTIVE_ANNOTATION),
            None => (wait.objective_nanos, "cpuWaitStrategy.objective"),
        };
        sum.add(&name(pod), ("<=", "wait"), Value::NanoSeconds(nanos), from);
    }
    sum.1
}

fn waited(wait: &Wait, pods: &[Pod]) -> String {
    let measured = &wait.measured;
    let of = |pod: &&Pod| Some(&pod.uid) == measured.pod.as_ref();
    match (pods.iter().find(of), measured.nanos) {
        (Some(pod), Some(nanos)) => {
            format!("{} waited {} for a CPU", name(pod), output::nanos(nanos))
        }
        _ => "a protected pod waits for a CPU".to_owned(),
    }
}
