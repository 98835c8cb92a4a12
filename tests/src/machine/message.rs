//! Messages between host and guest, and the outcome of a run of the cases: JSON, defined here once.
//!
//! ```text
//!  host  -> guest   Request   one word of the kernel's command line
//!  guest -> host    Message   a line each on the second serial port
//!  run   -> file    Report    `--json`; of a guest's cases the host writes it
//! ```

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};
use xtask::cases::{Extent, Share};
use xtask::report::Counts;

use crate::cases::Pods;

/// How the word on the kernel's command line begins. Neither the kernel nor systemd takes a name with this
/// dot for its own, and neither hands it to the first process as an argument.
const WORD: &str = "podwarden.request=";

/// What a guest is to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Request {
    /// Cases.
    Cases(Selection),
    /// The benchmark with these words after `e2e bench`.
    Bench(Vec<String>),
}

impl Request {
    /// The word for the kernel's command line. JSON has spaces only inside of strings, where an escape can
    /// take their place; so can one for an escaped quote, since the kernel pairs quotes.
    pub(crate) fn word(&self) -> Result<String> {
        let json = serde_json::to_string(self).context("write the request")?;
        let json = json
            .replace("\\\\", "\\u005c")
            .replace("\\\"", "\\u0022")
            .replace(' ', "\\u0020");
        Ok(format!("{WORD}{json}"))
    }

    /// Reads it from a kernel's command line.
    pub(crate) fn of_command_line(text: &str) -> Result<Self> {
        let json = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(WORD));
        let json = json.with_context(|| format!("the kernel's command line has no {WORD}"))?;
        serde_json::from_str(json).with_context(|| format!("read the request {json}"))
    }
}

/// Which cases run, and how often.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
pub(crate) struct Selection {
    /// Only cases with this in their name; given more than once, with all of them.
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Vec<String>,
    /// How much they do.
    #[command(flatten)]
    pub(crate) extent: Extent,
    /// Only those with these pods.
    #[arg(skip)]
    pub(crate) pods: Option<Pods>,
    /// Every n-th of them: the others run beside.
    #[arg(skip)]
    pub(crate) lane: Share,
    /// Which of the cases that take the same way on every kernel; the others run in every machine.
    #[arg(skip)]
    pub(crate) portable: Share,
    /// After how many seconds no further one of those begins: they come last then. They run on the host's kernel
    /// in any case.
    #[arg(skip)]
    pub(crate) portable_within: Option<u64>,
    /// After how many seconds no further case begins at all.
    #[arg(skip)]
    pub(crate) within: Option<u64>,
}

/// One line of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Message {
    /// A case has ended.
    Case(Verdict),
    /// All cases have.
    Summary(Summary),
    /// What a benchmark measured.
    Measured(serde_json::Value),
    /// The guest's process has ended.
    Ended(Ended),
}

/// How a guest's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ended {
    /// With this exit code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) seconds: f64,
    pub(crate) figures: Vec<Figure>,
    /// The end of the agent's log, where the case failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) log: Vec<String>,
    /// Why it failed before, once for each try.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) earlier: Vec<String>,
}

/// What became of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// A figure that a case has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What.
    pub(crate) name: String,
    /// How much.
    pub(crate) value: f64,
    /// Of what.
    pub(crate) unit: String,
}

/// A run as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) kernel: String,
    pub(crate) emulated: bool,
    #[serde(flatten)]
    pub(crate) counts: Counts,
}

/// The file of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report<'a> {
    #[serde(flatten)]
    pub(crate) summary: &'a Summary,
    pub(crate) cases: &'a [Verdict],
}

impl Report<'_> {
    /// Writes it to a file.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self).context("write the report")? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    }
}

impl Verdict {
    /// What it adds to the counts.
    pub(crate) fn counts(&self) -> Counts {
        match self.outcome {
            Outcome::Passed => Counts::PASSED,
            Outcome::Failed => Counts::FAILED,
            Outcome::Skipped => Counts::skipped(1),
        }
    }

    /// It in one line, then a line for each failure before it.
    pub(crate) fn lines(&self) -> Vec<String> {
        let one_line = |text: &str| text.replace('\n', "; ");
        let name = &self.name;
        let reason = one_line(self.reason.as_deref().unwrap_or_default());
        let first = match self.outcome {
            Outcome::Passed => format!("ok {name} ({:.1} s)", self.seconds),
            Outcome::Failed => format!("FAILED {name}: {reason}"),
            Outcome::Skipped => format!("skipped {name}: {reason}"),
        };
        let earlier = self.earlier.iter();
        std::iter::once(first)
            .chain(earlier.map(|why| format!("     failed before: {}", one_line(why))))
            .collect()
    }
}

/// Where messages go.
#[derive(Debug)]
pub(crate) struct Sender(Option<File>);

impl Sender {
    /// To a file, or to a serial port; `None` drops them.
    pub(crate) fn to(path: Option<&Path>) -> Result<Self> {
        let open = |path: &Path| {
            // A port must not become the terminal of a session.
            use std::os::unix::fs::OpenOptionsExt as _;
            let mut options = File::options();
            options
                .append(true)
                .create(true)
                .custom_flags(libc::O_NOCTTY);
            options
                .open(path)
                .with_context(|| format!("open {}", path.display()))
        };
        path.map(open).transpose().map(Self)
    }

    /// Writes one line.
    pub(crate) fn send(&self, message: &Message) -> Result<()> {
        let Some(mut file) = self.0.as_ref() else {
            return Ok(());
        };
        let line = serde_json::to_string(message).context("write a message")? + "\n";
        file.write_all(line.as_bytes()).context("send a message")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_the_command_line() {
        for filter in [
            "eviction_",
            "two words",
            "1",
            "single",
            "a\"b",
            "a\\b",
            "a\\\"b",
            "\t",
            "",
        ] {
            let request = Request::Cases(Selection {
                filter: vec![filter.to_owned()],
                extent: Extent {
                    retries: 2,
                    part: Some(Share { part: 1, of: 3 }),
                    ..Extent::default()
                },
                ..Selection::default()
            });
            let word = request.word().unwrap();
            assert!(!word.contains(char::is_whitespace), "{word}");
            assert_eq!(word.matches('"').count() % 2, 0, "{word}");
            assert!(!word.contains("\\\""), "{word}");
            let line = format!("console=ttyS0 {word} quiet\n");
            assert_eq!(Request::of_command_line(&line).unwrap(), request);
        }
        assert!(Request::of_command_line("console=ttyS0 quiet\n").is_err());
    }

    #[test]
    fn messages_are_read_back() {
        let verdict = Verdict {
            name: "oom_kill".to_owned(),
            outcome: Outcome::Failed,
            reason: Some("nothing died".to_owned()),
            seconds: 1.5,
            figures: Vec::new(),
            log: Vec::new(),
            earlier: vec!["no\nkill".to_owned()],
        };
        let lines = [
            "FAILED oom_kill: nothing died",
            "     failed before: no; kill",
        ];
        assert_eq!(verdict.lines(), lines);
        for message in [
            Message::Case(verdict),
            Message::Ended(Ended::Exit(1)),
            Message::Ended(Ended::Signal(9)),
            Message::Summary(Summary {
                kernel: "6.12".to_owned(),
                emulated: true,
                counts: Counts::PASSED,
            }),
        ] {
            let text = serde_json::to_string(&message).unwrap();
            assert_eq!(serde_json::from_str::<Message>(&text).unwrap(), message);
        }
    }
}
