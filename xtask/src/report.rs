//! What ran and how it ended, counted.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::step::{Mark, line};

/// How many tests or checks ended in which way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Those that held.
    pub(crate) passed: u64,
    /// Those that did not.
    pub(crate) failed: u64,
    /// Those that could not run here.
    pub(crate) skipped: u64,
}

impl Counts {
    /// One that held.
    pub(crate) const PASSED: Self = Self {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    /// One that did not.
    pub(crate) const FAILED: Self = Self {
        passed: 0,
        failed: 1,
        skipped: 0,
    };

    /// That many that could not run.
    pub(crate) fn skipped(skipped: u64) -> Self {
        Self {
            skipped,
            ..Self::default()
        }
    }

    /// Reads `N passed, N failed, N skipped`, the last line of the cases.
    pub(crate) fn of_summary(text: &str) -> Option<Self> {
        let mut parts = text.trim().split(", ");
        let mut next = |word| parts.next()?.strip_suffix(word)?.trim().parse().ok();
        let counts = Self {
            passed: next("passed")?,
            failed: next("failed")?,
            skipped: next("skipped")?,
        };
        parts.next().is_none().then_some(counts)
    }

    /// Reads `test result: ok. N passed; N failed; N ignored; …`, libtest's line for one binary.
    pub(crate) fn of_libtest(text: &str) -> Option<Self> {
        let (_, figures) = text.strip_prefix("test result: ")?.split_once(". ")?;
        let mut parts = figures.split("; ");
        let mut next = |word| parts.next()?.strip_suffix(word)?.trim().parse().ok();
        Some(Self {
            passed: next("passed")?,
            failed: next("failed")?,
            skipped: next("ignored")?,
        })
    }

    /// Counts one line of the cases' output: `ok …`, `FAILED …` or `skipped …`.
    pub(crate) fn of_case(text: &str) -> Option<Self> {
        match text.split(' ').next()? {
            "ok" => Some(Self::PASSED),
            "FAILED" => Some(Self::FAILED),
            "skipped" => Some(Self::skipped(1)),
            _ => None,
        }
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
#[derive(Debug, Serialize)]
struct Stage {
    name: String,
    #[serde(flatten)]
    counts: Counts,
    /// How long it took; absent where nothing ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// Why something failed or was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// A stage that runs.
#[derive(Debug)]
pub(crate) struct Running {
    name: String,
    since: Instant,
}

/// Prints that a stage begins; [`Report::ended`] ends it.
pub(crate) fn begin(name: &str) -> Running {
    line(Mark::Start, name);
    Running {
        name: name.to_owned(),
        since: Instant::now(),
    }
}

/// All stages of a run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    stages: Vec<Stage>,
}

impl Report {
    /// Adds a stage that did not run, or that has no time of its own.
    pub(crate) fn add(&mut self, name: &str, counts: Counts, reason: Option<String>) {
        self.push(Stage {
            name: name.to_owned(),
            counts,
            seconds: None,
            reason,
        });
    }

    /// Adds a stage that has run.
    pub(crate) fn ended(&mut self, stage: Running, counts: Counts, reason: Option<String>) {
        let seconds = Some(stage.since.elapsed().as_secs_f64());
        self.push(Stage {
            name: stage.name,
            counts,
            seconds,
            reason,
        });
    }

    /// Runs a check that either holds or does not, as a stage of its own.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
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
        let time = stage
            .seconds
            .map(|seconds| format!(" ({seconds:.1} s)"))
            .unwrap_or_default();
        let why = stage
            .reason
            .as_ref()
            .map(|why| format!("; {why}"))
            .unwrap_or_default();
        line(mark, &format!("{}: {counts}{time}{why}", stage.name));
        self.stages.push(stage);
    }

    /// The sum over all stages.
    pub(crate) fn total(&self) -> Counts {
        let mut total = Counts::default();
        for stage in &self.stages {
            total += stage.counts;
        }
        total
    }

    /// Writes `summary.json` into `dir` and prints the total as the last line.
    pub(crate) fn finish(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let path = dir.join("summary.json");
        let text = serde_json::to_string_pretty(self).context("write the summary")?;
        fs::write(&path, text + "\n").with_context(|| format!("write {}", path.display()))?;
        println!("results: {}", path.display());
        println!("{}", self.total());
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
    fn a_summary_is_read_back() {
        assert_eq!(Counts::of_summary(&SOME.to_string()), Some(SOME));
        assert_eq!(
            Counts::of_summary("12 passed, 1 failed, 3 skipped\r"),
            Some(SOME)
        );
        for other in [
            "12 passed, 1 failed",
            "x passed, 1 failed, 3 skipped",
            "",
            "1 2 3",
        ] {
            assert_eq!(Counts::of_summary(other), None, "{other}");
        }
    }

    #[test]
    fn libtest_lines_are_read() {
        let failed = "test result: FAILED. 12 passed; 1 failed; 3 ignored; 0 measured; \
                      0 filtered out; finished in 0.10s";
        assert_eq!(Counts::of_libtest(failed), Some(SOME));
        assert_eq!(Counts::of_libtest("test tests::x ... ok"), None);
    }

    #[test]
    fn case_lines_are_counted() {
        assert_eq!(Counts::of_case("ok oom_kill (1.2 s)"), Some(Counts::PASSED));
        assert_eq!(
            Counts::of_case("FAILED oom_kill: nothing died"),
            Some(Counts::FAILED)
        );
        assert_eq!(
            Counts::of_case("skipped oom_kill: not root"),
            Some(Counts::skipped(1))
        );
        assert_eq!(Counts::of_case("okay"), None);
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
}
