//! The API server is away for a while, in one way after another, and pods have to be evicted meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::Eviction;

use super::eviction::small;
use super::eviction_status::{self, A_WHILE};
use super::{Case, Context, portable};
use crate::apiserver::{Outage, Write};
use crate::harness::{NODE, PodSpec, eventually, monotonic, sleep};

pub(super) const CASES: &[Case] = &[portable("outage_evictions", outage_evictions)];

/// How long it is away; with what takes minutes, in truth.
const SHORT: Duration = Duration::from_secs(8);
const LONG: Duration = Duration::from_secs(600);

/// The ways change so often, each in its turn.
const TURNS: u32 = 8;

/// Pauses after so long an outage may be a minute, and what is hurried then takes up to a second.
const PATIENCE: Duration = Duration::from_secs(90);

/// Evictions before, early and late in an outage take as long; both statuses are delivered after it, once.
fn outage_evictions(context: &Context) -> Result<()> {
    let specs = ["before", "early", "late"].map(PodSpec::best_effort);
    let mut world = eviction_status::world(context, small("enforce"), &specs.each_ref())?;
    let [before, early, late] = &specs;
    note(
        context,
        "before",
        &eviction_status::evict(context, &world, before)?,
    )?;
    eviction_status::expect_delivered(&world, &[before])?;

    let whole = match context.include_slow() {
        true => LONG,
        false => SHORT,
    };
    let since = monotonic();
    let ways = Outage::ALL.into_iter().cycle().take(TURNS as usize);
    for (turn, way) in (1..=TURNS).zip(ways) {
        let end = since + u64::try_from((whole * turn / TURNS).as_nanos())?;
        world.server.go_away(way)?;
        if turn == 1 {
            // What was on its way has been cut off; from now on nothing is written.
            world.server.take_written();
        }
        // Both in a turn that leaves requests without an answer.
        let (name, spec) = match turn {
            2 => ("early", early),
            6 => ("late", late),
            _ => {
                sleep(Duration::from_nanos(end.saturating_sub(monotonic())))?;
                continue;
            }
        };
        let eviction = eviction_status::evict(context, &world, spec)?;
        note(context, name, &eviction)?;
        ensure!(
            eviction.timeline.crossing_nanos > since,
            "{name} was evicted before the outage"
        );
        let source = world.node.source("apiserver")?;
        ensure!(source.reported, "{source:?}");
        sleep(Duration::from_nanos(end.saturating_sub(monotonic())))?;
    }
    let written = world.server.take_written();
    ensure!(written.is_empty(), "written during the outage: {written:?}");
    context.figure(
        "requests_turned_away",
        world.server.turned_away() as f64,
        "",
    );
    let kept = eviction_status::waiting(&world)?.len();
    ensure!(kept >= 2, "{kept} statuses wait");

    let back = monotonic();
    world.server.come_back()?;
    eventually(PATIENCE, || {
        eviction_status::are_delivered(&world, &specs.each_ref())
    })?;
    context.figure(
        "marked_after_the_return",
        (monotonic() - back) as f64 / 1e9,
        "s",
    );
    sleep(A_WHILE)?;
    ensure_once(&world.server.take_written(), &[early, late])?;
    eviction_status::finish(world, &specs.each_ref())
}

/// Notes how long an eviction took.
fn note(context: &Context, name: &str, eviction: &Eviction) -> Result<()> {
    let timeline = &eviction.timeline;
    let killed = timeline.killed_nanos.context("not killed")?;
    let took = killed.saturating_sub(timeline.crossing_nanos);
    context.figure(format!("kill_{name}"), took as f64 / 1e6, "ms");
    Ok(())
}

/// Each pod was told of and then marked, once; of others nothing was written but Events about the node.
fn ensure_once(written: &[Write], specs: &[&PodSpec]) -> Result<()> {
    let of_pods = written
        .iter()
        .filter(|write| !(write.resource == "events" && write.about == NODE));
    let mut own = 0;
    for spec in specs {
        let of_pod: Vec<_> = of_pods.clone().filter(|w| w.about == spec.uid).collect();
        own += of_pod.len();
        let steps: Vec<_> = of_pod.into_iter().map(Write::step).collect();
        ensure!(steps == Write::EVICTED, "{}: {steps:?}", spec.name);
    }
    ensure!(of_pods.count() == own, "also written: {written:?}");
    Ok(())
}
