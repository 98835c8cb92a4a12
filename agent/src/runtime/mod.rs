//! The container runtime (containerd, CRI-O) over CRI v1: who is behind a container's cgroup, and how a pod
//! is taken down.
//!
//! ```text
//!  a container's cgroup appears ──> follow ──> client ──> the runtime's socket
//!                                     │                          ▲
//!                                     └──> Truth: names, sandbox │
//!  a pod was evicted ──> teardown ───────────────────────────────┘
//! ```
//!
//! Nothing here is ever in the way of a kill: the reactor works from what was told before.

mod client;
pub mod cri;
mod error;
mod follow;
mod teardown;
#[cfg(test)]
mod tests;
mod truth;

pub use client::Client;
pub use error::RuntimeError;
pub use follow::Follower;
pub use teardown::{TornDown, teardown};
pub use truth::{KnownContainer, Runtime, SANDBOX_NAME, Truth};
