//! The sources of pods that need more than one key: `staticPodURL` and `kubelet`.

use axum::http::{HeaderName, HeaderValue};

use super::File;
use crate::config::{
    ConfigError, KubeletConfig, StaticPodUrl,
    raw::{RawConfig, RawKubelet},
    values::is_loopback,
};

impl File<'_> {
    pub(super) fn static_pod_url(
        self,
        raw: &RawConfig,
    ) -> Result<Option<StaticPodUrl>, ConfigError> {
        const HEADER: &str = "staticPodURLHeader";
        let mut headers = Vec::new();
        for (name, values) in &raw.static_pod_url_header {
            for text in values {
                let error = |problem: String| {
                    let wrong = format!(
                        "{problem}; write names of HTTP headers, each with a list of values"
                    );
                    ConfigError::value(self.0, HEADER, text, wrong)
                };
                headers.push((
                    HeaderName::try_from(name).map_err(|e| error(format!("{name}: {e}")))?,
                    HeaderValue::try_from(&text.value).map_err(|e| error(e.to_string()))?,
                ));
            }
        }
        match &raw.static_pod_url {
            None if !headers.is_empty() => Err(self.incomplete("staticPodURL", HEADER)),
            url => Ok(url.as_ref().map(|url| StaticPodUrl {
                url: url.0.clone(),
                headers,
                interval: raw.http_check_frequency.clone().unwrap_or_default().0,
            })),
        }
    }

    pub(super) fn kubelet(
        self,
        raw: RawKubelet,
        node_name: &str,
    ) -> Result<Option<KubeletConfig>, ConfigError> {
        const URL: &str = "kubelet.url";
        const CA: &str = "kubelet.certificateAuthority";
        let Some(url) = raw.url else {
            let others = [
                ("kubelet.tokenFile", raw.token_file.is_some()),
                (CA, raw.certificate_authority.is_some()),
                ("kubelet.serverName", raw.server_name.is_some()),
                ("kubelet.interval", raw.interval.is_some()),
            ];
            return match others.into_iter().find(|(_, is_set)| *is_set) {
                Some((because, _)) => Err(self.incomplete(URL, because)),
                None => Ok(None),
            };
        };
        if url.0.scheme_str() == Some("https") && raw.certificate_authority.is_none() {
            return Err(self.incomplete(CA, URL));
        }
        // A kubelet that signs its own certificate has the node's name in it and no address.
        let of_node = is_loopback(&url.0).then(|| node_name.to_owned());
        Ok(Some(KubeletConfig {
            url: url.0.to_string().trim_end_matches('/').to_owned(),
            token_file: raw.token_file.map(|file| file.0),
            certificate_authority: raw.certificate_authority.map(|file| file.0),
            interval: raw.interval.unwrap_or_default().0,
            server_name: raw.server_name.or(of_node),
        }))
    }
}
