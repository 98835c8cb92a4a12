//! The same for code that is not async: tests and tools.

use std::future::Future;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::{Client, ClientError, Endpoint};

/// See [`Client::get`]. Not for use inside an async runtime: it would block it.
pub fn get<T: DeserializeOwned>(endpoint: &Endpoint, path: &str) -> Result<T, ClientError> {
    let client = Client::new(endpoint.clone());
    run(endpoint, client.get(path))
}

/// See [`Client::get_bytes`]. Not for use inside an async runtime: it would block it.
pub fn get_bytes(endpoint: &Endpoint, path: &str) -> Result<Bytes, ClientError> {
    let client = Client::new(endpoint.clone());
    run(endpoint, client.get_bytes(path))
}

fn run<T>(
    endpoint: &Endpoint,
    request: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| ClientError::Connect {
            endpoint: endpoint.clone(),
            source,
        })?
        .block_on(request)
}
