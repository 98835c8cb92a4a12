//! `/metrics`, in OpenMetrics text.
//!
//! Rendered from the figures when it is asked for, so that it says what `/v1/pods` says, a pod that
//! is gone has no series, and nothing is kept up to date for nobody. `prometheus-client` writes
//! names, units, escapes and numbers; counters of seconds stay floating point with it.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, text},
    registry::Registry,
};

mod catalogue;
mod family;

use self::{
    catalogue::METRICS,
    family::{Family, NANOS},
};
use super::{Shared, api::ErrorResponse, tally::Counts};
use crate::{
    api::{
        published::Figures,
        types::{
            EventLogStats, EvictionStatusStats, ForeignWriteStats, MemoryStats, NodeStats,
            PodStats, SourceStats,
        },
    },
    hierarchy::act::{Operation, Outcome, Tally},
};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(State(shared): State<Shared>) -> Result<Response, ErrorResponse> {
    let scrape = Scrape {
        figures: shared.published.figures(),
        done: shared.published.done(),
        counts: shared.tally.counts(),
        up: shared.published.trouble().is_none(),
        event_log: shared.published.event_log(),
        eviction_status: shared.published.eviction_status(),
        sources: shared.published.sources(),
    };
    let text = render(scrape)
        .map_err(|e| ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}

fn render(scrape: Scrape) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// One scrape.
#[derive(Debug)]
struct Scrape {
    figures: Arc<Figures>,
    done: Tally,
    counts: Counts,
    /// The reactor is at work.
    up: bool,
    event_log: Option<EventLogStats>,
    eviction_status: Option<EvictionStatusStats>,
    sources: Arc<Vec<SourceStats>>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.node(&mut encoder)?;
        self.sources(&mut encoder)?;
        self.operations(&mut encoder)?;
        self.tiers(&mut encoder)?;
        self.pods(&mut encoder)?;
        self.events(&mut encoder)?;
        self.event_log(&mut encoder)?;
        self.eviction_status(&mut encoder)
    }
}

type Encoded = Result<(), std::fmt::Error>;

