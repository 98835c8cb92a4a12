//! Errors of the listeners.

use std::{io, net::SocketAddr, path::PathBuf};

/// A listener that could not be opened or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The API has no authentication, so it stays on this machine by default.
    #[error(
        "listen {addr}: not a loopback address, and this listener has no authentication; use \
         127.0.0.1:{port}, or secureListen for other machines",
        port = addr.port()
    )]
    NotLoopback {
        /// The configured address.
        addr: SocketAddr,
    },
    /// Another process answers on the socket.
    #[error(
        "{}: another process answers on this socket; stop it or choose another path",
        path.display()
    )]
    InUse { path: PathBuf },
    /// There is a file of another kind where the socket should be.
    #[error(
        "{}: exists and is not a socket, so it is left alone; remove it or choose another path",
        path.display()
    )]
    NotASocket { path: PathBuf },
    /// The unix socket could not be opened.
    #[error("{operation} {}", path.display())]
    Unix {
        operation: &'static str,
        /// The socket or its directory.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The agent can make no certificate of its own.
    #[error("secureListen: make a certificate; or set tlsCertFile and tlsPrivateKeyFile")]
    SelfSigned(#[source] rcgen::Error),
    /// TLS takes no certificate of the agent's own.
    #[error("secureListen: set up TLS")]
    Tls(#[source] tokio_rustls::rustls::Error),
    /// There is no thread or runtime for the server.
    #[error("start the API's thread")]
    Thread(#[source] io::Error),
    /// The server ended by itself.
    #[error("serve the API")]
    Serve {
        #[source]
        source: io::Error,
    },
}
