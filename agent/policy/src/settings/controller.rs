//! The controllers of the kernel.

crate::names! {
    /// The controllers that podwarden uses.
    pub enum Controller {
        /// CPU time: shares or weight, quota.
        Cpu = "cpu",
        /// CPU accounting; v1 only, v2 accounts CPU without a controller.
        CpuAcct = "cpuacct",
        /// CPUs and memory nodes.
        CpuSet = "cpuset",
        /// Memory.
        Memory = "memory",
        /// Number of tasks.
        Pids = "pids",
        /// Freezer; v1 only, v2 freezes without a controller.
        Freezer = "freezer",
        /// Huge pages.
        HugeTlb = "hugetlb",
    }
}

impl Controller {
    /// The controller of that name; `None` for those that podwarden does not use.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.as_str() == name)
    }
}
