//! The address of the running agent, for subcommands that read its API.

use std::{net::SocketAddr, path::PathBuf};

use crate::{
    api::client::{Client, Endpoint},
    config::DEFAULT_API_SOCKET,
};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Connect {
    /// Unix socket of the agent
    #[arg(long, value_name = "PATH", default_value = DEFAULT_API_SOCKET)]
    api_socket: PathBuf,
    /// TCP address of the agent, instead of the socket
    #[arg(long, value_name = "ADDR", value_parser = address, conflicts_with = "api_socket")]
    server: Option<SocketAddr>,
}

/// The value of an option that is an address.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse::<SocketAddr>();
    address
        .map_err(|error| format!("{error}; write an IP address and a port such as 127.0.0.1:9595"))
}

impl Connect {
    pub(crate) fn client(&self) -> Client {
        Client::new(match self.server {
            Some(addr) => Endpoint::Tcp(addr),
            None => Endpoint::Unix(self.api_socket.clone()),
        })
    }
}
