//! What best effort may use of the CPU, how far protected pods may exceed their limits, and why.

use podwarden_policy::{
    MilliCpu, Pod,
    colocation::{
        burst, class,
        strategies::{Burst, Strategies},
    },
    convert::{DEFAULT_PERIOD_US, quota_to_milli},
    plan::{Ownership, Snapshot},
};
use serde::Serialize;

use crate::cli::output;

mod held;

const SUPPRESS: &str = "cpuSuppressThresholdPercent";
const WAIT: &str = "cpuWaitStrategy";
const BURST: &str = "cpuBurstStrategy";
/// The tier that the first two hold.
const TIER: &str = "besteffort";

/// One figure of a strategy.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// The key below `colocation` that switches it on.
    pub(crate) strategy: &'static str,
    /// A tier, NAMESPACE/POD or NAMESPACE/POD/CONTAINER.
    pub(crate) of: String,
    /// `-` where it is subtracted, `<=` for an upper bound, `>=` for a lower one, `=` for the result.
    pub(crate) sign: &'static str,
    /// What the figure is.
    pub(crate) part: &'static str,
    #[serde(flatten, skip_serializing_if = "Value::is_none")]
    pub(crate) value: Value,
    /// Where it comes from.
    pub(crate) from: String,
}

/// A figure, or none.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Value {
    /// Thousandths of a CPU; below zero where others use more than the threshold.
    CpuMilli(i64),
    /// Nanoseconds.
    NanoSeconds(u64),
    /// A list of CPUs, as the kernel writes it.
    Cpus(String),
    /// No limit, or not known.
    None,
}

impl Value {
    fn of(cpu: MilliCpu) -> Self {
        Self::CpuMilli(i64::try_from(cpu.0).unwrap_or(i64::MAX))
    }

    const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    fn text(&self) -> String {
        match self {
            Self::CpuMilli(milli) => format!("{milli}m"),
            Self::NanoSeconds(nanos) => output::nanos(*nanos),
            Self::Cpus(cpus) => cpus.clone(),
            Self::None => "-".to_owned(),
        }
    }
}

/// Rows of one strategy.
struct Sum(&'static str, Vec<Row>);

impl Sum {
    fn add(
        &mut self,
        of: &str,
        (sign, part): (&'static str, &'static str),
        value: Value,
        from: impl Into<String>,
    ) {
        self.1.push(Row {
            strategy: self.0,
            of: of.to_owned(),
            sign,
            part,
            value,
            from: from.into(),
        });
    }
}

/// The rows of the strategies that are on.
pub(crate) fn rows(strategies: &Strategies, snapshot: &Snapshot) -> Vec<Row> {
    let is_held = snapshot.ownership == Ownership::Own;
    let not_held = |key| {
        let mut sum = Sum(key, Vec::new());
        let why = "a kubelet owns the tier's cgroup (ownership: assist)";
        sum.add(TIER, ("", "not held"), Value::None, why);
        sum.1
    };
    let mut rows = Vec::new();
    if let Some(suppress) = &strategies.suppress {
        rows.extend(match is_held {
            true => held::suppress(suppress),
            false => not_held(SUPPRESS),
        });
    }
    if let Some(wait) = &strategies.wait {
        rows.extend(match is_held {
            true => held::wait(wait, &snapshot.pods),
            false => not_held(WAIT),
        });
    }
    if let Some(burst) = &strategies.burst {
        rows.extend(of_burst(burst, &snapshot.pods));
    }
    rows
}

fn of_burst(burst: &Burst, pods: &[Pod]) -> Vec<Row> {
    let mut sum = Sum(BURST, Vec::new());
    for pod in pods {
        let found = class::classify(pod);
        if !found.class.is_latency_sensitive() {
            continue;
        }
        if let Some(why) = found.contradictions.first() {
            let from = format!("exceeds no CPU limit: {why}");
            sum.add(&name(pod), ("", "burst"), Value::None, from);
            continue;
        }
        for container in &pod.containers {
            if let Some(limit) = container.resources.cpu_limit {
                let of = format!("{}/{}", name(pod), output::printable(&container.name));
                of_container(burst, limit, &of, &mut sum);
            }
        }
    }
    sum.1
}

fn of_container(burst: &Burst, limit: MilliCpu, of: &str, sum: &mut Sum) {
    let Burst { config, state } = burst;
    let Some(base) = burst::base_quota(limit) else {
        return;
    };
    let milli = |quota_us| Value::of(quota_to_milli(Some(quota_us), DEFAULT_PERIOD_US));
    let from = "its quota while it is not throttled";
    sum.add(of, ("", "limit"), milli(base), from);
    let container = burst::Container {
        limit,
        quota_us: base,
        throttled: Some(true),
        allowed: true,
    };
    let next = burst::next_quota(&container, config, *state).unwrap_or(base);
    let state = match state {
        burst::NodeState::Idle => "the node is idle: a fifth more",
        burst::NodeState::Cooling => "the node cools down: no more",
        burst::NodeState::Overload => "the node is overloaded: no more",
        burst::NodeState::Unknown => "how busy the node is, is not known: no more",
    };
    if config.policy.raises_quota() {
        sum.add(of, ("", "throttled"), milli(next), state);
        let most = burst::ceiling(base, config);
        let from = format!("cfsQuotaBurstPercent {}", config.quota_percent);
        sum.add(of, ("<=", "quota"), milli(most), from);
    }
    if config.policy.bursts() {
        let carried = burst::kernel_burst_us(limit, config, Some(base));
        let from = format!(
            "carried over from idle periods: cpuBurstPercent {}, at most the quota",
            config.burst_percent
        );
        sum.add(of, ("+", "burst"), milli(carried), from);
    }
}

fn is_protected(pod: &Pod) -> bool {
    let found = class::classify(pod);
    found.class.is_latency_sensitive() && found.contradictions.is_empty()
}

fn name(pod: &Pod) -> String {
    output::printable(&format!("{}/{}", pod.namespace, pod.name))
}

/// For people, below a title; nothing where all strategies are off.
pub(crate) fn section(rows: &[Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut last = ("", "");
    let rows = rows.iter().map(|row| {
        let first = last.0 != row.strategy;
        let other = first || last.1 != row.of;
        last = (row.strategy, &row.of);
        [
            if first { row.strategy } else { "" }.to_owned(),
            if other { row.of.as_str() } else { "" }.to_owned(),
            row.sign.to_owned(),
            row.part.to_owned(),
            row.value.text(),
            row.from.clone(),
        ]
    });
    let titles = ["STRATEGY", "OF", "", "PART", "VALUE", "FROM"];
    format!("\nCPU strategies\n{}", output::table(titles, rows))
}

#[cfg(test)]
mod tests;
