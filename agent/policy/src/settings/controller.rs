//! The controllers of the kernel.

use core::fmt;

/// The controllers that podwarden uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Controller {
    /// CPU time: shares or weight, quota.
    Cpu,
    /// CPU accounting; v1 only, v2 accounts CPU without a controller.
    CpuAcct,
    /// CPUs and memory nodes.
    CpuSet,
    /// Memory.
    Memory,
    /// Number of tasks.
    Pids,
    /// Freezer; v1 only, v2 freezes without a controller.
    Freezer,
    /// Huge pages.
    HugeTlb,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cpu,
        Self::CpuAcct,
        Self::CpuSet,
        Self::Memory,
        Self::Pids,
        Self::Freezer,
        Self::HugeTlb,
    ];

    /// The kernel's name, in v1 mount options and in v2 `cgroup.controllers`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::CpuAcct => "cpuacct",
            Self::CpuSet => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::HugeTlb => "hugetlb",
        }
    }

    /// The controller of that name; `None` for those that podwarden does not use.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == name)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
