//! The keys of `eventLog`.

use podwarden_policy::{Bytes, quantity};

use super::{File, absolute_file};
use crate::config::{ConfigError, EventLogConfig, raw::RawEventLog};

/// Some thousand records.
const DEFAULT_EVENT_LOG_SIZE: Bytes = Bytes::mebi(16);

impl File<'_> {
    pub(super) fn event_log(
        &self,
        raw: &RawEventLog,
    ) -> Result<Option<EventLogConfig>, ConfigError> {
        const PATH: &str = "eventLog.path";
        const MAX_SIZE: &str = "eventLog.maxSize";
        let path = self.read(
            PATH,
            raw.path.as_ref(),
            absolute_file,
            "write the absolute path of a file, such as /var/log/podwarden/events.jsonl",
        )?;
        let max_size = self.read(
            MAX_SIZE,
            raw.max_size.as_ref(),
            log_size,
            "write a size from 1Mi to 1Gi, such as 16Mi",
        )?;
        match (path, max_size) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(ConfigError::Incomplete {
                path: self.0.to_owned(),
                missing: PATH.to_owned(),
                because: MAX_SIZE.to_owned(),
            }),
            (Some(path), max_size) => Ok(Some(EventLogConfig {
                path,
                max_size: max_size.unwrap_or(DEFAULT_EVENT_LOG_SIZE),
            })),
        }
    }
}

fn log_size(text: &str) -> Result<Bytes, String> {
    let size = quantity::parse_memory(text).map_err(|e| e.to_string())?;
    if (Bytes::mebi(1)..=Bytes::gibi(1)).contains(&size) {
        return Ok(size);
    }
    Err("out of range".to_owned())
}
