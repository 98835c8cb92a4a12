//! What an agent holds of the machine, and that this does not grow.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::Context;
use crate::harness::resident;

/// Resident memory may differ by this between the first and the last looks.
const FLAT: f64 = 2.0 * (1 << 20) as f64;
/// Descriptors may differ by this: connections that are being made or have just been closed.
const SPARE_DESCRIPTORS: f64 = 4.0;

/// A shorter time says nothing about hours.
const SHORTEST: Duration = Duration::from_secs(11 * 60);

/// One look at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    at: Instant,
    rss: f64,
    descriptors: f64,
}

impl Footprint {
    /// Of the agent with this process id.
    pub(super) fn of(agent: u32) -> Result<Self> {
        let descriptors = fs::read_dir(format!("/proc/{agent}/fd"));
        let descriptors = descriptors.context("list the agent's descriptors")?.count();
        Ok(Self {
            at: Instant::now(),
            rss: resident(agent)? as f64,
            descriptors: descriptors as f64,
        })
    }

    /// No more descriptors are open than at the look `before`.
    pub(super) fn ensure_closed(&self, before: &Self) -> Result<()> {
        let more = self.descriptors - before.descriptors;
        ensure!(
            more <= SPARE_DESCRIPTORS,
            "{more} descriptors are open that were not"
        );
        Ok(())
    }
}

/// Neither memory nor descriptors grow from the first to the last quarter; the first look is at an agent that warms up.
pub(super) fn ensure_flat(context: &Context, name: &str, prints: &[Footprint]) -> Result<()> {
    let warm = prints.get(1..).unwrap_or_default();
    ensure_flat_memory(context, name, warm)?;
    let Some(descriptors) = change(warm, |print| print.descriptors) else {
        return Ok(());
    };
    context.figure(format!("{name}_descriptors_change"), descriptors, "");
    ensure!(
        descriptors <= SPARE_DESCRIPTORS || !is_long(warm),
        "{name}: descriptors leak: {prints:?}"
    );
    Ok(())
}

/// Memory does not grow from the first to the last quarter.
pub(super) fn ensure_flat_memory(
    context: &Context,
    name: &str,
    prints: &[Footprint],
) -> Result<()> {
    let Some(rss) = change(prints, |print| print.rss) else {
        return Ok(());
    };
    let mib = rss / f64::from(1 << 20);
    context.figure(format!("{name}_rss_change"), mib, "MiB");
    ensure!(
        rss <= FLAT || !is_long(prints),
        "{name}: resident memory grew by {rss} bytes: {prints:?}"
    );
    Ok(())
}

/// From the median of the first quarter to that of the last; `None` of fewer than four.
fn change(prints: &[Footprint], value: fn(&Footprint) -> f64) -> Option<f64> {
    let quarter = prints.len() / 4;
    let median = |of: &[Footprint]| {
        let mut values: Vec<f64> = of.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    };
    let (first, last) = (&prints[..quarter], &prints[prints.len() - quarter..]);
    Some(median(last)? - median(first)?)
}

fn is_long(prints: &[Footprint]) -> bool {
    let ends = prints.first().zip(prints.last());
    ends.is_some_and(|(first, last)| last.at.duration_since(first.at) >= SHORTEST)
}
