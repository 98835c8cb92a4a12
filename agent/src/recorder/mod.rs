//! The flight recorder: what led to an eviction or an OOM kill, kept past the agent's own end.
//!
//! ```text
//!  usage files ──> curves ─┐
//!  reactor ──> trace ──────┼──> flight ──> log (a file)  ──> history, after a restart
//!  exits, reports ─────────┘         └───> shelf (memory) ──> /v1/events/{id} ──> text, picture
//! ```
//!
//! Nothing here decides anything, and nothing waits for a disk but the log's own thread: what it cannot
//! take is dropped and counted.

pub mod log;
mod shelf;

pub use shelf::Shelf;