impl Scrape {
    fn node(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let NodeStats {
            mode,
            profile,
            cgroup_version,
            cgroup_driver,
            degradations,
            allocatable_memory_bytes,
            kernel_drops: drops,
            foreign_writes,
            runtime,
            ..
        } = &self.figures.node;
        Family::open(encoder, &METRICS.info)?.info(&[
            ("version", env!("CARGO_PKG_VERSION")),
            ("mode", mode),
            ("profile", profile),
            ("cgroup_version", cgroup_version),
            ("cgroup_driver", cgroup_driver),
        ])?;
        Family::open(encoder, &METRICS.reactor_up)?.gauge(&[], u64::from(self.up))?;
        if let Some(runtime) = runtime {
            let up = runtime.name.is_some() && runtime.problem.is_none();
            Family::open(encoder, &METRICS.runtime_up)?.gauge(&[], u64::from(up))?;
        }
        let failing = self.event_log.iter().filter(|log| log.failing.is_some());
        let degradations = degradations.len() + failing.count();
        Family::open(encoder, &METRICS.degradations)?.gauge(&[], degradations as u64)?;
        Family::open(encoder, &METRICS.allocatable)?.gauge(&[], *allocatable_memory_bytes)?;
        let mut family = Family::open(encoder, &METRICS.drops)?;
        for (kind, count) in [
            ("decision", drops.decisions),
            ("telemetry", drops.telemetry),
            ("account", drops.accounts),
            ("stall", drops.stalls),
        ] {
            family.counter(&[("kind", kind)], count)?;
        }
        foreign_writes_of(encoder, foreign_writes)
    }

    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        if self.sources.is_empty() {
            return Ok(());
        }
        let mut family = Family::open(encoder, &METRICS.source_up)?;
        for source in self.sources.iter() {
            let up = source.reported && source.problem.is_none();
            family.gauge(&[("source", source.name.as_str())], u64::from(up))?;
        }
        let mut family = Family::open(encoder, &METRICS.source_pods)?;
        for source in self.sources.iter() {
            family.gauge(&[("source", source.name.as_str())], source.pods)?;
        }
        let mut family = Family::open(encoder, &METRICS.source_updates)?;
        for source in self.sources.iter() {
            family.counter(&[("source", source.name.as_str())], source.updates)?;
        }
        Ok(())
    }

    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut family = Family::open(encoder, &METRICS.operations)?;
        for operation in Operation::ALL {
            for outcome in Outcome::ALL {
                let labels = [
                    ("operation", operation.as_str()),
                    ("result", outcome.as_str()),
                ];
                family.counter(&labels, self.done.of(operation).of(outcome))?;
            }
        }
        let mut family = Family::open(encoder, &METRICS.operation_duration)?;
        for operation in Operation::ALL {
            let durations = &self.done.of(operation).durations;
            let sum = durations.sum_nanos as f64 / NANOS;
            let labels = [("operation", operation.as_str())];
            family.histogram(&labels, sum, &log2_micros(&durations.buckets))?;
        }
        let corrected = self.done.writes().corrected;
        Family::open(encoder, &METRICS.corrections)?.counter(&[], corrected)?;
        Family::open(encoder, &METRICS.reconciles)?.counter(&[], self.done.reconciles())?;
        if let Some(last) = self.done.last() {
            let seconds = last.duration_nano_seconds as f64 / NANOS;
            Family::open(encoder, &METRICS.reconcile_duration)?.real(seconds)?;
        }
        Ok(())
    }

    fn tiers(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let tiers = &self.figures.node.tiers;
        let mut family = Family::open(encoder, &METRICS.tier_cpu)?;
        for tier in tiers {
            family.seconds(&[("tier", &tier.name)], tier.cpu.usage_core_nano_seconds)?;
        }
        let mut gauges = |metric, of: &dyn Fn(&crate::api::types::TierStats) -> Option<u64>| {
            let mut family = Family::open(encoder, metric)?;
            for tier in tiers {
                if let Some(value) = of(tier) {
                    family.gauge(&[("tier", &tier.name)], value)?;
                }
            }
            Ok(())
        };
        gauges(&METRICS.tier_memory, &|t| {
            memory(&t.memory, |m| m.usage_bytes)
        })?;
        gauges(&METRICS.tier_limit, &|t| t.memory.as_ref()?.limit_bytes)?;
        gauges(&METRICS.tier_level, &|t| t.armed_level_bytes)?;
        gauges(&METRICS.tier_target, &|t| {
            t.convergence.as_ref()?.target_bytes
        })?;
        gauges(&METRICS.tier_gap, &|t| {
            Some(t.convergence.as_ref()?.gap_bytes)
        })?;
        let converging = || {
            let tiers = tiers.iter();
            tiers.filter_map(|tier| Some((tier.name.as_str(), tier.convergence.as_ref()?)))
        };
        let mut family = Family::open(encoder, &METRICS.tier_steps)?;
        for (tier, convergence) in converging() {
            let steps = &convergence.steps;
            for (file, count) in [
                ("max", steps.max),
                ("high", steps.high),
                ("reclaim", steps.reclaim),
            ] {
                family.counter(&[("tier", tier), ("file", file)], count)?;
            }
        }
        let mut family = Family::open(encoder, &METRICS.tier_reclaimed)?;
        for (tier, convergence) in converging() {
            family.counter(&[("tier", tier)], convergence.reclaimed_bytes)?;
        }
        Ok(())
    }

    fn pods(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        type Figure = fn(&MemoryStats) -> Option<u64>;
        self.pod_cpu(encoder)?;
        let memory_of: [(_, Figure); 4] = [
            (&METRICS.pod_memory, |m| Some(m.usage_bytes)),
            (&METRICS.pod_working_set, |m| Some(m.working_set_bytes)),
            (&METRICS.pod_rss, |m| Some(m.rss_bytes)),
            (&METRICS.pod_limit, |m| m.limit_bytes),
        ];
        for (metric, of) in memory_of {
            let mut family = Family::open(encoder, metric)?;
            for pod in &self.figures.pods {
                if let Some(value) = pod.memory.as_ref().and_then(of) {
                    family.gauge(&labels(pod), value)?;
                }
            }
        }
        self.pod_stalls(encoder)?;
        self.pod_exits(encoder)
    }

    fn pod_cpu(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut family = Family::open(encoder, &METRICS.pod_cpu)?;
        for pod in &self.figures.pods {
            family.seconds(&labels(pod), pod.cpu.usage_core_nano_seconds)?;
        }
        let mut family = Family::open(encoder, &METRICS.pod_switches)?;
        for pod in &self.figures.pods {
            family.counter(&labels(pod), pod.cpu.context_switches)?;
        }
        let mut family = Family::open(encoder, &METRICS.pod_wait)?;
        for pod in &self.figures.pods {
            let sum = pod.cpu.run_queue_wait_nano_seconds as f64 / NANOS;
            family.histogram(
                &labels(pod),
                sum,
                &log2_micros(&pod.cpu.run_queue_wait_histogram),
            )?;
        }
        Ok(())
    }

    fn pod_stalls(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut family = Family::open(encoder, &METRICS.pod_stall)?;
        for pod in &self.figures.pods {
            for (kind, nanos) in [
                ("direct_reclaim", pod.stall.direct_reclaim_nano_seconds),
                ("memcg_reclaim", pod.stall.memcg_reclaim_nano_seconds),
            ] {
                family.seconds(&labelled(pod, "kind", kind), nanos)?;
            }
        }
        Ok(())
    }

    fn pod_exits(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut family = Family::open(encoder, &METRICS.pod_exits)?;
        for pod in &self.figures.pods {
            let exits = &pod.exits;
            let succeeded = exits.total.saturating_sub(exits.failed + exits.signaled);
            for (how, count) in [
                ("succeeded", succeeded),
                ("failed", exits.failed),
                ("signaled", exits.signaled),
            ] {
                family.counter(&labelled(pod, "outcome", how), count)?;
            }
        }
        let mut family = Family::open(encoder, &METRICS.pod_oom_kills)?;
        for pod in &self.figures.pods {
            family.counter(&labels(pod), pod.exits.oom_killed)?;
        }
        Ok(())
    }

    fn events(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let mut family = Family::open(encoder, &METRICS.evictions)?;
        for (key, count) in &self.counts.evictions {
            let dry_run = if key.dry_run { "true" } else { "false" };
            family.counter(
                &[
                    ("qos_class", &key.qos_class),
                    ("scope", key.scope.as_str()),
                    ("dry_run", dry_run),
                ],
                *count,
            )?;
        }
        let mut family = Family::open(encoder, &METRICS.crossings)?;
        for ((scope, detected_by), count) in &self.counts.crossings {
            family.counter(
                &[
                    ("scope", scope.as_str()),
                    ("detected_by", detected_by.as_str()),
                ],
                *count,
            )?;
        }
        Ok(())
    }
}

