//! A stand-in for the kubelet's API: `/pods`, as it answers, over TLS with a certificate that it signed
//! itself and a bearer token.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::serve::Listener;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use tokio_rustls::server::TlsStream;

use crate::harness::Server;

/// What it knows.
#[derive(Debug, Default)]
struct Known {
    token: String,
    pods: Vec<Value>,
    asked: u64,
}

/// A running server; its socket is closed when it goes away.
#[derive(Debug)]
pub(crate) struct Kubelet {
    known: Arc<Mutex<Known>>,
    server: Server,
    /// Both certificates, as a kubelet writes them into its `kubelet.crt`.
    certificates: String,
}

impl Kubelet {
    /// Starts it on a free port of the loopback; its certificate is for `name`.
    pub(crate) fn start(name: &str, token: &str) -> Result<Self> {
        let known = Known {
            token: token.to_owned(),
            ..Known::default()
        };
        let mut kubelet = Self {
            known: Arc::new(Mutex::new(known)),
            server: Server::stopped(),
            certificates: String::new(),
        };
        kubelet.renew(name)?;
        Ok(kubelet)
    }

    /// Starts it anew on its port, with a certificate of another signer.
    pub(crate) fn renew(&mut self, name: &str) -> Result<()> {
        let (tls, certificates) = tls(name)?;
        let router = Router::new().fallback(answer);
        let router = router.with_state(Arc::clone(&self.known));
        let serve = |listener| async move { axum::serve(Tls { listener, tls }, router).await };
        self.server.start(serve).context("serve as a kubelet")?;
        self.certificates = certificates;
        Ok(())
    }

    /// Where it is.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.server.address())
    }

    /// Its certificate and that of who signed it, PEM.
    pub(crate) fn certificates(&self) -> &str {
        &self.certificates
    }

    /// From now on this token is taken, and no other.
    pub(crate) fn take_token(&self, token: &str) {
        token.clone_into(&mut self.known().token);
    }

    /// It runs these pods.
    pub(crate) fn run(&self, pods: Vec<Value>) {
        self.known().pods = pods;
    }

    /// How often it was asked for its pods.
    pub(crate) fn asked(&self) -> u64 {
        self.known().asked
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As kubelet `pkg/kubelet/server/server.go` (`getPods`) and `auth.go` have it.
async fn answer(State(known): State<Arc<Mutex<Known>>>, request: Request) -> Response {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if given != Some(&known.token) {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    }
    if request.method() != "GET" || !matches!(request.uri().path(), "/pods" | "/pods/") {
        return StatusCode::NOT_FOUND.into_response();
    }
    known.asked += 1;
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": known.pods});
    let headers = [(header::CONTENT_TYPE, "application/json")];
    (headers, list.to_string()).into_response()
}

/// A certificate for `name`, signed by one of its own
/// (`GenerateSelfSignedCertKey` of client-go `util/cert/cert.go`).
fn tls(name: &str) -> Result<(TlsAcceptor, String)> {
    let signer_key = KeyPair::generate()?;
    let mut signer = CertificateParams::new(Vec::new())?;
    signer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signed_itself = signer.self_signed(&signer_key)?;
    let issuer = Issuer::new(signer, signer_key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &issuer)?;
    let chain = vec![certificate.der().clone(), signed_itself.der().clone()];
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key.into())?;
    let pem = certificate.pem() + &signed_itself.pem();
    Ok((TlsAcceptor::from(Arc::new(config)), pem))
}

struct Tls {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.listener).await;
            // Who does not like our certificate goes.
            if let Ok(stream) = self.tls.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
