//! What a TCP listener answers. A unix socket is its owner's; a port of loopback is open to every process of the
//! machine, and to a browser on it whose page has a name that resolves to loopback (DNS rebinding).

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hyper::body::Body as _;

use super::api::ErrorResponse;

/// Paths that a TCP listener always has.
const PATHS: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// What clients of a TCP listener may ask for, and by which names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// `/v1` as well.
    pub api: bool,
    /// Names in the `Host` header beside `localhost`, loopback addresses and the listener's own.
    pub hosts: Vec<String>,
}

impl Reach {
    /// True for a host without its port that means this listener on `address`.
    fn is_ours(&self, host: &str, address: IpAddr) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return ip.is_loopback() || ip == address;
        }
        let mut names = self.hosts.iter().map(String::as_str).chain(["localhost"]);
        names.any(|name| name.eq_ignore_ascii_case(bare))
    }
}

/// Refuses what a TCP listener does not answer.
pub(super) async fn check_tcp(
    State((reach, address)): State<(std::sync::Arc<Reach>, IpAddr)>,
    request: Request,
    next: Next,
) -> Response {
    let header = request.headers().get(header::HOST);
    let header = header.map(|host| host.to_str().unwrap_or_default());
    let target = request.uri().authority().map(Authority::as_str);
    let named = |text: &str| {
        let host = text.parse::<Authority>();
        host.is_ok_and(|host| reach.is_ours(host.host(), address))
    };
    if header.is_none() || !header.into_iter().chain(target).all(named) {
        let text = format!(
            "Host {:?} is not a name of this listener; use localhost or its address, or add the name to listenHosts",
            header.unwrap_or_default()
        );
        return ErrorResponse::new(StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    let path = request.uri().path();
    if !reach.api && !PATHS.contains(&path) {
        let text = format!(
            "{path} is answered on the unix socket (apiSocket); this address has {} unless listenApi is true",
            PATHS.join(", ")
        );
        return ErrorResponse::new(StatusCode::FORBIDDEN, text).into_response();
    }
    next.run(request).await
}

/// Refuses requests with a body: no path takes one.
pub(super) async fn refuse_bodies(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let text = "the API takes no request with a body; use GET without one";
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_listener_are_its_address_loopback_and_what_is_configured() {
        let reach = Reach {
            hosts: vec!["Node-1.example".to_owned()],
            ..Reach::default()
        };
        let address = IpAddr::from([127, 0, 0, 2]);
        for host in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
            "node-1.example",
        ] {
            assert!(reach.is_ours(host, address), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "127.0.0.1.nip.io",
        ] {
            assert!(!reach.is_ours(host, address), "{host}");
        }
        assert!(reach.is_ours("10.0.0.1", IpAddr::from([10, 0, 0, 1])));
    }
}
