//! Eviction of best-effort pods before the node itself is short of memory
//! (koordinator `pkg/koordlet/qosmanager/plugins/memoryevict/memory_evict.go`).
//!
//! Two levels, each off until configured: what is used of the node, and what best-effort pods ask for of what is
//! offered to them. Memory in use is what is not available: page cache that can be dropped is not in use.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// From where to where, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Levels {
    /// At this and above, pods are evicted.
    threshold: u32,
    /// Down to this.
    lower: u32,
}

/// Why two percentages are no levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LevelsError {
    /// The threshold of memory in use.
    #[error("a threshold of {0} % is not within 1 to 100")]
    Threshold(i64),
    /// The lower level.
    #[error("a lower level of {lower} % is not below the threshold of {threshold} %, or below 0")]
    Lower {
        /// As written.
        lower: i64,
        /// As written.
        threshold: i64,
    },
}

/// How far below the threshold the lower level is unless configured (`memoryReleaseBufferPercent`).
pub const DEFAULT_STEP: i64 = 2;

impl Levels {
    /// Levels of what is used; `lower` is [`DEFAULT_STEP`] below the threshold where it is not written.
    pub fn new(threshold: i64, lower: Option<i64>) -> Result<Self, LevelsError> {
        let lower = lower.unwrap_or_else(|| threshold.saturating_sub(DEFAULT_STEP).max(0));
        let within = |percent: i64| u32::try_from(percent).ok().filter(|p| *p <= 100);
        let checked = within(threshold).filter(|threshold| *threshold > 0);
        let threshold_checked = checked.ok_or(LevelsError::Threshold(threshold))?;
        let lower_checked = within(lower).filter(|lower| *lower < threshold_checked);
        Ok(Self {
            threshold: threshold_checked,
            lower: lower_checked.ok_or(LevelsError::Lower { lower, threshold })?,
        })
    }

    /// At this and above, pods are evicted; percent.
    pub const fn threshold(self) -> u32 {
        self.threshold
    }

    /// Down to this; percent.
    pub const fn lower(self) -> u32 {
        self.lower
    }
}

/// What pods have to give back of their requests, where those are above `threshold` percent of what is offered:
/// down to `lower` percent. `None` below, and where nothing is offered: an offer that is withdrawn or not known is
/// no reason to evict. A threshold of zero allows no request at all.
pub fn overcommitted(
    offered: Option<Bytes>,
    requested: Bytes,
    threshold: u32,
    lower: u32,
) -> Option<Bytes> {
    let offered = offered.filter(|offered| !offered.is_zero())?;
    let above = u128::from(requested.0) * 100 > u128::from(offered.0) * u128::from(threshold);
    above.then(|| requested.saturating_sub(offered.percent(lower.into())))
}
