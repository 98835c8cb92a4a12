//! What an agent holds of the machine, and that this does not grow.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::Context;
use crate::harness::resident;

/// Resident memory may differ by this between the first and the last looks.
const FLAT: f64 = 2.0 * (1 << 20) as f64;
/// Descriptors may differ by this: connections that are being made or have just been closed.
const SPARE_DESCRIPTORS: f64 = 4.0;

/// One look at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Footprint {
    rss: f64,
    descriptors: f64,
}

impl Footprint {
    /// Of the agent with this process id.
    pub(super) fn of(agent: u32) -> Result<Self> {
        let descriptors = fs::read_dir(format!("/proc/{agent}/fd"));
        let descriptors = descriptors.context("list the agent's descriptors")?.count();
        Ok(Self {
            rss: resident(agent)? as f64,
            descriptors: descriptors as f64,
        })
    }
}

/// Compares the medians of the first and the last quarter; the first look is at an agent that warms up.
pub(super) fn ensure_flat(context: &Context, name: &str, prints: &[Footprint]) -> Result<()> {
    let warm = prints.get(1..).unwrap_or_default();
    let quarter = warm.len() / 4;
    if quarter == 0 {
        return Ok(());
    }
    let median = |of: &[Footprint], value: fn(&Footprint) -> f64| {
        let mut values: Vec<f64> = of.iter().map(value).collect();
        values.sort_unstable_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (first, last) = (&warm[..quarter], &warm[warm.len() - quarter..]);
    let change = |value| median(last, value) - median(first, value);
    let (rss, descriptors) = (change(|print| print.rss), change(|print| print.descriptors));
    context.figure(
        format!("{name}_rss_change"),
        rss / f64::from(1 << 20),
        "MiB",
    );
    context.figure(format!("{name}_descriptors_change"), descriptors, "");
    // A few minutes say nothing about hours.
    if quarter >= 3 {
        ensure!(
            rss <= FLAT,
            "{name}: resident memory grew by {rss} bytes: {prints:?}"
        );
        ensure!(
            descriptors <= SPARE_DESCRIPTORS,
            "{name}: descriptors leak: {prints:?}"
        );
    }
    Ok(())
}
