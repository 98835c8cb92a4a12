//! The table and the file.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::super::median;
use super::scene::Measured;
use super::{Keeper, Setting, name};
use crate::harness::quantile;

/// One kind of run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) setting: Setting,
    runs: Vec<Run>,
}

/// What one run gave.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    /// How late each piece of work was done that the quantiles are of, microseconds, ascending.
    late_us: Vec<u64>,
    #[serde(flatten)]
    measured: Measured,
}

/// A quantile, thousandths.
const P50: usize = 500;
const P99: usize = 990;
const P999: usize = 999;
const MOST: usize = 1000;
/// p99 is back once it is at most so many times that of the work alone.
const BACK: f64 = 1.15;
/// The time whose p99 that is, nanoseconds.
const BACK_OVER: u64 = 1_000_000_000;

impl Run {
    fn late_ms(&self, thousandths: usize) -> f64 {
        quantile(&self.late_us, thousandths).unwrap_or_default() as f64 / 1000.0
    }

    /// How long after best-effort work began p99 is back at a bound, milliseconds; none where it does not come back.
    fn back_ms(&self, bound_ms: f64) -> Option<f64> {
        let Measured { pieces, began, .. } = &self.measured;
        let last = pieces.last()?.due;
        let begins = pieces.iter().enumerate();
        let mut whole = begins.take_while(|(_, piece)| piece.due + BACK_OVER <= last);
        let (_, first) = whole.find(|(at, first)| {
            let second = pieces[*at..].iter();
            let second = second.take_while(|piece| piece.due < first.due + BACK_OVER);
            let mut late: Vec<u64> = second.map(|piece| piece.late_us).collect();
            late.sort_unstable();
            quantile(&late, P99).is_some_and(|p99| p99 as f64 / 1000.0 <= bound_ms)
        })?;
        Some((first.due - began) as f64 / 1e6)
    }
}

