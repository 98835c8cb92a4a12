//! How long the API server's answers about clients of `secureListen` hold: the kubelet's keys, with its defaults
//! (`pkg/kubelet/apis/config/v1beta1/defaults.go`).

use std::time::Duration;

use serde::Deserialize;

use super::values::{AuthorizedTtl, TokenTtl, UnauthorizedTtl};

/// `authentication`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawAuthentication {
    pub(super) webhook: RawTokens,
}

/// `authentication.webhook`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTokens {
    #[serde(rename = "cacheTTL")]
    pub(super) cache_ttl: Option<TokenTtl>,
}

/// `authorization`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RawAuthorization {
    pub(super) webhook: RawRights,
}

/// `authorization.webhook`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRights {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub(super) cache_authorized_ttl: Option<AuthorizedTtl>,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub(super) cache_unauthorized_ttl: Option<UnauthorizedTtl>,
}

/// How long an answer holds, each 1 s to 1 h: what a right that was taken away still opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReviewTtls {
    /// `authentication.webhook.cacheTTL`: whose a token is. Default: 2 min.
    pub token: Duration,
    /// `authorization.webhook.cacheAuthorizedTTL`: a user may get a path. Default: 5 min.
    pub authorized: Duration,
    /// `authorization.webhook.cacheUnauthorizedTTL`: a user may not. Default: 30 s.
    pub unauthorized: Duration,
}

impl ReviewTtls {
    pub(super) fn of(tokens: &RawTokens, rights: &RawRights) -> Self {
        Self {
            token: tokens.cache_ttl.clone().unwrap_or_default().0,
            authorized: rights.cache_authorized_ttl.clone().unwrap_or_default().0,
            unauthorized: rights.cache_unauthorized_ttl.clone().unwrap_or_default().0,
        }
    }
}

/// The first of the keys that is written.
pub(super) fn written(tokens: &RawTokens, rights: &RawRights) -> Option<&'static str> {
    [
        (
            tokens.cache_ttl.is_some(),
            "authentication.webhook.cacheTTL",
        ),
        (
            rights.cache_authorized_ttl.is_some(),
            "authorization.webhook.cacheAuthorizedTTL",
        ),
        (
            rights.cache_unauthorized_ttl.is_some(),
            "authorization.webhook.cacheUnauthorizedTTL",
        ),
    ]
    .into_iter()
    .find_map(|(is, key)| is.then_some(key))
}
