//! The keys of `colocation`, named as in Koordinator's NodeSLO.

use std::str::FromStr;

use serde::Deserialize;

use super::reclaimed::{RawReclaimed, ReclaimedConfig};

/// `colocation`. Every strategy is off until it is switched on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ColocationConfig {
    /// `reclaimed`. Default: off.
    pub reclaimed: ReclaimedConfig,
}

/// `colocation`, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawColocation {
    #[serde(default)]
    reclaimed: RawReclaimed,
}

impl From<RawColocation> for ColocationConfig {
    fn from(raw: RawColocation) -> Self {
        Self {
            reclaimed: raw.reclaimed.into(),
        }
    }
}

/// A whole number within a range.
pub(super) fn whole<T: FromStr + PartialOrd>(
    text: &str,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, &'static str> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a whole number"),
    }
}
