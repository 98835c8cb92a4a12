//! Who is let in: health for every client, the rest for those whose token the API server knows and whose user may get
//! the path. Without an answer of the API server there is none here either.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use super::reviews::{Reviews, Verdict};
use crate::api::server::api::ErrorResponse;

/// Paths without a token: probes send none.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

pub(super) struct Gate {
    /// `/v1` and the page, too.
    api: bool,
    reviews: Reviews,
}

impl Gate {
    pub(super) fn new(api: bool, reviews: Reviews) -> Self {
        Self { api, reviews }
    }

    /// What a request gets instead of its answer.
    async fn refusal(&self, token: Option<&str>, path: &str) -> Option<(StatusCode, String)> {
        if OPEN.contains(&path) {
            return None;
        }
        let Some(token) = token else {
            let text = "send the token of a user of this cluster: Authorization: Bearer TOKEN";
            return Some((StatusCode::UNAUTHORIZED, text.to_owned()));
        };
        match self.reviews.may_get(token, path).await {
            Verdict::Allowed if self.api || path == "/metrics" => None,
            Verdict::Allowed => Some((
                StatusCode::FORBIDDEN,
                format!("{path} is not answered on this address unless listenApi is true"),
            )),
            Verdict::Unknown => Some((
                StatusCode::UNAUTHORIZED,
                "the API server knows no user with this token".to_owned(),
            )),
            Verdict::Forbidden => Some((
                StatusCode::FORBIDDEN,
                format!(
                    "the user of this token may not get {path}; grant nonResourceURLs: [{path}], verbs: [get]"
                ),
            )),
            Verdict::Unanswered => Some((
                StatusCode::SERVICE_UNAVAILABLE,
                "the API server has not said whether this is allowed; try again".to_owned(),
            )),
        }
    }
}

pub(super) async fn check(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let token = bearer(request.headers()).map(str::to_owned);
    let path = request.uri().path().to_owned();
    let Some((status, text)) = gate.refusal(token.as_deref(), &path).await else {
        return next.run(request).await;
    };
    let mut response = ErrorResponse::new(status, text).into_response();
    let headers = response.headers_mut();
    match status {
        // RFC 9110, section 11.6.1.
        StatusCode::UNAUTHORIZED => {
            let challenge = HeaderValue::from_static("Bearer realm=\"podwarden\"");
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    response
}

/// The token of the one `Authorization` header (RFC 6750, section 2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (one, None) = (all.next()?, all.next()) else {
        return None;
    };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_that_of_one_bearer_header() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer abc"]).as_deref(), Some("abc"));
        assert_eq!(of(&["bearer  abc "]).as_deref(), Some("abc"));
        for none in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Basic abc"],
            &["abc"],
            &["Bearer a", "Bearer b"],
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
