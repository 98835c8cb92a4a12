//! `staticPodURL` and what belongs to it.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Uri};

use super::File;
use crate::config::{ConfigError, StaticPodUrl, raw::RawConfig};

const URL: &str = "staticPodURL";
const HEADER: &str = "staticPodURLHeader";

impl File<'_> {
    pub(super) fn static_pod_url(
        &self,
        raw: &RawConfig,
    ) -> Result<Option<StaticPodUrl>, ConfigError> {
        let url = self.read(
            URL,
            raw.static_pod_url.as_ref(),
            url,
            "write a whole URL, such as https://pods.example/node-1.yaml",
        )?;
        let interval = self.duration(
            "httpCheckFrequency",
            raw.http_check_frequency.as_ref(),
            Duration::from_secs(1)..=Duration::from_secs(24 * 3600),
        )?;
        let mut headers = Vec::new();
        for (name, values) in &raw.static_pod_url_header {
            for text in values {
                let header = |value: &str| {
                    let name = HeaderName::try_from(name).map_err(|e| format!("{name}: {e}"))?;
                    let value = HeaderValue::try_from(value).map_err(|e| e.to_string())?;
                    Ok::<_, String>((name, value))
                };
                let remedy = "write names of HTTP headers, each with a list of values";
                headers.extend(self.read(HEADER, Some(text), header, remedy)?);
            }
        }
        let Some(url) = url else {
            return match headers.is_empty() {
                true => Ok(None),
                false => Err(ConfigError::Incomplete {
                    path: self.0.to_owned(),
                    missing: URL.to_owned(),
                    because: HEADER.to_owned(),
                }),
            };
        };
        Ok(Some(StaticPodUrl {
            url,
            headers,
            // The kubelet's default (`pkg/kubelet/apis/config/v1beta1/defaults.go`).
            interval: interval.unwrap_or(Duration::from_secs(20)),
        }))
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|e| format!("{e}"))?;
    match url.scheme_str() {
        Some("http" | "https") if url.host().is_some() => Ok(url),
        _ => Err("neither http nor https".to_owned()),
    }
}
