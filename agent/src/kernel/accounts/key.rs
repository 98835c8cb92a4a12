//! What the records of cgroups that are gone are keyed by, and which pod a cgroup was.

use podwarden_policy::model::QosClass;

use super::fold;

/// The record that takes the figures of a cgroup that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FoldTarget {
    /// A cgroup of the same pod.
    Cgroup(u64),
    /// The pods of a class that are gone.
    Class(QosClass),
    /// Cgroups that belonged to no pod.
    Others,
}

impl FoldTarget {
    /// The key of its record.
    pub(crate) fn key(self) -> u64 {
        match self {
            Self::Cgroup(id) => id,
            Self::Class(class) => fold::constant(class_number(class)),
            Self::Others => fold::constant(0),
        }
    }
}

/// A pod, in a form that fits the kernel's maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodKey {
    /// Its class by its place.
    pub class: QosClass,
    /// FNV-1a of its uid, 64 bits: the same in every build.
    pub uid_hash: u64,
}

impl PodKey {
    pub fn new(class: QosClass, uid: &str) -> Self {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self {
            class,
            uid_hash: uid.bytes().fold(0xcbf2_9ce4_8422_2325, fnv),
        }
    }

    /// The pod of a record; `None` where the record is of no pod.
    pub(crate) fn of(record: &fold::Record) -> Option<Self> {
        let mut classes = QosClass::ALL.into_iter();
        let class = classes.find(|class| class_number(*class) == record.class)?;
        Some(Self {
            class,
            uid_hash: record.uid_hash,
        })
    }

    /// Writes the pod into a record; false where the record has it already.
    pub(crate) fn note_in(self, record: &mut fold::Record) -> bool {
        let before = (record.class, record.uid_hash);
        (record.class, record.uid_hash) = (class_number(self.class), self.uid_hash);
        before != (record.class, record.uid_hash)
    }
}

/// The number of a class in the kernel's maps. A change of it raises [`podwarden_abi::PINNED_LAYOUT`].
fn class_number(class: QosClass) -> u32 {
    match class {
        QosClass::Guaranteed => 1,
        QosClass::Burstable => 2,
        QosClass::BestEffort => 3,
    }
}
