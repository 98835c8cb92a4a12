//! `pressure`: thresholds of waiting.

use std::{ops::RangeInclusive, time::Duration};

use super::{File, duration};
use crate::config::{
    ConfigError, PressureConfig, Stall,
    raw::{RawStalls, Text},
};

/// What the kernel takes (`psi_trigger_create`, kernel `kernel/sched/psi.c`).
const WINDOWS: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(10);

/// Below this it is the noise of any node.
const LEAST: Duration = Duration::from_millis(1);

const STALL: &str =
    "write how long tasks may wait within a window of 500ms to 10s, such as 200ms/2s";

impl File<'_> {
    pub(super) fn pressure(&self, raw: &RawStalls) -> Result<PressureConfig, ConfigError> {
        let read = |field, text: &Option<Text>| self.read(field, text.as_ref(), stall, STALL);
        Ok(PressureConfig {
            some: read("pressure.memory.some", &raw.some)?,
            full: read("pressure.memory.full", &raw.full)?,
        })
    }
}

fn stall(text: &str) -> Result<Stall, String> {
    let (stall, window) = text.split_once('/').ok_or("there is no / in it")?;
    let (stall, window) = (duration(stall.trim())?, duration(window.trim())?);
    if !WINDOWS.contains(&window) {
        return Err(format!("a window of {window:?}"));
    }
    if !(LEAST..=window).contains(&stall) {
        return Err("tasks can wait 1ms at least, and for the window at most".to_owned());
    }
    Ok(Stall { stall, window })
}
