//! Co-location: latency-critical pods and best-effort pods on one machine.
//!
//! The names and laws are Koordinator's (commit a7a1b76b, 2026-07-24); where podwarden differs on purpose,
//! `deploy/docs/differences.md` says so. Amounts are integers: milli-CPUs, microseconds, percent.

pub mod batch_pod;
pub mod burst;
pub mod class;
pub mod evict_cpu;
pub mod hold;
pub mod memory_evict;
pub mod predict;
pub mod proactive;
pub mod reclaimed;
pub mod resctrl;
pub mod strategies;
pub mod suppress;
