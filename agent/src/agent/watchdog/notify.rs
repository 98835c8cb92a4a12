//! The service manager's notifications, sd_notify(3): one datagram each.

use std::{
    env,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
};

/// Where the service manager listens, and what it is told.
#[derive(Debug)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
}

impl Notify {
    /// By `NOTIFY_SOCKET`; without one nothing is told.
    pub(super) fn find() -> Self {
        let to = env::var("NOTIFY_SOCKET").ok().and_then(|name| {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&name),
            };
            let socket = UnixDatagram::unbound().and_then(|socket| {
                // The manager may be the one that stands still.
                socket.set_nonblocking(true)?;
                Ok(socket)
            });
            match (socket, address) {
                (Ok(socket), Ok(address)) => Some((socket, address)),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(%error, "NOTIFY_SOCKET is {name}: the service manager is told nothing");
                    None
                }
            }
        });
        Self { to }
    }

    /// Tells the manager; `state` is `READY=1`, `WATCHDOG=1`, `STOPPING=1`.
    pub(super) fn tell(&self, state: &str) {
        if let Some((socket, address)) = &self.to
            && let Err(error) = socket.send_to_addr(state.as_bytes(), address)
        {
            tracing::debug!(%error, state, "not told the service manager");
        }
    }
}
