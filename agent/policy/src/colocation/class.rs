//! Which class and priority band a pod belongs to: one rule for every decision of co-location.
//!
//! **Class.** The label `koordinator.sh/qosClass`; without it Guaranteed is LSR, Burstable is LS, BestEffort
//! is BE (Koordinator `apis/extension/qos.go`).
//!
//! **Band.** The label `koordinator.sh/priority-class`; without it the band that `spec.priority` is in;
//! without either batch for BE and prod for the rest (Koordinator `apis/extension/priority.go`). The
//! koordlet takes the literal label in its evictions and the default in its suppression.
//!
//! A label that is no class, or that contradicts the pod's resources, is reported and has no effect: the class
//! is then that of the resources, which say where the pod's cgroup is and what the scheduler reserved for it.

use alloc::{string::String, vec::Vec};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    model::{Pod, QosClass},
    qos,
};

/// The label of a pod that names its class.
pub const QOS_CLASS_LABEL: &str = "koordinator.sh/qosClass";
/// The label of a pod that names its priority band.
pub const PRIORITY_CLASS_LABEL: &str = "koordinator.sh/priority-class";

/// The annotation of a pod that says how long it may wait for a CPU, a duration such as `2ms`.
pub const WAIT_OBJECTIVE_ANNOTATION: &str = "podwarden.io/cpu-wait-objective";

/// What a pod's labels and annotations say about co-location, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Labels {
    /// [`QOS_CLASS_LABEL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qos_class: Option<String>,
    /// [`PRIORITY_CLASS_LABEL`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// [`WAIT_OBJECTIVE_ANNOTATION`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait_objective: Option<String>,
    /// [`EVICTION_POLICY_ANNOTATION`](super::evict_cpu::EVICTION_POLICY_ANNOTATION).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_policy: Option<String>,
    /// [`EVICTION_ENABLED_LABEL`](super::evict_cpu::EVICTION_ENABLED_LABEL).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction_enabled: Option<String>,
}

impl Labels {
    /// True where no label was written.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

words! {
    /// Koordinator's QoS class.
    pub enum Class {
        /// Latency sensitive, exclusive: whole CPUs that no other pod uses.
        Lse = "LSE",
        /// Latency sensitive, reserved: CPUs of its own that BE may share.
        Lsr = "LSR",
        /// Latency sensitive: CPUs shared with others of its kind.
        Ls = "LS",
        /// Best effort: what the others leave.
        Be = "BE",
        /// A service of the node.
        System = "SYSTEM",
    }
}

impl Class {
    /// The class of this text, which is compared exactly.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// The class of a pod without a label.
    pub const fn of_kubernetes(class: QosClass) -> Self {
        match class {
            QosClass::Guaranteed => Self::Lsr,
            QosClass::Burstable => Self::Ls,
            QosClass::BestEffort => Self::Be,
        }
    }

    /// The band of a pod without a label and a priority in a band.
    pub const fn default_band(self) -> Band {
        match self {
            Self::Be => Band::Batch,
            Self::Lse | Self::Lsr | Self::Ls | Self::System => Band::Prod,
        }
    }

    /// True for the classes that best-effort work must not slow down.
    pub const fn is_latency_sensitive(self) -> bool {
        matches!(self, Self::Lse | Self::Lsr | Self::Ls)
    }

    /// True where the pod's resources allow this class. BE has a cgroup below the besteffort tier, and
    /// so has every BestEffort pod.
    const fn allows(self, kubernetes: QosClass) -> bool {
        match self {
            Self::Be => matches!(kubernetes, QosClass::BestEffort),
            Self::Lse | Self::Lsr | Self::Ls => !matches!(kubernetes, QosClass::BestEffort),
            Self::System => true,
        }
    }
}

words! {
    /// Koordinator's priority class, in the order of eviction: what compares as less is evicted first.
    pub enum Band {
        /// `spec.priority` 3000 to 3999.
        Free = "koord-free",
        /// `spec.priority` 5000 to 5999.
        Batch = "koord-batch",
        /// `spec.priority` 7000 to 7999.
        Mid = "koord-mid",
        /// `spec.priority` 9000 to 9999.
        Prod = "koord-prod",
    }
}

impl Band {
    /// The least and the greatest `spec.priority` of the band.
    pub const fn range(self) -> (i32, i32) {
        match self {
            Self::Free => (3000, 3999),
            Self::Batch => (5000, 5999),
            Self::Mid => (7000, 7999),
            Self::Prod => (9000, 9999),
        }
    }

    /// The band of this text, which is compared exactly.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|band| band.as_str() == text)
    }

