//! URLs in messages.

use axum::http::Uri;

/// A URL without what may be a secret: user, password and query.
pub(crate) fn without_secrets(url: &Uri) -> String {
    let scheme = url.scheme_str().unwrap_or("http");
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.rsplit('@').next().unwrap_or_default();
    let query = if url.query().is_some() { "?..." } else { "" };
    format!("{scheme}://{host}{}{query}", url.path())
}

#[cfg(test)]
mod tests {
    use super::without_secrets;

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        for (url, want) in [
            (
                "https://u:secret@pods.example:8443/a/b?token=secret",
                "https://pods.example:8443/a/b?...",
            ),
            ("http://127.0.0.1/", "http://127.0.0.1/"),
        ] {
            assert_eq!(without_secrets(&url.parse().unwrap()), want);
        }
    }
}
