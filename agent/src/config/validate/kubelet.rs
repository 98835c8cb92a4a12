//! `kubelet`.

use std::{net::IpAddr, time::Duration};

use axum::http::Uri;

use super::{File, absolute_file};
use crate::config::{ConfigError, KubeletConfig, raw::RawKubelet};

const URL: &str = "kubelet.url";
const CA: &str = "kubelet.certificateAuthority";

impl File<'_> {
    pub(super) fn kubelet(
        &self,
        raw: &RawKubelet,
        node_name: &str,
    ) -> Result<Option<KubeletConfig>, ConfigError> {
        let url = self.read(
            URL,
            raw.url.as_ref(),
            url,
            "write https://HOST:PORT, such as https://127.0.0.1:10250",
        )?;
        let file = |field, text| {
            self.read(
                field,
                text,
                absolute_file,
                "write the absolute path of a file",
            )
        };
        let token_file = file("kubelet.tokenFile", raw.token_file.as_ref())?;
        let certificate_authority = file(CA, raw.certificate_authority.as_ref())?;
        let interval = self.duration(
            "kubelet.interval",
            raw.interval.as_ref(),
            Duration::from_secs(1)..=Duration::from_secs(300),
        )?;
        let incomplete = |missing, because| ConfigError::Incomplete {
            path: self.0.to_owned(),
            missing: str::to_owned(missing),
            because: str::to_owned(because),
        };
        let Some(url) = url else {
            let others = [
                ("kubelet.tokenFile", &raw.token_file),
                (CA, &raw.certificate_authority),
                ("kubelet.serverName", &raw.server_name),
                ("kubelet.interval", &raw.interval),
            ];
            return match others.into_iter().find(|(_, text)| text.is_some()) {
                Some((because, _)) => Err(incomplete(URL, because)),
                None => Ok(None),
            };
        };
        if url.scheme_str() == Some("https") && certificate_authority.is_none() {
            return Err(incomplete(CA, URL));
        }
        // A kubelet that signs its own certificate has the node's name in it and no address.
        let of_node = host(&url).is_some_and(|host| host.is_loopback());
        let server_name = raw.server_name.as_ref().map(|text| text.value.clone());
        Ok(Some(KubeletConfig {
            url: url.to_string().trim_end_matches('/').to_owned(),
            token_file,
            certificate_authority,
            interval: interval.unwrap_or(Duration::from_secs(5)),
            server_name: server_name.or_else(|| of_node.then(|| node_name.to_owned())),
        }))
    }
}

fn url(text: &str) -> Result<Uri, String> {
    let url: Uri = text.parse().map_err(|e| format!("{e}"))?;
    let bare = matches!(url.path(), "" | "/") && url.query().is_none();
    match url.scheme_str() {
        _ if url.host().is_none() || !bare => Err("not the address of a server".to_owned()),
        Some("https") => Ok(url),
        Some("http") if host(&url).is_some_and(|host| host.is_loopback()) => Ok(url),
        Some("http") => Err("the token would go over the network for all to read".to_owned()),
        _ => Err("neither https nor http".to_owned()),
    }
}

fn host(url: &Uri) -> Option<IpAddr> {
    let host = url.host()?;
    host.trim_matches(['[', ']']).parse().ok()
}
