//! What came of all runs: the table and the JSON.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::daemons::Daemon;
use super::measure::{Figures, Outcome};
use super::{MIB, Rate};
use crate::cases::Context;
use crate::harness::quantile;

/// What is the same for every daemon in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) daemon: Daemon,
    pub(super) setting: Setting,
    pub(super) runs: Vec<Outcome>,
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

    /// Runs in which another pod was killed, and those that failed otherwise.
    fn wrong_and_failed(&self) -> (usize, usize) {
        (
            self.count(|run| matches!(run, Outcome::WrongVictim { .. })),
            self.count(|run| matches!(run, Outcome::Failed { .. })),
        )
    }
}

/// Everything that was measured.
#[derive(Debug, Serialize, Deserialize)]
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
            kernel: crate::harness::kernel_release(),
            cpu: cpu.unwrap_or_else(|| "unknown".to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            emulated: context.emulated(),
            rows: Vec::new(),
        }
    }

    /// What files hold, in their order.
    pub(super) fn of_files(files: &[PathBuf]) -> Result<Self> {
        let [first, others @ ..] = files else {
            bail!("no file is given");
        };
        let mut all = Self::read(first)?;
        for path in others {
            let report = Self::read(path)?;
            ensure!(
                report.machine() == all.machine(),
                "{}: measured on {}, and {} on {}: they are no runs beside one another",
                path.display(),
                report.machine(),
                first.display(),
                all.machine()
            );
            for row in report.rows {
                for outcome in row.runs {
                    all.add(row.daemon, row.setting, outcome);
                }
            }
        }
        Ok(all)
    }

    fn read(path: &Path) -> Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not what --json writes", path.display()))
    }

    fn machine(&self) -> String {
        format!(
            "Linux {}, {} x {}{}",
            self.kernel,
            self.cpus,
            self.cpu,
            if self.emulated { ", emulated" } else { "" }
        )
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
            "{:<32} {:<12} {:>4} {:>26} {:>19} {:>19} {:>6} {:>6}\n{:<50} {:>26} {:>19} {:>19}\n",
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
                "{:<32} {:<12} {:>4} {:>26} {:>19} {:>19} {:>6} {:>6}",
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
            "{}; times since the crossing; the n-th percentile is the smallest value that n % of the runs \
             do not exceed",
            self.machine()
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
        quantile(&self.0, percent * 10)
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
    fn what_was_written_is_read() {
        let setting = |rate| Setting {
            rate,
            hogs: 6,
            processes: 16,
        };
        let failed = |why: &str| Outcome::Failed {
            why: why.to_owned(),
        };
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, report: &Report| {
            let path = dir.path().join(name);
            std::fs::write(&path, serde_json::to_string(report).unwrap()).unwrap();
            path
        };
        let mut first = sample();
        first.add(Daemon::SystemdOomd, setting(None), failed("one"));
        let mut second = sample();
        second.add(Daemon::SystemdOomd, setting(None), failed("two"));
        second.add(Daemon::Podwarden, setting(Some(5)), failed("three"));
        let files = [write("first", &first), write("second", &second)];
        let all = Report::of_files(&files).unwrap();
        let runs = |row: &Row| (row.daemon, row.setting, row.runs.len());
        assert_eq!(
            all.rows.iter().map(runs).collect::<Vec<_>>(),
            [
                (Daemon::SystemdOomd, setting(None), 2),
                (Daemon::Podwarden, setting(Some(5)), 1)
            ]
        );

        let other = Report {
            cpus: 3,
            ..sample()
        };
        let files = [write("first", &first), write("other", &other)];
        let error = Report::of_files(&files).unwrap_err().to_string();
        assert!(
            error.contains("other: measured on Linux 6.18, 3 x CPU"),
            "{error}"
        );
        let error = Report::of_files(&[dir.path().join("none")]).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

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
