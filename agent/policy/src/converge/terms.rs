//! What convergence decides from, and what it decides.

use crate::{
    limits::Limit,
    model::{Pod, QosClass},
    qos,
    units::Bytes,
};

/// Which files there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// `memory.limit_in_bytes` alone.
    V1 {
        /// What is reclaimed for a lower limit is page cache: there is no swap.
        reclaims_cache: bool,
    },
    /// `memory.max` and `memory.high`.
    V2 {
        /// `memory.reclaim` can drop page cache and leave anonymous memory alone.
        reclaims_cache: bool,
        /// There is swap that the tier's anonymous memory could go to.
        swaps: bool,
    },
}

/// Which steps are taken; all are by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// A tier above its target is kept from growing, and those of it that do not grow are left alive.
    pub cap_lower_tiers: bool,
    /// `memory.high` stands a margin below a hard limit that is reached.
    pub memory_high: bool,
    /// Page cache of a tier above its target is dropped: `memory.reclaim`; on v1 the hard limit.
    pub memory_reclaim: bool,
}

impl Steps {
    /// Without those that slow the tier's tasks, which are v2's `memory.high`.
    pub const fn without_slowing(self) -> Self {
        Self {
            cap_lower_tiers: false,
            memory_high: false,
            ..self
        }
    }
}

/// Whether a tier may be slowed as a whole: not while it holds a critical pod, which is never to wait for
/// memory because of the pods beside it. `memory.high` slows every task below it.
pub fn may_be_slowed<'a>(class: QosClass, pods: impl IntoIterator<Item = &'a Pod>) -> bool {
    let critical = |pod: &Pod| qos::classify(pod) == class && pod.is_critical();
    !pods.into_iter().any(critical)
}

/// The pods of a tier that are slowed one by one where it holds a critical one: all others.
pub fn slowed_alone<'a>(
    class: QosClass,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> impl Iterator<Item = &'a Pod> {
    let pods = pods.into_iter();
    pods.filter(move |pod| qos::classify(pod) == class && !pod.is_critical())
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            cap_lower_tiers: true,
            memory_high: true,
            memory_reclaim: true,
        }
    }
}

/// What stays the same from look to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Which steps are taken.
    pub steps: Steps,
    /// Which files there are.
    pub kernel: Kernel,
    /// The kernel's page size.
    pub page_size: Bytes,
    /// What a hard limit stays above usage, at least.
    pub margin: Bytes,
    /// How much page cache is dropped at a time.
    pub piece: Bytes,
    /// `memory.high` of a tier that nothing presses: what was found in it.
    pub high_at_rest: Limit<Bytes>,
}

impl Terms {
    /// Page cache can be dropped and is to be.
    pub const fn drops_cache(&self) -> bool {
        let (Kernel::V1 { reclaims_cache } | Kernel::V2 { reclaims_cache, .. }) = self.kernel;
        self.steps.memory_reclaim && reclaims_cache
    }
}

/// What a tier's files hold now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Memory charged to the tier.
    pub usage: Bytes,
    /// Page cache of it, on v1 that which need not be written to a disk first; zero while that was not
    /// read.
    pub cache: Bytes,
    /// The hard limit.
    pub max: Limit<Bytes>,
    /// `memory.high`; `None` on v1.
    pub high: Option<Limit<Bytes>>,
    /// The level at which the reactor evicts from the tier; `None` while it does not.
    pub level: Option<Bytes>,
}

/// One write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The hard limit.
    Max(Limit<Bytes>),
    /// `memory.high`. May take as long as the kernel reclaims.
    High(Limit<Bytes>),
    /// Page cache alone: by `memory.reclaim`, on v1 by a hard limit so much below usage that is lifted
    /// again at once. May take as long as the kernel reclaims.
    Reclaim(Bytes),
}

/// When to look next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// At once: a step was given.
    Again,
    /// When usage may have fallen: there is a gap.
    Soon,
    /// At another target, or after a foreign write.
    OnChange,
}

/// What to do and when to look again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The next write, if any.
    pub step: Option<Step>,
    /// The next look.
    pub look: Look,
}
