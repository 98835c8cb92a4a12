//! Waiting, with a limit and with an ear for Ctrl-C.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::interrupt;

/// Between two looks at the flag.
const STEP: Duration = Duration::from_millis(20);
/// Between the first two checks; doubled each time until it is [`STEP`].
const FIRST: Duration = Duration::from_micros(200);

/// At least so many times as long as a check took, the next one is away: where every instruction is interpreted, what is
/// waited for would get little of the CPUs.
const APART: u32 = 4;
/// But no further than this.
const FURTHEST: Duration = Duration::from_millis(200);

/// Sleeps.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        interrupt::check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(STEP));
    }
}

/// Calls `check` until it succeeds, and gives its value; after `limit`, its last error.
pub(crate) fn eventually<T>(limit: Duration, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    let mut pause = FIRST;
    loop {
        interrupt::check()?;
        let begun = Instant::now();
        match check() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= end => {
                return Err(error.context(format!("still so after {} s", limit.as_secs())));
            }
            Err(_) => {
                let took = (APART * begun.elapsed()).min(FURTHEST);
                sleep(pause.max(took))?;
                pause = STEP.min(2 * pause);
            }
        }
    }
}

/// Waits until `done` says so; `what` completes "timed out waiting for".
pub(crate) fn until(limit: Duration, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    eventually(limit, || done().then_some(()).context("not yet"))
        .with_context(|| format!("timed out waiting for {what}"))
}
