//! What the agent under test writes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

const LINES_KEPT: usize = 400;

/// The last lines that the agent wrote to stderr.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<VecDeque<String>>>);

impl Log {
    pub(super) fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// The last `count` lines.
    pub(crate) fn tail(&self, count: usize) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .skip(lines.len().saturating_sub(count))
            .cloned()
            .collect()
    }

    /// Everything kept, as one text.
    pub(crate) fn text(&self) -> String {
        self.tail(LINES_KEPT).join("\n")
    }
}
