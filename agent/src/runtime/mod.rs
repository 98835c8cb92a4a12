//! The container runtime (containerd, CRI-O) over CRI v1: who is behind a container's cgroup, and how a pod
//! is taken down.
//!
//! ```text
//!  a container's cgroup appears ──> follow ──> client ──> the runtime's socket
//!                                     │                          ▲
//!                                     └──> RuntimeState: names, sandbox │
//!  a pod was evicted ──> teardown ───────────────────────────────┘
//! ```
//!
//! Nothing here is ever in the way of a kill: the reactor works from what was told before.

mod client;
pub mod cri;
mod error;
mod follow;
mod state;
mod teardown;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use error::RuntimeError;
pub use follow::Follower;
pub use state::{KnownContainer, Runtime, RuntimeState, SANDBOX_NAME};
pub use teardown::{TornDown, teardown};
