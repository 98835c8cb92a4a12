//! Shared helpers: clocks, CPUs, watched directories, durable files, errors as text, heartbeats, pauses.

pub(crate) mod backoff;
pub mod clock;
pub mod cpus;
pub(crate) mod directory;
pub mod durable;
pub mod error;
pub mod found;
pub(crate) mod heartbeat;
