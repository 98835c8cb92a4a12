//! Counts the cases from what they print, here and on a machine's console.

use crate::report::Counts;

/// Follows the output of the cases.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// By the lines of single cases.
    lines: Counts,
    /// By the last line.
    summary: Option<Counts>,
}

impl Tally {
    /// Takes one line; whether it was about a case.
    pub(crate) fn line(&mut self, text: &str) -> bool {
        if let Some(counts) = Counts::of_summary(text) {
            self.summary = Some(counts);
            return false;
        }
        let counts = Counts::of_case(text);
        self.lines += counts.unwrap_or_default();
        counts.is_some()
    }

    /// The counts, and what was wrong with the whole.
    pub(crate) fn ended(&self, exit_code: Option<i32>) -> (Counts, Option<String>) {
        match (self.summary, exit_code) {
            (Some(counts), Some(0)) if counts.failed == 0 => (counts, None),
            (Some(counts), Some(_)) if counts.failed > 0 => {
                (counts, Some("cases failed".to_owned()))
            }
            // It ended before it was done, or its exit code contradicts its last line.
            (_, code) => {
                let mut counts = self.lines;
                counts += Counts::FAILED;
                let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
                (
                    counts,
                    Some(format!(
                        "the cases did not come to their end (exit code {code})"
                    )),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;
    use crate::report::Counts;

    fn tally(lines: &[&str]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.line(line);
        }
        tally
    }

    #[test]
    fn the_summary_counts() {
        let tally = tally(&["ok a (1 s)", "figure x 3", "1 passed, 0 failed, 0 skipped"]);
        assert_eq!(tally.ended(Some(0)), (Counts::PASSED, None));
    }

    #[test]
    fn a_run_cut_short_has_failed() {
        let tally = tally(&["ok a (1 s)", "ok b (1 s)"]);
        let (counts, reason) = tally.ended(None);
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
        let tally = tally(&["ok a (1 s)", "1 passed, 0 failed, 0 skipped"]);
        assert_eq!(tally.ended(Some(1)).0.failed, 1);
    }
}
