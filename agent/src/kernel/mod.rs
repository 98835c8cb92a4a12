//! Everything that touches the kernel programs: what this kernel can do, loading, records, figures.

pub mod accounts;
pub mod btf;
pub mod events;
pub mod levels;
pub mod loader;
pub mod pins;
pub mod realtime;
pub mod support;
