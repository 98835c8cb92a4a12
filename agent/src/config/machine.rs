//! The machine's size, where the configuration does not set it.

use std::{collections::BTreeMap, io, path::Path};

use podwarden_policy::{Bytes, MilliCpu, settings::table};

use crate::base::cpus;

const MEMINFO: &str = "/proc/meminfo";
/// One directory for each page size (`Documentation/admin-guide/mm/hugetlbpage.rst` of the kernel).
const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";
/// The kubelet's `--root-dir`.
const KUBELET: &str = "/var/lib/kubelet";

/// The machine's capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that are online, whichever of them this process may use.
    pub cpu: MilliCpu,
    /// `MemTotal`.
    pub memory: Bytes,
    /// `SwapTotal`; zero without swap.
    pub swap: Bytes,
    /// Process ids: the lesser of `kernel.pid_max` and `kernel.threads-max`; `None` where they
    /// cannot be read.
    pub pids: Option<u64>,
    /// Huge pages: every page size of this kernel to what there is of it.
    pub hugepages: BTreeMap<Bytes, Bytes>,
    /// Size of the file system of the kubelet's directory, where pods' local storage is; `None`
    /// without one.
    pub ephemeral_storage: Option<Bytes>,
}

/// Why the machine's capacity is not known.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// The kernel does not show it.
    #[error("reading {0}")]
    Read(&'static str, #[source] io::Error),
    /// A line is not there.
    #[error("{MEMINFO} has no {0}; set capacity.memory in the configuration")]
    Missing(&'static str),
}

impl Machine {
    /// Asks the kernel.
    pub fn probe() -> Result<Self, MachineError> {
        let text = std::fs::read_to_string(MEMINFO).map_err(|e| MachineError::Read(MEMINFO, e))?;
        Ok(Self {
            cpu: MilliCpu(u64::from(cpus::online()).saturating_mul(1000)),
            memory: meminfo(&text, "MemTotal").ok_or(MachineError::Missing("MemTotal"))?,
            swap: meminfo(&text, "SwapTotal").unwrap_or_default(),
            pids: pids(),
            hugepages: hugepages(Path::new(HUGEPAGES)),
            ephemeral_storage: nix::sys::statvfs::statvfs(KUBELET)
                .ok()
                .map(|fs| Bytes(fs.blocks().saturating_mul(fs.fragment_size()))),
        })
    }
}

impl Machine {
    /// Memory that is set aside as huge pages, bytes.
    pub fn hugepages_total(&self) -> Bytes {
        let sizes = self.hugepages.values();
        sizes.fold(Bytes::ZERO, |sum, size| sum.saturating_add(*size))
    }
}

/// As the kubelet counts them (`Stats` of `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`).
fn pids() -> Option<u64> {
    let read = |name| -> Option<u64> {
        let text = std::fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?;
        text.trim().parse().ok()
    };
    [read("pid_max"), read("threads-max")]
        .into_iter()
        .flatten()
        .min()
}

/// Every page size with the pages there are of it; empty on a kernel without huge pages.
pub(super) fn hugepages(directory: &Path) -> BTreeMap<Bytes, Bytes> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return BTreeMap::new();
    };
    let sizes = entries.flatten().filter_map(|entry| {
        let size = table::size_of_pages(entry.file_name().to_str()?)?;
        let pages = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        let pages: u64 = pages.trim().parse().ok()?;
        Some((size, Bytes(size.0.saturating_mul(pages))))
    });
    sizes.collect()
}

/// The machine's memory that is not available; `None` where `/proc/meminfo` is not as proc(5) has it.
pub(crate) fn memory_used() -> Option<Bytes> {
    let text = std::fs::read_to_string(MEMINFO).ok()?;
    let of = |key| meminfo(&text, key);
    Some(of("MemTotal")?.saturating_sub(of("MemAvailable")?))
}

/// A line of `/proc/meminfo` (proc(5)); its `kB` are 1024 bytes.
pub(crate) fn meminfo(text: &str, key: &str) -> Option<Bytes> {
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}
