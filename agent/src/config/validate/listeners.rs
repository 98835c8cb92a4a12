//! The API's addresses.

use super::File;
use crate::config::{
    ConfigError, ReviewTtls, SecureListenConfig, TlsFiles, raw::RawConfig, webhook,
};

impl File<'_> {
    /// Checks the keys of the listeners, and puts those of `secureListen` together.
    pub(super) fn listeners(
        self,
        raw: &RawConfig,
    ) -> Result<Option<SecureListenConfig>, ConfigError> {
        if raw.listen.is_none() && !raw.listen_hosts.is_empty() {
            return Err(self.incomplete("listen", "listenHosts"));
        }
        if raw.listen.is_none() && raw.secure_listen.is_none() && raw.listen_api.is_some() {
            return Err(self.incomplete("listen", "listenApi"));
        }
        let (certificate, key) = (&raw.tls_cert_file, &raw.tls_private_key_file);
        let files = match (certificate, key) {
            (None, None) => None,
            (Some(_), None) => return Err(self.incomplete("tlsPrivateKeyFile", "tlsCertFile")),
            (None, Some(_)) => return Err(self.incomplete("tlsCertFile", "tlsPrivateKeyFile")),
            (Some(certificate), Some(key)) => Some(TlsFiles {
                certificate: certificate.0.clone(),
                key: key.0.clone(),
            }),
        };
        let (tokens, rights) = (&raw.authentication.webhook, &raw.authorization.webhook);
        let companion = match files.is_some() {
            true => Some("tlsCertFile"),
            false => webhook::written(tokens, rights),
        };
        match &raw.secure_listen {
            None => match companion {
                Some(key) => Err(self.incomplete("secureListen", key)),
                None => Ok(None),
            },
            Some(listen) => Ok(Some(SecureListenConfig {
                address: listen.0,
                files,
                ttls: ReviewTtls::of(tokens, rights),
            })),
        }
    }
}
