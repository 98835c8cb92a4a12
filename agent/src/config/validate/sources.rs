//! The sources of pods that need more than one key: `staticPodURL` and `kubelet`.

use axum::http::{HeaderName, HeaderValue, Uri};

use super::File;
use crate::config::{
    ConfigError, KubeletConfig, StaticPodUrl,
    raw::{RawConfig, RawKubelet},
    values::{ManifestUrl, is_loopback},
    without_secrets,
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
            Some(ManifestUrl(url)) if !headers.is_empty() && !is_private(url) => {
                Err(self.in_the_open(url, "the values of staticPodURLHeader"))
            }
            Some(ManifestUrl(url)) if names_user(url) && !is_private(url) => {
                Err(self.in_the_open(url, "user and password"))
            }
            url => Ok(url.as_ref().map(|url| StaticPodUrl {
                url: url.0.clone(),
                headers,
                interval: raw.http_check_frequency.clone().unwrap_or_default().0,
            })),
        }
    }

    /// What only the server may read would go over the network for all to read.
    fn in_the_open(self, url: &Uri, secret: &str) -> ConfigError {
        ConfigError::Value {
            origin: self.0.to_owned(),
            field: "staticPodURL".to_owned(),
            problem: format!(
                "is `{}`: {secret} would go over the network for all to read; write https, or http with a loopback \
                 address such as 127.0.0.1",
                without_secrets(url)
            ),
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
            return self.none_of(others, URL).map(|()| None);
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

/// Encrypted, or read by this machine alone.
fn is_private(url: &Uri) -> bool {
    url.scheme_str() == Some("https") || is_loopback(url)
}

fn names_user(url: &Uri) -> bool {
    let authority = url.authority();
    authority.is_some_and(|authority| authority.as_str().contains('@'))
}
