//! Shared helpers: clocks, CPUs, durable files, errors as text, heartbeats, pauses.

pub(crate) mod backoff;
pub mod clock;
pub mod cpus;
pub mod durable;
pub mod error;
pub mod found;
pub(crate) mod heartbeat;
