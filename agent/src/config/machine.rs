//! What the machine has, where the configuration does not say otherwise.

use std::{io, thread};

use podwarden_policy::{Bytes, MilliCpu};

const MEMINFO: &str = "/proc/meminfo";

/// The machine's capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that this process may use.
    pub cpu: MilliCpu,
    /// `MemTotal`.
    pub memory: Bytes,
    /// `SwapTotal`; zero without swap.
    pub swap: Bytes,
}

/// Why the machine's capacity is not known.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The kernel did not tell.
    #[error("reading {0}")]
    Read(&'static str, #[source] io::Error),
    /// A line is not there.
    #[error("{MEMINFO} has no {0}; set capacity.memory in the configuration")]
    Missing(&'static str),
}

impl Machine {
    /// Asks the kernel.
    ///
    /// # Errors
    /// [`MachineError`] without a readable `/proc/meminfo`.
    pub fn probe() -> Result<Self, MachineError> {
        let text = std::fs::read_to_string(MEMINFO).map_err(|e| MachineError::Read(MEMINFO, e))?;
        let cpus = thread::available_parallelism()
            .map_err(|e| MachineError::Read("the CPUs of this process", e))?;
        Ok(Self {
            cpu: MilliCpu((cpus.get() as u64).saturating_mul(1000)),
            memory: meminfo(&text, "MemTotal").ok_or(MachineError::Missing("MemTotal"))?,
            swap: meminfo(&text, "SwapTotal").unwrap_or_default(),
        })
    }
}

/// A line of `/proc/meminfo` (proc(5)); its `kB` are 1024 bytes.
pub(super) fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}
