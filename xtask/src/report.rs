//! Counts of stages and their outcomes.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::cmd;
use crate::step::{Mark, line};

/// How many tests or checks ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Those that held.
    pub passed: u64,
    /// Those that did not.
    pub failed: u64,
    /// Those that could not run here.
    pub skipped: u64,
}

impl Counts {
    /// One that held.
    pub const PASSED: Self = Self {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    /// One that did not.
    pub const FAILED: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    /// That many that could not run.
    pub fn skipped(skipped: u64) -> Self {
        Self {
            skipped,
            ..Self::default()
        }
    }

    /// Reads `test result: ok. N passed; N failed; N ignored; …`, libtest's line for one binary.
    pub fn of_libtest(text: &str) -> Option<Self> {
        let (_, figures) = text.strip_prefix("test result: ")?.split_once(". ")?;
        let mut parts = figures.split("; ");
        let mut next = |word| parts.next()?.strip_suffix(word)?.trim().parse().ok();
        Some(Self {
            passed: next("passed")?,
            failed: next("failed")?,
            skipped: next("ignored")?,
        })
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

/// One stage of a run: a check, the unit tests, the cases on one kernel.
#[derive(Debug, Serialize, Deserialize)]
struct Stage {
    name: String,
    #[serde(flatten)]
    counts: Counts,
    /// How long it took; absent where nothing ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// Why something failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Stage {
    /// What it came to.
    fn line(&self) -> String {
        let time = self.seconds.map(|seconds| format!(" ({seconds:.1} s)"));
        let why = self.reason.as_ref().map(|why| format!("; {why}"));
        let [time, why] = [time, why].map(Option::unwrap_or_default);
        format!("{}: {}{time}{why}", self.name, self.counts)
    }
}

/// A stage that runs.
#[derive(Debug)]
pub struct Running {
    name: String,
    since: Instant,
}

/// Prints that a stage begins; [`Report::ended`] ends it.
pub fn begin(name: &str) -> Running {
    line(Mark::Start, name);
    Running {
        name: name.to_owned(),
        since: Instant::now(),
    }
}

/// All stages of a run.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    stages: Vec<Stage>,
}

impl Report {
    /// Adds a stage that did not run, or that has no time of its own.
    pub fn add(&mut self, name: &str, counts: Counts, reason: Option<String>) {
        self.push(Stage {
            name: name.to_owned(),
            counts,
            seconds: None,
            reason,
        });
    }

    /// Adds a stage that has run.
    pub fn ended(&mut self, stage: Running, counts: Counts, reason: Option<String>) {
        let seconds = Some(stage.since.elapsed().as_secs_f64());
        self.push(Stage {
            name: stage.name,
            counts,
            seconds,
            reason,
        });
    }

    /// Runs a check that either holds or does not, as a stage of its own.
    pub fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        let stage = begin(name);
        match check() {
            Ok(()) => self.ended(stage, Counts::PASSED, None),
            Err(error) => self.ended(stage, Counts::FAILED, Some(format!("{error:#}"))),
        }
    }

    /// Keeps a stage and prints its line.
    fn push(&mut self, stage: Stage) {
        let counts = stage.counts;
        let mark = if counts.failed > 0 {
            Mark::Failed
        } else if counts.passed == 0 && counts.skipped > 0 {
            Mark::Skipped
        } else {
            Mark::Ok
        };
        line(mark, &stage.line());
        self.stages.push(stage);
    }

    /// The stages in which something failed, a line each.
    pub fn failures(&self) -> impl Iterator<Item = String> {
        let failed = self.stages.iter().filter(|stage| stage.counts.failed > 0);
        failed.map(Stage::line)
    }

    /// The sum over all stages.
    pub fn total(&self) -> Counts {
        let mut total = Counts::default();
        for stage in &self.stages {
            total += stage.counts;
        }
        total
    }

    /// Writes all stages to a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        cmd::create_parent(path)?;
        let text = serde_json::to_string_pretty(self).context("write the stages")? + "\n";
        fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Adds the stages of another report, whose lines are printed already.
    pub fn append(&mut self, other: Self) {
        self.stages.extend(other.stages);
    }

    /// Adds the stages of a file, whose lines are printed already.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let text = fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let other: Self =
            serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))?;
        self.append(other);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, Report};

    const SOME: Counts = Counts {
        passed: 12,
        failed: 1,
        skipped: 3,
    };

    #[test]
    fn libtest_lines_are_read() {
        let failed = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; \
                      0 filtered out; finished in 0.10s";
        assert_eq!(Counts::of_libtest(failed), Some(SOME));
        assert_eq!(Counts::of_libtest("test tests::x ... ok"), None);
    }

    #[test]
    fn stages_add_up() {
        let mut report = Report::default();
        report.add("a", SOME, None);
        report.check("b", || Ok(()));
        report.check("c", || anyhow::bail!("no"));
        assert_eq!(
            report.total(),
            Counts {
                passed: 13,
                failed: 2,
                skipped: 3
            }
        );
    }

    #[test]
    fn stages_that_failed_are_said_again() {
        let mut report = Report::default();
        report.add("a", SOME, Some("x: no".to_owned()));
        report.add("b", Counts::PASSED, None);
        let again: Vec<_> = report.failures().collect();
        assert_eq!(again, ["a: 12 passed, 1 failed, 3 skipped; x: no"]);
    }

    #[test]
    fn stages_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results/stages.json");
        let mut report = Report::default();
        report.add("a", SOME, Some("why".to_owned()));
        report.write(&path).unwrap();
        let mut all = Report::default();
        all.check("b", || Ok(()));
        all.read(&path).unwrap();
        assert_eq!(all.total().passed, 13);
    }
}
