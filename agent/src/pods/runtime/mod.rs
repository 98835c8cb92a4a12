//! The container runtime (containerd, CRI-O) over CRI v1: the container behind a cgroup, and the teardown of pods.
//!
//! ```text
//!  a container's cgroup appears ──> follow ──> client ──> the runtime's socket
//!                                     │                          ▲
//!                                     └──> RuntimeState: names, sandbox │
//!  a pod was evicted ──> teardown ───────────────────────────────┘
//! ```
//!
//! No kill waits for the runtime: the reactor works from earlier answers.

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
pub use follow::{Follower, Names};
pub use state::{KnownContainer, Runtime, RuntimeState, SANDBOX_NAME};
pub use teardown::{TornDown, teardown, until_removed};
