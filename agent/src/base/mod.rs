//! Shared helpers: clocks, durable files, errors as text, pauses.

pub(crate) mod backoff;
pub mod clock;
pub mod durable;
pub mod error;
