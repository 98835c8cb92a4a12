//! The eviction thresholds: four maps from a signal to a text, as the kubelet has them.

use std::{collections::BTreeMap, time::Duration};

use podwarden_policy::{
    signal::Signal,
    threshold::{Threshold, ThresholdConfig, ThresholdError},
};

use super::File;
use crate::config::{
    ConfigError,
    raw::{RawConfig, RawSignals},
};

/// The kubelet's default (`pkg/kubelet/apis/config/v1beta1/defaults_linux.go`).
const DEFAULT_HARD: (&str, &str) = ("memory.available", "100Mi");

const LONGEST_GRACE: Duration = Duration::from_secs(24 * 3600);

const HARD: &str = "evictionHard";
const SOFT: &str = "evictionSoft";
const GRACE: &str = "evictionSoftGracePeriod";
const RECLAIM: &str = "evictionMinimumReclaim";

const AMOUNT: &str = "write an amount such as 500Mi or a share such as 5%";
const DURATION: &str = "write a duration of at most 24h, such as 30s or 1m30s";

impl File<'_> {
    pub(super) fn thresholds(
        self,
        raw: &RawConfig,
        enforce_pods: bool,
    ) -> Result<Vec<Threshold>, ConfigError> {
        let texts = |signals: &RawSignals| {
            let pairs = signals.iter();
            pairs
                .map(|(key, text)| (key.clone(), text.value.clone()))
                .collect()
        };
        let default = || BTreeMap::from([(DEFAULT_HARD.0.to_owned(), DEFAULT_HARD.1.to_owned())]);
        let written = ThresholdConfig {
            eviction_hard: raw.eviction_hard.as_ref().map_or_else(default, texts),
            eviction_soft: texts(&raw.eviction_soft),
            eviction_soft_grace_period: texts(&raw.eviction_soft_grace_period),
            eviction_minimum_reclaim: texts(&raw.eviction_minimum_reclaim),
            enforce_pods,
        };
        let thresholds = written
            .parse()
            .map_err(|error| self.threshold_error(raw, &error))?;
        for (signal, text) in &raw.eviction_soft {
            if signal.as_str() != DEFAULT_HARD.0 {
                let problem = format!("only {} has a soft threshold here", DEFAULT_HARD.0);
                let field = format!("{SOFT}.{signal}");
                let remedy =
                    format!("{problem}; write a hard one to {HARD}, or leave it to the kubelet");
                return Err(ConfigError::value(self.0, &field, text, remedy));
            }
        }
        for (signal, text) in &raw.eviction_soft_grace_period {
            if !raw.eviction_soft.contains_key(signal) {
                return Err(
                    self.incomplete(format!("{SOFT}.{signal}"), format!("{GRACE}.{signal}"))
                );
            }
            let of = |t: &&Threshold| t.signal.key() == Some(signal) && !t.is_hard();
            let grace = thresholds.iter().find(of).and_then(|t| t.grace);
            if grace.is_some_and(|grace| grace > LONGEST_GRACE) {
                let field = format!("{GRACE}.{signal}");
                return Err(ConfigError::value(
                    self.0,
                    &field,
                    text,
                    format!("longer than 24h; {DURATION}"),
                ));
            }
        }
        Ok(thresholds)
    }

    fn threshold_error(self, raw: &RawConfig, error: &ThresholdError) -> ConfigError {
        let at = |field: &str, key: &str, problem: String, remedy: &str| {
            let signals = match field {
                HARD => raw.eviction_hard.as_ref(),
                SOFT => Some(&raw.eviction_soft),
                GRACE => Some(&raw.eviction_soft_grace_period),
                _ => Some(&raw.eviction_minimum_reclaim),
            };
            let name = format!("{field}.{key}");
            match signals.and_then(|signals| signals.get(key)) {
                Some(text) => {
                    ConfigError::value(self.0, &name, text, format!("{problem}; {remedy}"))
                }
                None => self.incomplete(name, field.to_owned()),
            }
        };
        match error {
            ThresholdError::Signal { field, name } => {
                let known: Vec<_> = Signal::ALL.iter().filter_map(|s| s.key()).collect();
                let remedy = format!(
                    "write {}, and leave what else the kubelet watches to the kubelet",
                    known.join(" or ")
                );
                let problem = "this agent does not watch this signal".to_owned();
                at(field, name, problem, &remedy)
            }
            ThresholdError::Amount {
                field,
                signal,
                source,
                ..
            } => at(field, signal.as_str(), source.to_string(), AMOUNT),
            ThresholdError::Grace { signal, .. } => at(
                GRACE,
                signal.as_str(),
                "not a duration of zero or more".to_owned(),
                DURATION,
            ),
            ThresholdError::NoGrace { signal } => {
                self.incomplete(format!("{GRACE}.{signal}"), format!("{SOFT}.{signal}"))
            }
            other => at(RECLAIM, "", other.to_string(), AMOUNT),
        }
    }
}
