//! The keys of `reactor`.

use std::time::Duration;

use podwarden_policy::threshold::Amount;

use super::File;
use crate::config::{ConfigError, ReactorConfig, raw::RawReactor};

/// A pod every second: ten times what a kubelet does (one every `evictionMonitoringPeriod`, 10 s, of
/// `pkg/kubelet/eviction/eviction_manager.go`), and short of emptying a node in one bad moment.
const DEFAULT_EVICTIONS_PER_MINUTE: u32 = 60;

/// Room for 2 GiB/s and a victim of 4 GiB on a node of 8 GiB.
const DEFAULT_MAX_HEADROOM: Amount = Amount::Percent(10 * 1_000_000);

impl File<'_> {
    pub(super) fn reactor(&self, raw: &RawReactor) -> Result<ReactorConfig, ConfigError> {
        let least = Duration::from_micros(100);
        let most = Duration::from_secs(10);
        let shortest = self.duration(
            "reactor.minInterval",
            raw.min_interval.as_ref(),
            least..=Duration::from_secs(1),
        )?;
        let min_interval = shortest.unwrap_or(Duration::from_millis(1));
        let longest = self.duration(
            "reactor.maxInterval",
            raw.max_interval.as_ref(),
            min_interval..=most,
        )?;
        let per_minute = self.read(
            "reactor.maxEvictionsPerMinute",
            raw.max_evictions_per_minute.as_ref(),
            per_minute,
            "write a whole number from 1 to 6000",
        )?;
        let headroom = self.read(
            "reactor.maxHeadroom",
            raw.max_headroom.as_ref(),
            headroom,
            "write an amount such as 256Mi, a share of the limit up to 50% such as 10%, or 0",
        )?;
        Ok(ReactorConfig {
            max_headroom: headroom.unwrap_or(DEFAULT_MAX_HEADROOM),
            max_evictions_per_minute: per_minute.unwrap_or(DEFAULT_EVICTIONS_PER_MINUTE),
            real_time: raw.real_time.unwrap_or(true),
            min_interval,
            max_interval: longest
                .unwrap_or(Duration::from_millis(100))
                .max(min_interval),
        })
    }
}

fn per_minute(text: &str) -> Result<u32, &'static str> {
    match text.parse() {
        Ok(number @ 1..=6000) => Ok(number),
        Ok(_) => Err("out of range"),
        Err(_) => Err("not a whole number"),
    }
}

fn headroom(text: &str) -> Result<Amount, String> {
    const HALF: u64 = 50 * 1_000_000;
    match Amount::parse(text).map_err(|e| e.to_string())? {
        Amount::Percent(parts) if parts > HALF => {
            Err("pods would be evicted on a node that is half empty".to_owned())
        }
        amount => Ok(amount),
    }
}
