//! The keys of `convergence`.

use podwarden_policy::{Bytes, converge::Steps, quantity};

use super::File;
use crate::config::{ConfigError, ConvergenceConfig, OnExit, raw::RawConvergence};

impl File<'_> {
    pub(super) fn convergence(
        &self,
        raw: &RawConvergence,
    ) -> Result<ConvergenceConfig, ConfigError> {
        let defaults = ConvergenceConfig::default();
        let on_exit = self.read(
            "convergence.onExit",
            raw.on_exit.as_ref(),
            on_exit,
            "write restore or keep",
        )?;
        let step = self.read(
            "convergence.reclaimStep",
            raw.reclaim_step.as_ref(),
            reclaim_step,
            "write a size from 1Mi to 1Gi, such as 32Mi",
        )?;
        let all = defaults.steps;
        Ok(ConvergenceConfig {
            on_exit: on_exit.unwrap_or(defaults.on_exit),
            steps: Steps {
                cap_lower_tiers: raw.cap_lower_tiers.unwrap_or(all.cap_lower_tiers),
                memory_high: raw.memory_high.unwrap_or(all.memory_high),
                memory_reclaim: raw.memory_reclaim.unwrap_or(all.memory_reclaim),
            },
            reclaim_step: step.unwrap_or(defaults.reclaim_step),
        })
    }
}

fn on_exit(text: &str) -> Result<OnExit, &'static str> {
    match text {
        "restore" => Ok(OnExit::Restore),
        "keep" => Ok(OnExit::Keep),
        _ => Err("neither of the two"),
    }
}

fn reclaim_step(text: &str) -> Result<Bytes, String> {
    let bytes = quantity::parse_memory(text).map_err(|error| error.to_string())?;
    if (Bytes::MI..=Bytes::GI).contains(&bytes) {
        return Ok(bytes);
    }
    Err("out of range".to_owned())
}
