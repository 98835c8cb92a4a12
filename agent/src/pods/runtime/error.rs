//! Errors of the container runtime's client.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use tonic::{Code, Status};

/// See the module's text. `method` is the gRPC path of the call.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The socket's path is none.
    #[error("containerRuntimeEndpoint is `{}`, which is no path that a socket can have", socket.display())]
    Address {
        /// As configured.
        socket: Arc<Path>,
        #[source]
        source: tonic::transport::Error,
    },
    /// No process accepts connections there, or the connection broke.
    #[error(
        "no connection to the container runtime at {} ({reason}): see that it runs and that \
         containerRuntimeEndpoint names its socket",
        socket.display()
    )]
    Unreachable { socket: Arc<Path>, reason: String },
    /// It took the call and said nothing.
    #[error(
        "the container runtime at {} has not answered {method} within {limit:?}: it hangs",
        socket.display()
    )]
    Timeout {
        socket: Arc<Path>,
        method: &'static str,
        /// How long it had.
        limit: Duration,
    },
    /// It has no such service.
    #[error(
        "the container runtime at {} does not speak CRI v1 ({reason}): containerd does from 1.6 \
         with its cri plugin (see disabled_plugins in its configuration), CRI-O from 1.20",
        socket.display()
    )]
    NoV1 { socket: Arc<Path>, reason: String },
    /// It refused, or answered what is no CRI.
    #[error("the container runtime answers {code:?} to {method}: {reason}")]
    Refused {
        method: &'static str,
        code: Code,
        reason: String,
    },
}

impl RuntimeError {
    /// Of a call that ended with `status`.
    pub(super) fn of(socket: &Arc<Path>, method: &'static str, status: &Status) -> Self {
        let reason = reason(status);
        let socket = Arc::clone(socket);
        match status.code() {
            Code::Unavailable => Self::Unreachable { socket, reason },
            _ if is_of_transport(status) => Self::Unreachable { socket, reason },
            Code::Unimplemented => Self::NoV1 { socket, reason },
            code => Self::Refused {
                method,
                code,
                reason,
            },
        }
    }

    /// The object does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                code: Code::NotFound,
                ..
            }
        )
    }
}

/// What caused it; nothing where the runtime itself has answered.
fn sources(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(status.source(), |error: &&(dyn Error + 'static)| {
        (*error).source()
    })
}

/// Tonic gives a connection that broke the code `Unknown`.
fn is_of_transport(status: &Status) -> bool {
    sources(status).any(<dyn Error>::is::<tonic::transport::Error>)
}

/// The message with what caused it: a transport's message alone is "transport error".
fn reason(status: &Status) -> String {
    let mut text = status.message().to_owned();
    for error in sources(status) {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
    }
    text
}
