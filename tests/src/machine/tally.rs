//! Counts the cases from the messages of a run, on this kernel and in guests.

use std::path::Path;

use anyhow::Result;
use xtask::report::Counts;

use crate::machine::message::{Ended, Message, Outcome, Report, Summary, Verdict};
use crate::runner::TIME_IS_UP;

/// Follows a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    verdicts: Vec<Verdict>,
    summary: Option<Summary>,
}

impl Tally {
    /// Takes one message.
    pub(super) fn message(&mut self, message: Message) {
        match message {
            Message::Case(verdict) => self.verdicts.push(verdict),
            Message::Summary(summary) => self.summary = Some(summary),
            Message::Measured(_) | Message::Ended(_) => {}
        }
    }

    /// The counts, and what was wrong with the whole or only held when it was tried again.
    pub(super) fn ended(&self, ended: Option<Ended>) -> (Counts, Option<String>) {
        let summary = self.summary.as_ref().map(|summary| summary.counts);
        match (summary, ended) {
            (Some(counts), Some(Ended::Exit(0))) if counts.failed == 0 => {
                let remarks = [self.tried_again(), self.left_out()];
                let remarks: Vec<_> = remarks.into_iter().flatten().collect();
                (counts, (!remarks.is_empty()).then(|| remarks.join("; ")))
            }
            (Some(counts), Some(Ended::Exit(_))) if counts.failed > 0 => {
                (counts, Some(self.failures()))
            }
            // The run was cut short, or its exit code contradicts its summary.
            (_, ended) => {
                let mut counts = Counts::FAILED;
                for verdict in &self.verdicts {
                    counts += verdict.counts();
                }
                let how = match ended {
                    Some(Ended::Exit(code)) => format!("exit code {code}"),
                    Some(Ended::Signal(signal)) => format!("signal {signal}"),
                    None => "no exit code".to_owned(),
                };
                (counts, Some(format!("the cases did not finish ({how})")))
            }
        }
    }

    /// The cases that failed, and why.
    fn failures(&self) -> String {
        let failed = self.verdicts.iter();
        let failed = failed.filter(|verdict| verdict.outcome == Outcome::Failed);
        let lines: Vec<String> = failed.flat_map(Verdict::lines).collect();
        lines.join("; ")
    }

    /// The cases that failed first and then held: each is a fault to be found.
    fn tried_again(&self) -> Option<String> {
        let again = self.verdicts.iter().filter(|v| !v.earlier.is_empty());
        let names: Vec<_> = again.map(|verdict| verdict.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("held only when tried again: {}", names.join(", ")))
    }

    /// The cases that did not run, since the time of the whole run was up.
    fn left_out(&self) -> Option<String> {
        let left = self.verdicts.iter();
        let left = left.filter(|verdict| verdict.reason.as_deref() == Some(TIME_IS_UP));
        let names: Vec<_> = left.map(|verdict| verdict.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("time was up for {}", names.join(", ")))
    }

    /// Writes all that is known of the run; nothing for one without a summary.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        match &self.summary {
            Some(summary) => Report {
                summary,
                cases: &self.verdicts,
            }
            .write(path),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, summary: bool) -> Tally {
        let mut tally = Tally::default();
        let mut counts = Counts::default();
        for _ in 0..passed {
            counts += Counts::PASSED;
            tally.message(Message::Case(Verdict {
                name: "a".to_owned(),
                outcome: Outcome::Passed,
                reason: None,
                seconds: 1.0,
                figures: Vec::new(),
                log: Vec::new(),
                earlier: Vec::new(),
            }));
        }
        if summary {
            tally.message(Message::Summary(Summary {
                kernel: "6.12".to_owned(),
                emulated: true,
                counts,
            }));
        }
        tally
    }

    #[test]
    fn what_failed_is_named() {
        let mut tally = tally(1, false);
        tally.message(Message::Case(Verdict {
            name: "b".to_owned(),
            outcome: Outcome::Failed,
            reason: Some("nothing died".to_owned()),
            ..tally.verdicts[0].clone()
        }));
        let mut counts = Counts::PASSED;
        counts += Counts::FAILED;
        tally.message(Message::Summary(Summary {
            kernel: "6.12".to_owned(),
            emulated: true,
            counts,
        }));
        let why = "FAILED b: nothing died".to_owned();
        assert_eq!(tally.ended(Some(Ended::Exit(1))), (counts, Some(why)));
    }

    #[test]
    fn the_summary_counts() {
        let ended = tally(1, true).ended(Some(Ended::Exit(0)));
        assert_eq!(ended, (Counts::PASSED, None));
    }

    #[test]
    fn what_held_only_when_tried_again_is_named() {
        let mut tally = tally(2, true);
        tally.verdicts[1].earlier.push("nothing died".to_owned());
        let (counts, reason) = tally.ended(Some(Ended::Exit(0)));
        assert_eq!((counts.passed, counts.failed), (2, 0));
        assert_eq!(reason.as_deref(), Some("held only when tried again: a"));
    }

    #[test]
    fn what_did_not_run_is_named() {
        let mut tally = tally(2, true);
        tally.verdicts[1].outcome = Outcome::Skipped;
        tally.verdicts[1].reason = Some(TIME_IS_UP.to_owned());
        let (counts, reason) = tally.ended(Some(Ended::Exit(0)));
        assert_eq!(counts.failed, 0);
        assert_eq!(reason.as_deref(), Some("time was up for a"));
    }

    #[test]
    fn a_run_cut_short_has_failed() {
        let (counts, reason) = tally(2, false).ended(None);
        assert_eq!(
            counts,
            Counts {
                passed: 2,
                failed: 1,
                skipped: 0
            }
        );
        assert!(reason.is_some());
    }

    #[test]
    fn an_exit_code_that_contradicts_the_summary_has_failed() {
        for ended in [Ended::Exit(1), Ended::Signal(9)] {
            assert_eq!(tally(1, true).ended(Some(ended)).0.failed, 1);
        }
    }
}
