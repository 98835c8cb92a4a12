//! The table and the file.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::scene::Measured;
use super::{Keeper, Setting, name};
use crate::harness::quantile;

/// One kind of run, with the figures of all its runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) setting: Setting,
    /// From when each piece of work was due until it was done, microseconds, ascending.
    late_us: Vec<u64>,
    /// CPU time of the best-effort pod, seconds.
    best_effort: f64,
    /// CPU time that was free for it, seconds.
    free: f64,
}

impl Row {
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            late_us: Vec::new(),
            best_effort: 0.0,
            free: 0.0,
        }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.late_us.extend(measured.late_us);
        self.late_us.sort_unstable();
        self.best_effort += measured.best_effort;
        self.free += measured.free;
    }

    /// The value that this many thousandths of all do not exceed, milliseconds.
    fn quantile(&self, thousandths: usize) -> f64 {
        quantile(&self.late_us, thousandths).unwrap_or_default() as f64 / 1000.0
    }

    /// What the best-effort pod used of the free CPU, percent.
    fn used(&self) -> Option<f64> {
        (self.setting.keeper != Keeper::Alone && self.free > 0.0)
            .then(|| 100.0 * self.best_effort / self.free)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting {
            app,
            limit,
            load,
            keeper,
        } = self.setting;
        let load = match keeper {
            Keeper::Alone => "-".to_owned(),
            _ => name(load),
        };
        let used = self
            .used()
            .map_or_else(|| "-".to_owned(), |used| format!("{used:.0}"));
        write!(
            f,
            "{:<8} {:<6} {:<8} {:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8} {:>8}",
            name(app),
            name(limit),
            load,
            name(keeper),
            self.quantile(500),
            self.quantile(990),
            self.quantile(999),
            self.quantile(1000),
            used,
            self.late_us.len()
        )
    }
}

pub(super) fn print(rows: &[Row], runs: u32, seconds: u32) {
    println!(
        "{:<8} {:<6} {:<8} {:<10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}",
        "APP",
        "LIMIT",
        "LOAD",
        "KEEPER",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "MOST ms",
        "BE %",
        "WORKS"
    );
    for row in rows {
        println!("{row}");
    }
    println!(
        "{runs} run(s) of {seconds} s each; BE: best-effort work as a share of the CPU that was free; kernel {}",
        crate::harness::kernel_release()
    );
}

pub(super) fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string(rows)? + "\n";
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::{App, Limit, Load};
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut row = Row::new(Setting {
            app: App::Probe,
            limit: Limit::None,
            load: Load::Hogs,
            keeper: Keeper::Weights,
        });
        assert_eq!(row.quantile(990), 0.0);
        row.add(Measured {
            late_us: (1..=1000).rev().map(|n| n * 1000).collect(),
            best_effort: 1.0,
            free: 4.0,
        });
        let quantiles = [500, 990, 999, 1000].map(|at| row.quantile(at));
        assert_eq!(quantiles, [500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(row.used(), Some(25.0));
    }
}
