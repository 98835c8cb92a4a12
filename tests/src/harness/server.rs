//! A server on the loopback, with threads of its own: cut off at once when it stops or goes away, and back
//! on its port when it is started again.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::runtime::Runtime;

/// See the module.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    /// `None` while it is stopped.
    runtime: Option<Runtime>,
}

impl Server {
    /// One that is stopped; it gets a free port when it is first started.
    pub(crate) fn stopped() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
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
        let listener = TcpListener::bind(self.address).context("listen on the loopback")?;
        listener.set_nonblocking(true)?;
        self.address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = {
            let _within = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
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

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}
