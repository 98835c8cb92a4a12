//! The keys of `marks`.

use super::File;
use crate::config::{ConfigError, MarksConfig, raw::RawMarks};

impl File<'_> {
    pub(super) fn marks(&self, raw: &RawMarks) -> Result<MarksConfig, ConfigError> {
        let how = self.read(
            "marks.how",
            raw.how.as_ref(),
            how,
            "write status, evictionApi or none",
        )?;
        Ok(how.unwrap_or_default())
    }
}

fn how(text: &str) -> Result<MarksConfig, &'static str> {
    match text {
        "status" => Ok(MarksConfig::Status),
        "evictionApi" => Ok(MarksConfig::EvictionApi),
        "none" => Ok(MarksConfig::None),
        _ => Err("none of the three"),
    }
}
