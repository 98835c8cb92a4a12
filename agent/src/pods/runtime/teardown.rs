//! Takes a pod down through the runtime: its containers first, then its sandboxes, so that CNI DEL sees the
//! network namespace. Idempotent: a kubelet may do the same meanwhile.

use std::time::Duration;

use futures_util::future::join_all;

use super::{
    client::Client,
    cri::{ContainerState, SandboxState},
    error::RuntimeError,
    state::{uid_of_container, uid_of_sandbox},
};

/// Between the first two looks at a pod that a kubelet is to end; twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// The longest.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// What was stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TornDown {
    /// Containers that had not ended.
    pub containers: usize,
    /// Sandboxes that were ready.
    pub ready: usize,
    /// Sandboxes that had ended and were not removed.
    pub not_ready: usize,
}

/// Waits until a kubelet has seen that a pod was evicted, which it shows by removing the pod's dead containers
/// (`HandlePodReconcile` of `pkg/kubelet/kubelet.go`); for `longest` at most. What is stopped before that
/// the kubelet would start again.
pub async fn until_removed(
    client: &Client,
    uid: &str,
    longest: Duration,
) -> Result<(), RuntimeError> {
    let end = tokio::time::Instant::now() + longest;
    let mut pause = FIRST_LOOK;
    loop {
        let all = client.containers().await?;
        let sandboxes = client.sandboxes().await?;
        let mut own = all
            .iter()
            .filter(|container| uid_of_container(container, &sandboxes) == Some(uid));
        if own.next().is_none() || tokio::time::Instant::now() >= end {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LAST_LOOK);
    }
}

/// Stops every container of a pod, with `grace` between SIGTERM and SIGKILL (0 for what was evicted), then
/// every sandbox of it. To be called again until it succeeds. A pod that the runtime does not know is torn
/// down. No sandbox is stopped while a container of the pod could not be: it may still use the network.
pub async fn teardown(
    client: &Client,
    uid: &str,
    grace: Duration,
) -> Result<TornDown, RuntimeError> {
    let all = client.containers().await?;
    let sandboxes = client.sandboxes().await?;
    let running: Vec<_> = all
        .iter()
        .filter(|container| uid_of_container(container, &sandboxes) == Some(uid))
        .filter(|container| container.state != ContainerState::Exited as i32)
        .collect();
    let stops = running
        .iter()
        .map(|container| client.stop_container(&container.id, grace));
    for stopped in join_all(stops).await {
        stopped?;
    }
    let mut done = TornDown {
        containers: running.len(),
        ..TornDown::default()
    };
    // Also one that is not ready any more: its process may have died by itself, its network has not.
    let own = sandboxes
        .iter()
        .filter(|sandbox| uid_of_sandbox(sandbox) == Some(uid));
    for sandbox in own {
        client.stop_sandbox(&sandbox.id).await?;
        match sandbox.state == SandboxState::Ready as i32 {
            true => done.ready += 1,
            false => done.not_ready += 1,
        }
    }
    Ok(done)
}
