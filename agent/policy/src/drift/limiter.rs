//! How often the foreign writes to one file are corrected.

use core::time::Duration;

use super::{BURST, FIRST_PAUSE, LONGEST_PAUSE, REFILL};

/// How often one file is corrected.
#[derive(Debug, Clone)]
pub(super) struct Limiter {
    tokens: u32,
    /// When the last token was added, or the bucket last full.
    filled: Duration,
    pause: Option<Pause>,
}

#[derive(Debug, Clone)]
struct Pause {
    length: Duration,
    until: Duration,
    corrections: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Correct,
    Wait {
        /// The contest begins with this.
        began: bool,
    },
}

impl Default for Limiter {
    fn default() -> Self {
        Self {
            tokens: BURST,
            filled: Duration::ZERO,
            pause: None,
        }
    }
}

impl Limiter {
    pub(super) const fn is_contested(&self) -> bool {
        self.pause.is_some()
    }

    /// The end of a contested file's pause.
    pub(super) fn paused_until(&self) -> Option<Duration> {
        self.pause.as_ref().map(|pause| pause.until)
    }

    /// The file was found to hold something else.
    pub(super) fn deviates(&mut self, now: Duration) -> Answer {
        if let Some(pause) = &mut self.pause {
            if now < pause.until {
                return Answer::Wait { began: false };
            }
            pause.length = (pause.length * 2).min(LONGEST_PAUSE);
            pause.until = now.saturating_add(pause.length);
            pause.corrections = pause.corrections.saturating_add(1);
            return Answer::Correct;
        }
        self.refill(now);
        if self.tokens > 0 {
            self.tokens -= 1;
            return Answer::Correct;
        }
        self.pause = Some(Pause {
            length: FIRST_PAUSE,
            until: now.saturating_add(FIRST_PAUSE),
            corrections: 0,
        });
        Answer::Wait { began: true }
    }

    /// The file was found right; returns the corrections of a contest that ends with this.
    pub(super) fn agrees(&mut self, now: Duration) -> Option<u32> {
        let pause = self.pause.as_ref().filter(|pause| pause.until <= now)?;
        let corrections = pause.corrections;
        *self = Self {
            filled: now,
            ..Self::default()
        };
        Some(corrections)
    }

    /// Nothing can be said of the file now: a contest is looked at again a pause later.
    pub(super) fn postpone(&mut self, now: Duration) {
        if let Some(pause) = self.pause.as_mut().filter(|pause| pause.until <= now) {
            pause.until = now.saturating_add(pause.length);
        }
    }

    fn refill(&mut self, now: Duration) {
        let missing = BURST - self.tokens;
        let gained = now.saturating_sub(self.filled).as_nanos() / REFILL.as_nanos();
        match u32::try_from(gained) {
            Ok(gained) if gained < missing => {
                self.tokens += gained;
                self.filled = self.filled.saturating_add(REFILL * gained);
            }
            _ => {
                self.tokens = BURST;
                self.filled = now;
            }
        }
    }
}
