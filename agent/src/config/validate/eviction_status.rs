//! What the API server is told, and when: the keys of `evictionStatus`, `evictionPressureTransitionPeriod`.

use std::time::Duration;

use super::File;
use crate::config::{
    ConfigError, EvictionStatusConfig,
    raw::{RawEvictionStatus, Text},
};

/// The kubelet's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`), also for 0.
const TRANSITION: Duration = Duration::from_secs(300);

impl File<'_> {
    pub(super) fn eviction_status(
        &self,
        raw: &RawEvictionStatus,
    ) -> Result<EvictionStatusConfig, ConfigError> {
        let how = self.read(
            "evictionStatus.how",
            raw.how.as_ref(),
            how,
            "write status, evictionApi or none",
        )?;
        Ok(how.unwrap_or_default())
    }

    pub(super) fn transition(&self, text: Option<&Text>) -> Result<Duration, ConfigError> {
        let period = self.duration(
            "evictionPressureTransitionPeriod",
            text,
            Duration::ZERO..=Duration::from_secs(24 * 3600),
        )?;
        Ok(period
            .filter(|period| !period.is_zero())
            .unwrap_or(TRANSITION))
    }
}

fn how(text: &str) -> Result<EvictionStatusConfig, &'static str> {
    match text {
        "status" => Ok(EvictionStatusConfig::Status),
        "evictionApi" => Ok(EvictionStatusConfig::EvictionApi),
        "none" => Ok(EvictionStatusConfig::None),
        _ => Err("none of the three"),
    }
}
