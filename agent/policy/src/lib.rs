//! Every decision of podwarden, and nothing else: no clock, no IO, no floats.
//!
//! ```text
//! Pod, Node ── qos ── limits ── reserve ──┐
//!                                         ├── plan(Snapshot) ── Vec<Action>, each with its Reason
//! usage ── threshold ── pressure ── evict ─┘
//! ```
//!
//! The rules are the kubelet's; where podwarden differs on purpose, `deploy/docs/differences.md` says so and
//! why. The same input gives the same output, in the same order, on every machine.
//!
//! Builds without an operating system and without floats; the one curve that needs a logarithm is
//! computed in fixed point ([`convert::shares_to_weight_log`]).
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![deny(
    clippy::float_arithmetic,
    clippy::float_cmp,
    clippy::lossy_float_literal
)]

extern crate alloc;

#[macro_use]
mod names;

pub mod colocation;
pub mod container;
pub mod converge;
pub mod convert;
mod defaults;
pub mod desired;
pub mod drift;
pub mod evict;
pub mod headroom;
pub mod limits;
pub mod model;
pub mod name;
pub mod plan;
pub mod pressure;
pub mod promise;
pub mod qos;
pub mod quantity;
pub mod reason;
pub mod reserve;
pub mod settings;
pub mod signal;
pub mod snapshot;
pub mod threshold;
mod uid;
pub mod units;
pub mod validate;
pub mod worth;

pub use model::{Container, ContainerKind, Node, Pod, PodUid, QosClass, Reclaimed, Resources};
pub use units::{Bytes, CpuShares, CpuWeight, MilliCpu};
