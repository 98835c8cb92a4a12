//! Every run as a dot: one panel for each figure, one line for each daemon in each setting.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::MIB;
use super::daemons::Daemon;
use super::dots::{Dots, Panel, Row};
use super::measure::Figures;
use super::report::Report;

/// Title, least value shown, and value of a run.
type Figure = (&'static str, f64, fn(&Figures) -> f64);

const FIGURES: [Figure; 3] = [
    ("overshoot at the kill, MiB", 0.01, |figures| {
        figures.overshoot_bytes as f64 / MIB as f64
    }),
    ("crossing to SIGKILL, ms", 0.01, |figures| {
        figures.kill_nanos as f64 / 1e6
    }),
    ("crossing to memory freed, ms", 1.0, |figures| {
        figures.freed_nanos as f64 / 1e6
    }),
];

fn colour(daemon: Daemon) -> usize {
    match daemon {
        Daemon::Podwarden => 0,
        Daemon::Oomd => 1,
        Daemon::Earlyoom => 2,
        Daemon::Nohang => 3,
        Daemon::SystemdOomd => 4,
    }
}

/// Draws it into a file.
pub(super) fn draw(report: &Report, path: &Path) -> Result<()> {
    let svg = picture(report)?;
    std::fs::write(path, svg).with_context(|| format!("write {}", path.display()))
}

fn picture(report: &Report) -> Result<String> {
    let runs = report.rows.iter().map(|row| row.runs.len()).max();
    let rows = report.rows.iter().map(|row| Row {
        group: row.setting.to_string(),
        name: row.daemon.name(),
        colour: colour(row.daemon),
    });
    let panels = FIGURES.map(|(title, least, value)| {
        let values = report.rows.iter();
        let values = values.map(|row| row.figures().map(|figures| value(&figures)).collect());
        Panel {
            title,
            least,
            values: values.collect(),
        }
    });
    Dots {
        title: format!(
            "From a level crossed to the memory back: {} runs each, bars are medians",
            runs.unwrap_or(0)
        ),
        rows: rows.collect(),
        panels: panels.into(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::super::measure::Outcome;
    use super::super::report::{Setting, sample};
    use super::*;

    #[test]
    fn every_run_is_a_dot_in_every_panel() {
        let mut report = sample();
        let setting = Setting {
            rate: Some(500),
            hogs: 0,
            processes: 1,
        };
        let figures = |kill_nanos| Figures {
            overshoot_bytes: -5,
            kill_nanos,
            freed_nanos: 10_000_000,
            crossing_bytes: 1,
            victim_bytes: 1,
            rate: 500.0,
            unseen_nanos: 0,
        };
        for kill in [1, 200_000, 3_000_000_000] {
            report.add(Daemon::Podwarden, setting, Outcome::Killed(figures(kill)));
        }
        let why = "not drawn".to_owned();
        report.add(Daemon::Earlyoom, setting, Outcome::Failed { why });
        let svg = picture(&report).unwrap();
        assert_eq!(svg.matches("<circle").count(), 3 * FIGURES.len());
        for text in [
            "podwarden",
            "earlyoom",
            "500 MiB/s, idle, 1 process",
            "SIGKILL",
        ] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn nothing_measured_is_an_empty_picture() {
        let svg = picture(&sample()).unwrap();
        assert_eq!(svg.matches("<circle").count(), 0);
    }
}
