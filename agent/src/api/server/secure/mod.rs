//! The listener that other machines reach: TLS, and answers for clients that the API server knows and lets in.
//!
//! | module | purpose |
//! |---|---|
//! | `certificate` | the certificate that is shown: of files, read again as they change, or made at the start |
//! | `gate` | a request's token and path -> let in, 401, 403 or 503 |
//! | `reviews` | what the API server is asked: TokenReview, SubjectAccessReview |
//! | `recent` | answers that hold for a while; values only |

mod certificate;
mod gate;
mod recent;
mod reviews;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, middleware};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring},
    server::TlsStream,
};

use self::{certificate::Certificates, gate::Gate, reviews::Reviews};
use super::{HttpError, Limits, closed, connections, listen::Tcp};
use crate::{
    api::published::Published,
    config::{ReviewTtls, TlsFiles},
    pods::Apiserver,
};

/// Where other machines reach the API, and who is asked about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecureListen {
    /// Any address.
    pub address: SocketAddr,
    /// Certificate and key, PEM; `None` for a certificate that this agent signs itself.
    pub files: Option<TlsFiles>,
    /// How long the API server's answers about a client hold.
    pub ttls: ReviewTtls,
    /// The name in a certificate of its own.
    pub node_name: String,
    /// Reviews tokens and rights; where there is none, only health is answered.
    pub apiserver: Option<Apiserver>,
}

/// An open listener.
#[derive(Debug)]
pub(super) struct Secure {
    tcp: Tcp,
    tls: Tls,
    certificates: Arc<Certificates>,
    apiserver: Option<Apiserver>,
    ttls: ReviewTtls,
}

impl Secure {
    pub(super) async fn open(listen: &SecureListen) -> Result<Self, HttpError> {
        let certificates = Arc::new(Certificates::new(listen.files.clone(), &listen.node_name)?);
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(HttpError::Tls)?;
        let mut config = config
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&certificates) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            tcp: Tcp::bind(listen.address).await,
            tls: Tls(TlsAcceptor::from(Arc::new(config))),
            certificates,
            apiserver: listen.apiserver.clone(),
            ttls: listen.ttls,
        })
    }

    /// Answers until the server is to end. `api` lets clients have `/v1` and the page as well.
    pub(super) async fn serve(
        self,
        app: Router,
        api: bool,
        limits: Limits,
        published: Arc<Published>,
        closing: watch::Receiver<bool>,
    ) {
        let reviews = Reviews::new(self.apiserver, self.ttls, &published);
        let gate = Arc::new(Gate::new(api, reviews));
        let app = app.layer(middleware::from_fn_with_state(gate, gate::check));
        let certificates = self.certificates.follow(&published);
        let serving = async {
            let opened = tokio::select! {
                () = closed(closing.clone()) => return,
                opened = self.tcp.open(&published, KEY, LOST) => opened,
            };
            let tls = Some(self.tls);
            connections::serve(opened.listener, tls, app, limits, closing.clone()).await;
        };
        tokio::select! {
            () = serving => {}
            never = certificates => match never {},
        }
    }
}

/// The configuration's key.
const KEY: &str = "secureListen";
/// What is missing while the address is taken.
const LOST: &str = "other machines get no answer";

/// The server's side of TLS.
#[derive(Clone)]
pub(super) struct Tls(TlsAcceptor);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// The connection once both sides agree; `None` where they do not within `time`.
    pub(super) async fn accept<I>(self, io: I, time: Duration) -> Option<TlsStream<I>>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        tokio::time::timeout(time, self.0.accept(io))
            .await
            .ok()?
            .ok()
    }
}
