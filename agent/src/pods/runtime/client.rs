//! CRI v1 over the runtime's unix socket. Every call has a limit; a connection that broke is made again
//! with the next call.

use std::{path::Path, sync::Arc, time::Duration};

use axum::http::uri::PathAndQuery;
use prost::Message;
use tonic::{
    Request, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    cri::{
        Container, KUBELET_API_VERSION, ListContainersRequest, ListContainersResponse,
        ListPodSandboxRequest, ListPodSandboxResponse, Nothing, PodSandbox, StopContainerRequest,
        StopPodSandboxRequest, VersionRequest, VersionResponse, method,
    },
    error::RuntimeError,
};

/// How long a runtime may take to answer a query.
const ASKING: Duration = Duration::from_secs(10);

/// How long it may take to stop something, beyond the grace period: the kubelet's
/// `runtimeRequestTimeout` (`pkg/kubelet/apis/config/v1beta1/defaults.go`).
const STOPPING: Duration = Duration::from_secs(120);

/// The largest answer that is read, the kubelet's `maxMsgSize` (cri-client `pkg/remote_runtime.go`): some
/// ten thousand containers.
const LARGEST: usize = 16 << 20;

/// A connection to a runtime, or what will be one; clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    socket: Arc<Path>,
    channel: Channel,
    asking: Duration,
}

impl Client {
    /// For the runtime at this socket; nothing is connected yet. Call it inside a tokio runtime.
    pub fn new(socket: &Path) -> Result<Self, RuntimeError> {
        let shared: Arc<Path> = Arc::from(socket);
        match Endpoint::from_shared(format!("unix://{}", socket.display())) {
            Ok(endpoint) => Ok(Self {
                channel: endpoint.connect_lazy(),
                socket: shared,
                asking: ASKING,
            }),
            Err(source) => Err(RuntimeError::Address {
                socket: shared,
                source,
            }),
        }
    }

    /// With another limit for queries.
    #[cfg(test)]
    pub(super) fn asking_for(self, asking: Duration) -> Self {
        Self { asking, ..self }
    }

    /// Where the runtime is.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// One call. `method` is a gRPC path such as those in [`method`]. [`RuntimeError::Timeout`] when no answer came
    /// within `limit`, also when there was no connection by then.
    pub async fn call<Q, A>(
        &self,
        method: &'static str,
        request: Q,
        limit: Duration,
    ) -> Result<A, RuntimeError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST);
        let call = async {
            grpc.ready()
                .await
                .map_err(|error| Status::from_error(Box::new(error)))?;
            let codec = ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(method);
            grpc.unary(Request::new(request), path, codec).await
        };
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(RuntimeError::of(&self.socket, method, &status)),
            Err(_) => Err(RuntimeError::Timeout {
                socket: Arc::clone(&self.socket),
                method,
                limit,
            }),
        }
    }

    /// The runtime's name and version.
    pub async fn version(&self) -> Result<VersionResponse, RuntimeError> {
        let version = KUBELET_API_VERSION.to_owned();
        self.call(method::VERSION, VersionRequest { version }, self.asking)
            .await
    }

    /// All sandboxes, also those that have ended and were not removed.
    pub async fn sandboxes(&self) -> Result<Vec<PodSandbox>, RuntimeError> {
        let request = ListPodSandboxRequest {};
        let answer: ListPodSandboxResponse = self
            .call(method::LIST_POD_SANDBOX, request, self.asking)
            .await?;
        Ok(answer.items)
    }

    /// All containers but the sandboxes', also those that have ended and were not removed.
    pub async fn containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let request = ListContainersRequest {};
        let answer: ListContainersResponse = self
            .call(method::LIST_CONTAINERS, request, self.asking)
            .await?;
        Ok(answer.containers)
    }

    /// Ends a container: SIGTERM, then SIGKILL after `grace` (in whole seconds, at least that long). One that is gone is a
    /// success. After an error it may end all the same.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), RuntimeError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout: i64::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i64::MAX),
        };
        let limit = grace.saturating_add(STOPPING);
        gone_is_fine(self.call(method::STOP_CONTAINER, request, limit).await)
    }

    /// Ends a sandbox and what is in it, and has its network taken down. One that is gone is a success. After an error
    /// it may have ended all the same, with its network or without.
    pub async fn stop_sandbox(&self, id: &str) -> Result<(), RuntimeError> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: id.to_owned(),
        };
        gone_is_fine(self.call(method::STOP_POD_SANDBOX, request, STOPPING).await)
    }
}

fn gone_is_fine(answer: Result<Nothing, RuntimeError>) -> Result<(), RuntimeError> {
    match answer {
        Ok(Nothing {}) => Ok(()),
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
    }
}
