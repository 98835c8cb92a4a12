//! What eviction watches (kubelet `pkg/kubelet/eviction/api/types.go`).

use core::fmt;

/// What is watched. The order is that in which thresholds are acted on: memory before all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Signal {
    /// Memory left to pods below the limit of `kubepods`.
    #[cfg_attr(feature = "serde", serde(rename = "allocatableMemory.available"))]
    AllocatableMemoryAvailable,
    /// Memory left on the node: capacity minus the working set of the root.
    #[cfg_attr(feature = "serde", serde(rename = "memory.available"))]
    MemoryAvailable,
    /// Process ids left.
    #[cfg_attr(feature = "serde", serde(rename = "pid.available"))]
    PidAvailable,
    /// Bytes left on the filesystem of pods' volumes and logs.
    #[cfg_attr(feature = "serde", serde(rename = "nodefs.available"))]
    NodeFsAvailable,
    /// Inodes left on it.
    #[cfg_attr(feature = "serde", serde(rename = "nodefs.inodesFree"))]
    NodeFsInodesFree,
    /// Bytes left on the filesystem of images.
    #[cfg_attr(feature = "serde", serde(rename = "imagefs.available"))]
    ImageFsAvailable,
    /// Inodes left on it.
    #[cfg_attr(feature = "serde", serde(rename = "imagefs.inodesFree"))]
    ImageFsInodesFree,
    /// Bytes left on the filesystem of writable layers.
    #[cfg_attr(feature = "serde", serde(rename = "containerfs.available"))]
    ContainerFsAvailable,
    /// Inodes left on it.
    #[cfg_attr(feature = "serde", serde(rename = "containerfs.inodesFree"))]
    ContainerFsInodesFree,
}

impl Signal {
    /// Every signal, in order.
    pub const ALL: [Self; 9] = [
        Self::AllocatableMemoryAvailable,
        Self::MemoryAvailable,
        Self::PidAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
    ];

    /// The kubelet's name for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::MemoryAvailable => "memory.available",
            Self::PidAvailable => "pid.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
        }
    }

    /// The signal of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
