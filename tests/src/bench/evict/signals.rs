//! When the kernel sent which signal to a process of the victim: the tracepoint
//! `signal:signal_generate`.

use anyhow::Result;
use workload::VICTIM_NAMES;

use super::super::trace::Trace;

/// A signal that ends a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub(super) nanos: u64,
    /// The sender's `comm`.
    pub(super) by: String,
}

/// The trace of them.
#[derive(Debug)]
pub(super) struct Signals(Trace);

impl Signals {
    /// Turns the tracepoint on for SIGTERM and SIGKILL to the victim.
    pub(super) fn start() -> Result<Self> {
        let trace = Trace::start()?;
        let names = VICTIM_NAMES.map(|name| format!("comm == \"{name}\""));
        let filter = format!("(sig == 9 || sig == 15) && ({})", names.join(" || "));
        trace.enable("signal/signal_generate", &filter)?;
        Ok(Self(trace))
    }

    /// Forgets what was.
    pub(super) fn clear(&self) -> Result<()> {
        self.0.clear()
    }

    /// Everything since [`Signals::clear`], in order of time.
    pub(super) fn read(&self) -> Result<Vec<Sent>> {
        let entries = self.0.read()?.into_iter();
        let sent = entries.map(|entry| Sent {
            nanos: entry.nanos,
            by: entry.by,
        });
        Ok(sent.collect())
    }
}
