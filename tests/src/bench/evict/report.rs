//! What came of all runs: the table and the JSON.

use std::fmt::{self, Write as _};

use serde::{Serialize, Serializer};

use super::daemons::Daemon;
use super::measure::{Figures, Outcome};
use super::{MIB, Rate};
use crate::cases::Context;

/// What is the same for every daemon in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::bench) struct Setting {
    /// MiB/s; none is as fast as the victim can.
    pub(in crate::bench) rate: Rate,
    /// Threads that burn CPU.
    pub(in crate::bench) hogs: usize,
    /// Processes of the victim.
    pub(in crate::bench) processes: usize,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "{rate} MiB/s")?,
            None => write!(f, "full speed")?,
        }
        match self.hogs {
            0 => write!(f, ", idle")?,
            hogs => write!(f, ", {hogs} hogs")?,
        }
        match self.processes {
            1 => write!(f, ", 1 process"),
            processes => write!(f, ", {processes} processes"),
        }
    }
}

/// The runs of one daemon in one setting.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    #[serde(serialize_with = "name")]
    pub(super) daemon: Daemon,
    pub(super) setting: Setting,
    pub(super) runs: Vec<Outcome>,
}

fn name<S: Serializer>(daemon: &Daemon, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(daemon.name())
}

impl Row {
    /// The figures of those runs that have any.
    pub(super) fn figures(&self) -> impl Iterator<Item = Figures> {
        self.runs.iter().filter_map(|run| match run {
            Outcome::Killed(figures) => Some(*figures),
            _ => None,
        })
    }

    fn count(&self, which: impl Fn(&Outcome) -> bool) -> usize {
        self.runs.iter().filter(|run| which(run)).count()
    }

    /// Runs in which somebody else was killed, and those that failed otherwise.
    fn wrong_and_failed(&self) -> (usize, usize) {
        (
            self.count(|run| matches!(run, Outcome::WrongVictim { .. })),
            self.count(|run| matches!(run, Outcome::Failed { .. })),
        )
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    kernel: String,
    cpu: String,
    cpus: usize,
    emulated: bool,
    pub(super) rows: Vec<Row>,
}

impl Report {
    /// Of this machine, without a run.
    pub(super) fn new(context: &Context) -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo.lines().find_map(|line| {
            let (_, model) = line.strip_prefix("model name")?.split_once(':')?;
            Some(model.trim().to_owned())
        });
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            cpu: cpu.unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            emulated: context.emulated(),
            rows: Vec::new(),
        }
    }

    /// Adds a run.
    pub(super) fn add(&mut self, daemon: Daemon, setting: Setting, outcome: Outcome) {
        let same = |row: &&mut Row| row.daemon == daemon && row.setting == setting;
        match self.rows.iter_mut().find(same) {
            Some(row) => row.runs.push(outcome),
            None => self.rows.push(Row {
                daemon,
                setting,
                runs: vec![outcome],
            }),
        }
    }

    /// As text.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{:<32} {:<10} {:>4} {:>26} {:>19} {:>19} {:>6} {:>6}\n{:<48} {:>26} {:>19} {:>19}\n",
            "SETTING",
            "DAEMON",
            "RUNS",
            "OVERSHOOT MiB",
            "KILL ms",
            "FREED ms",
            "WRONG",
            "FAILED",
            "",
            "p50 / p99 / max",
            "p50 / p99",
            "p50 / p99"
        );
        for row in &self.rows {
            let mut overshoot = Sorted::of(row, |f| f.overshoot_bytes as f64 / MIB as f64);
            let mut kill = Sorted::of(row, |f| f.kill_nanos as f64 / 1e6);
            let mut freed = Sorted::of(row, |f| f.freed_nanos as f64 / 1e6);
            let (wrong, failed) = row.wrong_and_failed();
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{:<32} {:<10} {:>4} {:>26} {:>19} {:>19} {:>6} {:>6}",
                row.setting.to_string(),
                row.daemon.name(),
                row.runs.len(),
                overshoot.shown(&[50, 99, 100]),
                kill.shown(&[50, 99]),
                freed.shown(&[50, 99]),
                wrong,
                failed
            );
        }
        let _ = writeln!(
            text,
            "Linux {}, {} x {}{}; times since the crossing; the n-th percentile is the smallest value \
             that n % of the runs do not exceed",
            self.kernel,
            self.cpus,
            self.cpu,
            if self.emulated { ", emulated" } else { "" }
        );
        text
    }
}

/// Values in order.
struct Sorted(Vec<f64>);

impl Sorted {
    fn of(row: &Row, value: impl Fn(Figures) -> f64) -> Self {
        let mut values: Vec<_> = row.figures().map(value).collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The smallest value that `percent` of the values do not exceed.
    fn percentile(&self, percent: usize) -> Option<f64> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0.get(rank - 1).copied()
    }

    fn shown(&mut self, percents: &[usize]) -> String {
        let values = percents
            .iter()
            .map(|percent| match self.percentile(*percent) {
                None => "-".to_owned(),
                Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
                Some(value) => format!("{value:.0}"),
            });
        values.collect::<Vec<_>>().join(" / ")
    }
}

/// Without a run.
#[cfg(test)]
pub(super) fn sample() -> Report {
    Report {
        kernel: "6.18".to_owned(),
        cpu: "CPU".to_owned(),
        cpus: 2,
        emulated: false,
        rows: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted = Sorted((1..=30).map(f64::from).collect());
        assert_eq!(sorted.percentile(50), Some(15.0));
        assert_eq!(sorted.percentile(99), Some(30.0));
        assert_eq!(Sorted(vec![7.0]).percentile(50), Some(7.0));
        assert_eq!(Sorted(Vec::new()).percentile(50), None);
        let sorted = Sorted((1..=200).map(f64::from).collect());
        assert_eq!(sorted.percentile(99), Some(198.0));
    }
}
