//! `/metrics`, in Prometheus text.
//!
//! What the agent counts and times itself comes from the process's recorder. The series of pods and tiers are
//! written from the figures: they agree with `/v1/pods`, and a pod that is gone has no series. Those of pods are
//! most of the text; they are compressed as they are written, once for a sampling pass, whatever the number of scrapes
//! that take them so.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};

mod encoding;
mod family;
mod parts;
mod pods;
mod process;
mod recorder;
mod text;

pub use self::recorder::recorder;
use self::{
    family::{Family, Seconds, counters, gauges, labels},
    parts::Parts,
    text::Text,
};
use super::{Shared, api::ErrorResponse};
use crate::api::{
    published::{Published, compressed},
    types::{BestEffortCpuStats, DropStats, NodeStats, ReclaimedStats, SourceStats, TierStats},
};

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) async fn metrics(State(shared): State<Shared>, headers: HeaderMap) -> Response {
    let Shared { published, .. } = shared;
    let figures = published.figures();
    let detail = published.pod_series();
    let plain = [
        (header::CONTENT_TYPE, CONTENT_TYPE),
        (header::VARY, "accept-encoding"),
    ];
    if !encoding::takes_gzip(&headers) {
        let mut text = Text::default();
        node_and_agent(&mut text, &figures.node, &published);
        pods::write(&mut text, &figures, detail);
        return (plain, text.whole()).into_response();
    }
    // A thread of its own: other answers do not wait for it.
    let compressed = tokio::task::spawn_blocking(move || {
        let mut first = Text::compressed();
        node_and_agent(&mut first, &figures.node, &published);
        let first = first.finish(false).map_err(|e| e.to_string())?;
        let last = figures.series(|figures| {
            let mut text = Text::compressed();
            pods::write(&mut text, figures, detail);
            text.finish(true)
        });
        let last = last.map_err(ToString::to_string)?;
        Ok::<_, String>(compressed::gzip(&first, last))
    });
    match compressed.await.map_err(|e| e.to_string()).flatten() {
        Ok(parts) => {
            let encoding = [(header::CONTENT_ENCODING, "gzip")];
            (plain, encoding, Parts::body(parts)).into_response()
        }
        Err(why) => ErrorResponse::new(StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

/// All but the series of pods.
fn node_and_agent(text: &mut Text, figures: &NodeStats, published: &Published) {
    text.push(&recorder().render());
    node(text, figures, published);
    sources(text, &published.sources());
    tiers(text, &figures.tiers);
    config(text, published);
    process::write(text, &figures.start_time);
}

#[rustfmt::skip]
fn node(text: &mut Text, node: &NodeStats, published: &Published) {
    let none = labels([]);
    Family::gauge(text, "podwarden_info",
        "Always 1; the labels say which version runs, in which mode and profile, on which cgroups")
        .add(&labels([
            ("version", env!("CARGO_PKG_VERSION")),
            ("mode", &node.mode),
            ("profile", &node.profile),
            ("cgroup_version", &node.cgroup_version),
            ("cgroup_driver", &node.cgroup_driver),
        ]), 1_u64);
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
    best_effort_cpu(text, node.best_effort_cpu.as_ref());
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
fn config(text: &mut Text, published: &Published) {
    let Some(state) = published.config_state() else {
        return;
    };
    Family::gauge(text, "podwarden_config_info",
        "Always 1; the label is the start of the SHA-256 of the configuration file that is wholly in force")
        .add(&labels([("hash", &state.hash)]), 1_u64);
    Family::gauge(text, "podwarden_config_last_reload_successful",
        "1 while the configuration file as it is now can be used, 0 while an older one stays in force")
        .add(&labels([]), u64::from(state.is_valid));
    Family::gauge(text, "podwarden_config_pending_keys",
        "Changed keys of the configuration file that take effect at the agent's next start")
        .add(&labels([]), state.pending.len());
}

#[rustfmt::skip]
fn reclaimed(text: &mut Text, reclaimed: Option<&ReclaimedStats>) {
    let Some(reclaimed) = reclaimed else {
        return;
    };
    let offers = [("batch", &reclaimed.batch), ("mid", &reclaimed.mid)]
        .map(|(band, offer)| (labels([("band", band)]), offer));
    gauges(text, &offers, &[
        ("podwarden_reclaimed_cpu_cores",
            "CPU that the node offers to pods of a band; no series where that is not computed",
            |offer| Some(offer.cpu_milli as f64 / 1e3)),
    ]);
    gauges(text, &offers, &[
        ("podwarden_reclaimed_memory_bytes",
            "Memory that the node offers to pods of a band; no series where that is not computed",
            |offer| Some(offer.memory_bytes)),
    ]);
}

#[rustfmt::skip]
fn best_effort_cpu(text: &mut Text, stats: Option<&BestEffortCpuStats>) {
    let Some(stats) = stats else {
        return;
    };
    let mut family = Family::gauge(text, "podwarden_best_effort_cpu_limit_cores",
        "CPU that best-effort pods may use by a strategy (wait, suppress); no series where it does not hold them back");
    for (strategy, limit) in [("wait", stats.wait_limit_milli), ("suppress", stats.suppress_limit_milli)] {
        if let Some(milli) = limit {
            family.add(&labels([("strategy", strategy)]), milli as f64 / 1e3);
        }
    }
    Family::counter(text, "podwarden_long_cpu_waits_total",
        "Waits of protected pods for a CPU beyond their objective, at most one of an account in each window")
        .add(&labels([]), stats.long_waits);
}

fn drops(text: &mut Text, drops: &DropStats) {
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
fn sources(text: &mut Text, sources: &[SourceStats]) {
    if sources.is_empty() {
        return;
    }
    let sources: Vec<_> = sources.iter().map(|source| (labels([("source", &source.name)]), source)).collect();
    gauges(text, &sources, &[
        ("podwarden_pod_source_up", "1 while a source of pods has sent what it has and is followed",
            |source| Some(u64::from(source.reported && source.problem.is_none()))),
        ("podwarden_pod_source_pods", "Pods that a source has", |source| Some(source.pods)),
    ]);
    counters(text, &sources, &[
        ("podwarden_pod_source_updates_total", "Changes of pods that a source sent", |source| Some(source.updates)),
    ]);
}

#[rustfmt::skip]
fn tiers(text: &mut Text, tiers: &[TierStats]) {
    let tiers: Vec<_> = tiers.iter().map(|tier| (labels([("tier", &tier.name)]), tier)).collect();
    counters(text, &tiers, &[
        ("podwarden_tier_cpu_usage_seconds_total", "CPU time of everything below the tier's cgroup",
            |tier| Some(Seconds(tier.cpu.usage_core_nano_seconds))),
    ]);
    gauges(text, &tiers, &[
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
    ]);
    let mut family = Family::counter(text, "podwarden_tier_convergence_steps_total",
        "Steps towards the tier's target, by the file that was written: max, high, reclaim");
    for (labels, tier) in &tiers {
        let Some(steps) = tier.convergence.as_ref().map(|convergence| &convergence.steps) else {
            continue;
        };
        for (file, count) in [("max", steps.max), ("high", steps.high), ("reclaim", steps.reclaim)] {
            family.add_with(labels, ("file", file), count);
        }
    }
    counters(text, &tiers, &[
        ("podwarden_tier_reclaimed_bytes_total", "Page cache that was dropped to bring the tier to its target",
            |tier| Some(tier.convergence.as_ref()?.reclaimed_bytes)),
    ]);
}

/// Upper bounds of buckets in seconds: bucket `i` ends at `2^(i+1)` microseconds.
fn log2_bounds() -> impl Iterator<Item = f64> {
    (1..).map(|exponent| 2f64.powi(exponent) / 1e6)
}
