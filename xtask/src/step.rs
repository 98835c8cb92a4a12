//! Progress lines: one when a step starts, one with its time when it ends.

use std::io::{self, IsTerminal as _};
use std::time::Instant;

use anyhow::Result;

/// How a line starts; coloured on a terminal unless `NO_COLOR` is set (no-color.org).
#[derive(Debug, Clone, Copy)]
pub enum Mark {
    /// Begun.
    Start,
    /// Done, or nothing to do.
    Ok,
    /// Is to be installed.
    Missing,
    /// Went wrong.
    Failed,
    /// Could not be done here.
    Skipped,
}

impl Mark {
    /// Word and colour.
    fn look(self) -> (&'static str, &'static str) {
        match self {
            Self::Start => ("...", "\x1b[2m"),
            Self::Ok => ("ok", "\x1b[32m"),
            Self::Missing => ("missing", "\x1b[33m"),
            Self::Failed => ("FAILED", "\x1b[31m"),
            Self::Skipped => ("skipped", "\x1b[33m"),
        }
    }
}

/// Prints one line: the mark, then the text.
pub fn line(mark: Mark, text: &str) {
    let colours =
        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let (word, colour) = mark.look();
    if colours {
        println!("{colour}{word:>7}\x1b[0m  {text}");
    } else {
        println!("{word:>7}  {text}");
    }
}

/// Runs `work`, with a line before it and a line with its time after it.
pub fn step<T>(label: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    line(Mark::Start, label);
    let begun = Instant::now();
    let result = work();
    let mark = if result.is_ok() {
        Mark::Ok
    } else {
        Mark::Failed
    };
    line(
        mark,
        &format!("{label} ({:.1} s)", begun.elapsed().as_secs_f64()),
    );
    result
}
