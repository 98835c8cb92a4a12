//! Shared helpers: clocks, CPUs, watched directories, durable files, errors as text, heartbeats, pauses, bells,
//! threads and tasks.

pub(crate) mod backoff;
pub(crate) mod bell;
pub mod clock;
pub mod cpus;
pub(crate) mod directory;
pub mod durable;
pub mod error;
pub mod found;
pub(crate) mod heartbeat;
pub(crate) mod worker;