fn foreign_writes_of(encoder: &mut DescriptorEncoder<'_>, drift: &ForeignWriteStats) -> Encoded {
    let mut family = Family::open(encoder, &METRICS.drift)?;
    for count in &drift.properties {
        for (outcome, value) in [
            ("corrected", count.corrected),
            ("refused", count.refused),
            ("contested", count.contests),
        ] {
            let labels = [("property", count.property.as_str()), ("outcome", outcome)];
            family.counter(&labels, value)?;
        }
    }
    Family::open(encoder, &METRICS.drift_contested)?.gauge(&[], drift.contested_files)?;
    Family::open(encoder, &METRICS.drift_watched)?.gauge(&[], drift.watched_cgroups)
}

impl Scrape {
    fn event_log(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let Some(log) = &self.event_log else {
            return Ok(());
        };
        let mut family = Family::open(encoder, &METRICS.log_lines)?;
        family.counter(&[("result", "written")], log.written)?;
        family.counter(&[("result", "dropped")], log.dropped)?;
        Family::open(encoder, &METRICS.log_size)?.gauge(&[], log.size_bytes)
    }

    fn eviction_status(&self, encoder: &mut DescriptorEncoder<'_>) -> Encoded {
        let Some(marks) = &self.eviction_status else {
            return Ok(());
        };
        Family::open(encoder, &METRICS.marks_waiting)?.gauge(&[], marks.waiting)?;
        let mut family = Family::open(encoder, &METRICS.marks)?;
        family.counter(&[("result", "delivered")], marks.delivered)?;
        family.counter(&[("result", "given_up")], marks.given_up)
    }
}

fn memory(memory: &Option<MemoryStats>, of: impl Fn(&MemoryStats) -> u64) -> Option<u64> {
    memory.as_ref().map(of)
}

fn labels(pod: &PodStats) -> [(&str, &str); 4] {
    [
        ("namespace", &pod.pod_ref.namespace),
        ("pod", &pod.pod_ref.name),
        ("uid", &pod.pod_ref.uid),
        ("qos_class", &pod.qos_class),
    ]
}

fn labelled<'a>(pod: &'a PodStats, name: &'a str, value: &'a str) -> [(&'a str, &'a str); 5] {
    let [a, b, c, d] = labels(pod);
    [a, b, c, d, (name, value)]
}

/// Upper bounds in seconds with the count of each bucket alone: bucket `i` ends at `2^(i+1)`
/// microseconds, the last nowhere.
fn log2_micros(counts: &[u64]) -> Vec<(f64, u64)> {
    let last = counts.len().saturating_sub(1);
    let bound = |i: usize| match i {
        i if i == last => f64::INFINITY,
        i => 2f64.powi(i as i32 + 1) / 1e6,
    };
    counts
        .iter()
        .enumerate()
        .map(|(i, &n)| (bound(i), n))
        .collect()
}
