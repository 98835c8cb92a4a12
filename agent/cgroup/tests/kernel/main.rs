//! The crate against the cgroups of this machine's own kernel, below a private root.

mod events;
mod kill;
mod limits;
mod lock;
mod no_alloc;
mod readers;
mod support;
mod tree;
mod writes;
