//! The page at `/`: static files in the binary, which read `/v1` as every other client does.
//!
//! The page takes nothing from elsewhere and runs nothing but its own files; the headers hold a browser to that.

use axum::{
    extract::Path,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::api::ErrorResponse;

/// `default-src 'none'` is the rule; what follows is what the page uses.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    ),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    // A browser asks again after an update of the agent.
    (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

const INDEX: &str = include_str!("page/index.html");

/// Name below `/page`, media type, text.
const FILES: [(&str, &str, &str); 7] = [
    ("page.css", "text/css", include_str!("page/page.css")),
    ("main.js", JAVASCRIPT, include_str!("page/main.js")),
    ("dom.js", JAVASCRIPT, include_str!("page/dom.js")),
    ("node.js", JAVASCRIPT, include_str!("page/node.js")),
    ("pods.js", JAVASCRIPT, include_str!("page/pods.js")),
    ("events.js", JAVASCRIPT, include_str!("page/events.js")),
    ("details.js", JAVASCRIPT, include_str!("page/details.js")),
];

const JAVASCRIPT: &str = "text/javascript";

pub(super) async fn index() -> Response {
    file("text/html", INDEX)
}

pub(super) async fn asset(Path(name): Path<String>) -> Result<Response, ErrorResponse> {
    let found = FILES.iter().find(|(known, ..)| *known == name);
    found
        .map(|(_, kind, text)| file(kind, text))
        .ok_or_else(|| {
            let text = format!("no such file of the page: {name:?}; the page is at /");
            ErrorResponse::new(StatusCode::NOT_FOUND, text)
        })
}

fn file(kind: &str, text: &'static str) -> Response {
    let kind = format!("{kind}; charset=utf-8");
    (HEADERS, [(header::CONTENT_TYPE, kind)], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the whole page, at most.
    const MOST: usize = 150 * 1024;

    #[test]
    fn the_page_is_small_and_takes_nothing_from_elsewhere() {
        let texts = || FILES.iter().map(|(_, _, text)| *text).chain([INDEX]);
        let size: usize = texts().map(str::len).sum();
        assert!(size <= MOST, "{size}");
        for text in texts() {
            // The one address is the name of SVG's namespace.
            let others = text.replace("http://www.w3.org/2000/svg", "");
            for forbidden in [
                "http://",
                "https://",
                "innerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!others.contains(forbidden), "{forbidden}");
            }
        }
        // The policy allows neither.
        assert!(!INDEX.contains("style=") && !INDEX.contains("<script>"));
    }

    #[test]
    fn the_page_names_files_that_there_are() {
        let mut named = 0;
        for part in INDEX.split("\"page/").skip(1) {
            let name = part.split('"').next().unwrap_or_default();
            assert!(FILES.iter().any(|(known, ..)| *known == name), "{name}");
            named += 1;
        }
        assert_eq!(named, FILES.len(), "each file once");
    }
}
