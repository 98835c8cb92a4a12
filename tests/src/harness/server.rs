//! A server on the loopback, with threads of its own: cut off at once when it stops or goes away, and back
//! on its port when it is started again.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use super::wait::eventually;

const BACKLOG: u32 = 128;
const STARTING: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    /// Bound to the port and never listening: while the server is stopped, no connection of another process gets
    /// the port as its own.
    port: Option<TcpSocket>,
    /// `None` while it is stopped.
    runtime: Option<Runtime>,
}

impl Server {
    /// One that is stopped; it gets a free port when it is first started.
    pub(crate) fn stopped() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            port: None,
            runtime: None,
        }
    }

    /// Where it is, once it was started.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has `serve` run on its port, after what ran there has been stopped.
    pub(crate) fn start<F>(
        &mut self,
        serve: impl FnOnce(tokio::net::TcpListener) -> F,
    ) -> Result<()>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        self.stop();
        if self.port.is_none() {
            let port = bound(self.address).context("find a port of the loopback")?;
            self.address = port.local_addr()?;
            self.port = Some(port);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = {
            let _within = runtime.enter();
            // A process that is being started holds what was open here until it executes its program.
            eventually(STARTING, || Ok(bound(self.address)?.listen(BACKLOG)?))
                .context("listen on the loopback")?
        };
        runtime.spawn(serve(listener));
        self.runtime = Some(runtime);
        Ok(())
    }

    /// Ends it as a crash does: every connection is cut.
    pub(crate) fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
