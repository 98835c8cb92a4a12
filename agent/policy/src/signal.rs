//! What eviction watches, where, and what notices it: the words that configuration, reactor, flight recorder,
//! status texts and API share. Each name is written here alone.

use derive_more::Display;

use crate::{
    model::QosClass,
    units::{Bytes, MilliCpu},
};

words! {
    /// What is watched. The order is that in which thresholds are acted on. The first two, and that of process ids,
    /// are the kubelet's
    /// (`pkg/kubelet/eviction/api/types.go`).
    #[derive(Default)]
    pub enum Signal {
        /// Memory left to pods below the limit of `kubepods`.
        #[default]
        AllocatableMemoryAvailable = "allocatableMemory.available",
        /// Memory left on the node: capacity minus the working set of the root.
        MemoryAvailable = "memory.available",
        /// Tasks that wait for memory (PSI).
        MemoryPressure = "memory.pressure",
        /// Memory left to a tier below the limit that `qosReserved` sets.
        QosReservedMemory = "qosReserved.memory",
        /// A cgroup at its hard limit, where the kernel's OOM killer acts.
        MemoryLimit = "memory.limit",
        /// Process ids left on the node or to its pods; the kubelet's as well.
        PidAvailable = "pid.available",
        /// CPU of best-effort pods, see [`crate::colocation::evict_cpu`].
        BestEffortCpu = "bestEffort.cpu",
        /// Memory that batch pods request of what the node has to spare, see [`crate::colocation::memory_evict`].
        BatchMemory = "batch.memory",
    }
}

/// A count with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display)]
pub enum Amount {
    /// Bytes of memory.
    Memory(Bytes),
    /// Processes and threads.
    #[display("{_0} process{}", if *_0 == 1 { "" } else { "es" })]
    Processes(u64),
    /// CPU.
    Cpu(MilliCpu),
}

impl Signal {
    /// The key of `evictionHard` and its companions that sets a threshold for it; `None` where a threshold
    /// follows from another setting.
    pub const fn key(self) -> Option<&'static str> {
        match self {
            Self::MemoryAvailable | Self::PidAvailable => Some(self.as_str()),
            Self::AllocatableMemoryAvailable
            | Self::MemoryPressure
            | Self::QosReservedMemory
            | Self::BestEffortCpu
            | Self::BatchMemory
            | Self::MemoryLimit => None,
        }
    }

    /// So many of what it counts, with the unit.
    pub const fn amount(self, count: u64) -> Amount {
        match self {
            Self::PidAvailable => Amount::Processes(count),
            Self::BestEffortCpu => Amount::Cpu(MilliCpu(count)),
            Self::AllocatableMemoryAvailable
            | Self::MemoryAvailable
            | Self::MemoryPressure
            | Self::QosReservedMemory
            | Self::BatchMemory
            | Self::MemoryLimit => Amount::Memory(Bytes(count)),
        }
    }

    /// The signal of a key.
    pub fn of_key(key: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|s| s.key() == Some(key))
    }
}

words! {
    /// Where a signal is watched.
    #[derive(Default)]
    pub enum ScopeName {
        /// All pods.
        #[default]
        Kubepods = "kubepods",
        /// The burstable tier.
        Burstable = "burstable",
        /// The besteffort tier.
        BestEffort = "besteffort",
        /// Everything that runs on the node, pods or not.
        Node = "node",
        /// No cgroup's level, but tasks that wait for memory.
        Pressure = "pressure",
        /// Process ids, of the node or of all pods.
        Pids = "pids",
        /// CPU of best-effort pods: level and usage are thousandths of a CPU.
        Cpu = "cpu",
        /// Requests of batch pods: level and usage are bytes that are requested.
        BatchMemory = "batch-memory",
    }
}

impl ScopeName {
    /// What is watched there.
    pub const fn signal(self) -> Signal {
        match self {
            Self::Kubepods => Signal::AllocatableMemoryAvailable,
            Self::Node => Signal::MemoryAvailable,
            Self::Pressure => Signal::MemoryPressure,
            Self::Pids => Signal::PidAvailable,
            Self::Cpu => Signal::BestEffortCpu,
            Self::BatchMemory => Signal::BatchMemory,
            Self::Burstable | Self::BestEffort => Signal::QosReservedMemory,
        }
    }

    /// True where usage and levels are bytes of memory.
    pub const fn is_of_memory(self) -> bool {
        match self {
            Self::Kubepods | Self::Node | Self::Pressure | Self::Burstable | Self::BestEffort => {
                true
            }
            Self::Pids | Self::Cpu | Self::BatchMemory => false,
        }
    }

    /// Those with a level of memory. The node first: how much room it has bounds how much `kubepods` has.
    pub const LEVELS: [Self; 4] = [
        Self::Node,
        Self::Kubepods,
        Self::Burstable,
        Self::BestEffort,
    ];

    /// The tier that it is; `None` for what all pods share.
    pub const fn tier(self) -> Option<QosClass> {
        match self {
            Self::Kubepods
            | Self::Node
            | Self::Pressure
            | Self::Pids
            | Self::Cpu
            | Self::BatchMemory => None,
            Self::Burstable => Some(QosClass::Burstable),
            Self::BestEffort => Some(QosClass::BestEffort),
        }
    }

    /// True for a cgroup whose memory the kernel counts: it notices by itself when usage is at a level.
    pub const fn is_cgroup(self) -> bool {
        match self {
            Self::Kubepods | Self::Burstable | Self::BestEffort => true,
            Self::Node | Self::Pressure | Self::Pids | Self::Cpu | Self::BatchMemory => false,
        }
    }

    /// True when evicting a pod of this class lowers this scope's usage.
    pub fn contains(self, class: QosClass) -> bool {
        self.tier().is_none_or(|tier| tier == class)
    }
}

words! {
    /// What noticed that usage is at a level.
    pub enum Detector {
        /// The kernel program at the charge.
        Charge = "charge",
        /// The kernel program at a context switch.
        Switch = "switch",
        /// The memory controller's own threshold (cgroup v1).
        EventFd = "eventfd",
        /// `memory.events` of the cgroup: a limit of it or below it was reached (cgroup v2).
        MemoryEvents = "memory.events",
        /// Some task has waited for memory for too long (PSI).
        PsiSome = "psi-some",
        /// All tasks have, at the same time.
        PsiFull = "psi-full",
        /// The reactor's sampler.
        Sampler = "sampler",
    }
}