    /// The band that a priority is in.
    pub fn of_priority(priority: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|band| {
            let (least, greatest) = band.range();
            (least..=greatest).contains(&priority)
        })
    }

    /// True where a pod of the class may be in this band
    /// (Koordinator `pkg/webhook/pod/validating/verify_qos_priority.go`).
    const fn allows(self, class: Class) -> bool {
        match class {
            Class::Be => !matches!(self, Self::Prod),
            Class::Lse | Class::Lsr => matches!(self, Self::Prod),
            Class::Ls | Class::System => true,
        }
    }
}

/// Where a class comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum ClassSource {
    /// [`QOS_CLASS_LABEL`].
    #[display("label {QOS_CLASS_LABEL}")]
    Label,
    /// The pod's class in Kubernetes.
    #[display("{_0} in Kubernetes")]
    Kubernetes(QosClass),
}

/// Where a band comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display)]
pub enum BandSource {
    /// [`PRIORITY_CLASS_LABEL`].
    #[display("label {PRIORITY_CLASS_LABEL}")]
    Label,
    /// `spec.priority`.
    #[display("priority {_0}")]
    Priority(i32),
    /// The pod's class.
    #[display("class {_0}")]
    Class(Class),
}

/// A label that has no effect, or a priority that has none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// No class has this name.
    #[error(
        "metadata.labels[{QOS_CLASS_LABEL}]: {0:?} is no class: use LSE, LSR, LS, BE or SYSTEM"
    )]
    NoClass(String),
    /// The pod's resources give it another class.
    #[error(
        "metadata.labels[{QOS_CLASS_LABEL}]: {class} contradicts the pod's resources, which make it \
         {kubernetes}: correct the label or the resources"
    )]
    Resources {
        /// The label.
        class: Class,
        /// The class of the resources.
        kubernetes: QosClass,
    },
    /// No band has this name.
    #[error(
        "metadata.labels[{PRIORITY_CLASS_LABEL}]: {0:?} is no priority class: use koord-prod, koord-mid, \
         koord-batch or koord-free"
    )]
    NoBand(String),
    /// A pod of the class cannot be in the band.
    #[error("{field}: {band} contradicts class {class}: correct the priority or the class")]
    Band {
        /// What the band was taken from.
        field: &'static str,
        /// The band.
        band: Band,
        /// The class.
        class: Class,
    },
}

/// The class and band of a pod, and where each comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    /// The class that every decision takes.
    pub class: Class,
    /// Where it comes from.
    pub class_source: ClassSource,
    /// The band that every decision takes.
    pub band: Band,
    /// Where it comes from.
    pub band_source: BandSource,
    /// What was written and has no effect. A pod with any gets no more CPU than its limit.
    pub contradictions: Vec<Contradiction>,
}

/// Classifies a pod.
pub fn classify(pod: &Pod) -> Classified {
    let mut contradictions = Vec::new();
    let (class, class_source) = class(pod, &mut contradictions);
    let (band, band_source) = band(pod, class, &mut contradictions);
    Classified {
        class,
        class_source,
        band,
        band_source,
        contradictions,
    }
}

fn class(pod: &Pod, contradictions: &mut Vec<Contradiction>) -> (Class, ClassSource) {
    let kubernetes = qos::classify(pod);
    let default = (
        Class::of_kubernetes(kubernetes),
        ClassSource::Kubernetes(kubernetes),
    );
    let Some(text) = written(pod.colocation.qos_class.as_ref()) else {
        return default;
    };
    match Class::from_text(text) {
        None => contradictions.push(Contradiction::NoClass(text.clone())),
        Some(class) if class.allows(kubernetes) => return (class, ClassSource::Label),
        Some(class) => contradictions.push(Contradiction::Resources { class, kubernetes }),
    }
    default
}

fn band(pod: &Pod, class: Class, contradictions: &mut Vec<Contradiction>) -> (Band, BandSource) {
    let mut check = |field, band: Band, source| {
        let allowed = band.allows(class);
        if !allowed {
            contradictions.push(Contradiction::Band { field, band, class });
        }
        allowed.then_some((band, source))
    };
    let label = written(pod.colocation.priority_class.as_ref());
    let by_label = label.and_then(|text| Band::from_text(text));
    let by_priority = Band::of_priority(pod.priority);
    let found = match (by_label, by_priority) {
        (Some(band), _) => check(
            "metadata.labels[koordinator.sh/priority-class]",
            band,
            BandSource::Label,
        ),
        (None, Some(band)) => check("spec.priority", band, BandSource::Priority(pod.priority)),
        (None, None) => None,
    };
    if let (Some(text), None) = (label, by_label) {
        contradictions.push(Contradiction::NoBand(text.clone()));
    }
    found.unwrap_or((class.default_band(), BandSource::Class(class)))
}

/// A label without a text says nothing.
fn written(label: Option<&String>) -> Option<&String> {
    label.filter(|text| !text.is_empty())
}
