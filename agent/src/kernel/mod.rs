//! Everything that touches the kernel programs: what this kernel can do, loading, records, figures.

pub(crate) mod accounts;
pub(crate) mod btf;
pub mod casts;
pub(crate) mod events;
pub(crate) mod hooks;
pub(crate) mod levels;
pub(crate) mod loader;
pub mod pins;
pub(crate) mod realtime;
mod refusal;
mod resident;
pub mod size;
pub(crate) mod support;
mod sys;
pub(crate) mod urgent;
pub(crate) mod waits;
pub mod walk;
mod wire;