impl Row {
    pub(super) fn new(setting: Setting) -> Self {
        Self {
            setting,
            runs: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        let steady = measured.steady;
        let late = measured.pieces.iter().filter(|piece| piece.due >= steady);
        let mut late_us: Vec<u64> = late.map(|piece| piece.late_us).collect();
        late_us.sort_unstable();
        self.runs.push(Run { late_us, measured });
    }

    /// The median over the runs, 0 without any.
    fn median(&self, of: impl Fn(&Run) -> f64) -> f64 {
        let mut values: Vec<f64> = self.runs.iter().map(of).collect();
        match values.is_empty() {
            true => 0.0,
            false => median(&mut values),
        }
    }

    /// What this many thousandths of a run do not exceed, milliseconds.
    fn late_ms(&self, thousandths: usize) -> f64 {
        self.median(|run| run.late_ms(thousandths))
    }

    /// What the best-effort pod used of the free CPU, percent.
    fn used(&self) -> Option<f64> {
        (self.setting.keeper != Keeper::Alone).then(|| {
            self.median(|Run { measured, .. }| match measured.free > 0.0 {
                true => 100.0 * measured.best_effort / measured.free,
                false => 0.0,
            })
        })
    }

    /// The figures beside those of the same work alone.
    fn beside(&self, alone: Option<&Self>) -> [Option<String>; 3] {
        let times = |thousandths| {
            let alone = alone?.late_ms(thousandths);
            (alone > 0.0).then(|| format!("x{:.2}", self.late_ms(thousandths) / alone))
        };
        let back = alone.map(|alone| {
            let bound = BACK * alone.late_ms(P99);
            match self.median(|run| run.back_ms(bound).unwrap_or(f64::INFINITY)) {
                f64::INFINITY => "never".to_owned(),
                ms => format!("{ms:.0}"),
            }
        });
        [times(P99), times(P999), back]
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setting {
            app,
            limit,
            load,
            keeper,
            ..
        } = self.setting;
        let load = match keeper {
            Keeper::Alone => "-".to_owned(),
            _ => name(load),
        };
        let used = self.used().map(|used| format!("{used:.0}"));
        let works: usize = self.runs.iter().map(|run| run.late_us.len()).sum();
        write!(
            f,
            "{:<8} {:<6} {:<8} {:<10} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8} {:>8}",
            name(app),
            name(limit),
            load,
            name(keeper),
            self.late_ms(P50),
            self.late_ms(P99),
            self.late_ms(P999),
            self.late_ms(MOST),
            used.as_deref().unwrap_or("-"),
            works
        )
    }
}

pub(super) fn print(rows: &[Row], runs: u32, seconds: u32) {
    println!(
        "{:<8} {:<6} {:<8} {:<10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "APP",
        "LIMIT",
        "LOAD",
        "KEEPER",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "MOST ms",
        "BE %",
        "WORKS",
        "p99",
        "p99.9",
        "BACK ms"
    );
    for row in rows {
        let figures = row.beside(alone(rows, row.setting));
        let [p99, p999, back] = figures.map(|figure| figure.unwrap_or_else(|| "-".to_owned()));
        println!("{row} {p99:>8} {p999:>8} {back:>8}");
    }
    let root_weight = rows.first().map_or(1, |row| row.setting.root_weight);
    if root_weight != 1 {
        println!("the cgroup above all pods has {root_weight} times the weight of kubepods");
    }
    println!(
        "medians of {runs} run(s) of {seconds} s each; BE: best-effort work as a share of the CPU that was free; x: times that \
         of the same work alone; BACK: from the begin of best-effort work until p99 is at most {BACK} times that; kernel {}",
        crate::harness::kernel_release()
    );
}

/// The same work without any beside it, where that was measured.
fn alone(rows: &[Row], setting: Setting) -> Option<&Row> {
    let same = |row: &&Row| {
        let Setting { app, limit, .. } = row.setting;
        (app, limit) == (setting.app, setting.limit)
    };
    let mut alone = rows
        .iter()
        .filter(|row| row.setting.keeper == Keeper::Alone);
    alone.find(same).filter(|_| setting.keeper != Keeper::Alone)
}

pub(super) fn write(path: &Path, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string(rows)? + "\n";
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::{App, Limit, Load};
    use super::*;
    use workload::latency::Piece;

    const SETTING: Setting = Setting {
        app: App::Probe,
        limit: Limit::None,
        load: Load::Hogs,
        keeper: Keeper::Weights,
        root_weight: 1,
    };

    /// A run with a piece each 2 ms, all from when best-effort work began.
    fn run(late_us: impl Iterator<Item = u64>) -> Measured {
        let pieces = (0..).zip(late_us);
        Measured {
            pieces: pieces
                .map(|(number, late_us)| Piece {
                    due: 5_000_000 + number * 2_000_000,
                    late_us,
                })
                .collect(),
            began: 5_000_000,
            steady: 5_000_000,
            best_effort: 1.0,
            free: 4.0,
        }
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let mut row = Row::new(SETTING);
        assert_eq!(row.late_ms(P99), 0.0);
        row.add(run((1..=1000).rev().map(|n| n * 1000)));
        let quantiles = [P50, P99, P999, MOST].map(|at| row.late_ms(at));
        assert_eq!(quantiles, [500.0, 990.0, 999.0, 1000.0]);
        assert_eq!(row.used(), Some(25.0));
    }

    #[test]
    fn a_run_that_the_host_disturbed_moves_no_figure() {
        let mut row = Row::new(SETTING);
        for late in [600, 40_000, 620] {
            row.add(run(std::iter::repeat_n(late, 1000)));
        }
        assert_eq!(row.late_ms(P999), 0.62);
    }

    #[test]
    fn only_what_is_due_when_it_is_steady_counts_in_a_quantile() {
        let mut row = Row::new(SETTING);
        let measured = run((0..1000).map(|n| if n < 500 { 9_000 } else { 600 }));
        row.add(Measured {
            steady: 5_000_000 + 500 * 2_000_000,
            ..measured
        });
        assert_eq!(row.late_ms(MOST), 0.6);
        assert_eq!(row.runs[0].late_us.len(), 500);
    }

    #[test]
    fn p99_is_back_where_a_second_of_it_begins() {
        let mut alone = Row::new(Setting {
            keeper: Keeper::Alone,
            ..SETTING
        });
        alone.add(run(std::iter::repeat_n(600, 2000)));
        let mut row = Row::new(SETTING);
        // 300 ms of waiting, and then one piece in a hundred that is late.
        let late = |n: u64| {
            if n < 150 || n.is_multiple_of(100) {
                9_000
            } else {
                600
            }
        };
        row.add(run((0..2000).map(late)));
        // A second has 500 pieces, five of which may be late.
        assert_eq!(row.beside(Some(&alone))[2].as_deref(), Some("300"));
        let mut waiting = Row::new(SETTING);
        waiting.add(run(std::iter::repeat_n(9_000, 2000)));
        assert_eq!(waiting.beside(Some(&alone))[2].as_deref(), Some("never"));
        assert_eq!(waiting.beside(Some(&alone))[0].as_deref(), Some("x15.00"));
        assert_eq!(waiting.beside(None), [None, None, None]);
    }
}
