//! The armed plan that the reconciler hands to the reactor: levels and candidates, with every
//! file open already. Immutable once handed over; the reactor swaps whole plans and never frees one.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, OnceLock},
    time::Duration,
};

use podwarden_cgroup::{
    CgroupPath, KillHandle, MemoryEvents, MemoryReader, MemoryStat, MemoryThresholds, PsiKind,
};
use podwarden_policy::{
    evict::{Candidate, Ranking},
    model::QosClass,
};

pub use podwarden_policy::signal::ScopeName;

use super::{free::FreeMemory, growth::Seen, pids::Pids};

/// A memory cgroup with a level.
#[derive(Debug)]
pub struct Scope {
    pub name: ScopeName,
    /// Of what counts against it (see [`Scope::used`]), where the reactor acts, bytes.
    pub level: u64,
    /// Once it has acted it goes on until that is below this, at most `level`, bytes
    /// (`evictionMinimumReclaim`).
    pub target: u64,
    /// Its usage.
    pub memory: MemoryReader,
    /// Its id in the memory controller's hierarchy, for the level in the kernel.
    pub memory_id: u64,
    /// Signalled by the kernel (cgroup v1 `memory.usage_in_bytes` threshold) around the level.
    pub notice: Notice,
    /// Signalled by the kernel (cgroup v2) at `memory.high` and `memory.max` of it or below it.
    pub events: Option<MemoryEvents>,
}

impl Scope {
    /// What of `usage` counts against the level.
    pub fn used(&self, stat: &MemoryStat, usage: u64) -> u64 {
        counted(self.name, stat, usage)
    }

    /// What of that grows when processes fill memory.
    pub(super) fn filled(&self, stat: &MemoryStat, usage: u64) -> u64 {
        match self.name.tier() {
            Some(_) => stat.filled(),
            None => stat.working_set(usage),
        }
    }

    /// The hard limit, as far as it is one to stay below. One of a tier's below its level does not stand:
    /// v1 drops page cache by it (`crate::hierarchy::converge`), or another wrote it and it is put right.
    pub(super) fn limit(&self) -> Option<u64> {
        let limit = self.memory.limit().ok().flatten()?;
        (self.name.tier().is_none() || limit >= self.level).then_some(limit)
    }
}

/// What of a cgroup's `usage` counts against the level of a scope that it is in. A tier's level is there so that the
/// reactor comes before the kernel's OOM killer at the tier's hard limit, where the kernel drops page cache before it
/// kills: page cache counts for nothing there, be it in use. Everywhere else it is the working set, as for the kubelet.
pub(super) fn counted(scope: ScopeName, stat: &MemoryStat, usage: u64) -> u64 {
    match scope.tier() {
        Some(_) => stat.without_cache(usage),
        None => stat.working_set(usage),
    }
}

/// A notice that the kernel takes tens of milliseconds to take on: a plan is armed without it, and a
/// thread of its own asks for it then.
#[derive(Debug, Default)]
pub struct Notice {
    of: Option<MemoryThresholds>,
    fd: OnceLock<OwnedFd>,
}

impl Notice {
    /// Where to register it; `None` where there is no such thing.
    pub fn of(of: Option<MemoryThresholds>) -> Self {
        Self {
            of,
            fd: OnceLock::new(),
        }
    }

    /// What is signalled, once it is there.
    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.fd.get()
    }

    /// True until it is there, where there is such a thing.
    pub(super) fn is_missing(&self) -> bool {
        self.of.is_some() && self.fd.get().is_none()
    }

    /// Gives it the file, as if it had appeared.
    #[cfg(test)]
    pub(super) fn came(&self, fd: OwnedFd) {
        let _ = self.fd.set(fd);
    }

    /// Asks for it; true when it is there now and was not before. Waits for the kernel.
    pub(super) fn ask(&self, level: u64) -> bool {
        let Some(of) = self.of.as_ref().filter(|_| self.is_missing()) else {
            return false;
        };
        match of.notice_at(level) {
            Ok(fd) => self.fd.set(fd).is_ok(),
            Err(error) => {
                // The sampler and the kernel programs remain.
                tracing::debug!(%error, "no notice of the kernel's for a level");
                false
            }
        }
    }
}

/// Tells when tasks wait for memory (PSI).
#[derive(Debug)]
pub struct Pressure {
    /// What all pods use.
    pub memory: MemoryReader,
    /// Its id in the memory controller's hierarchy.
    pub memory_id: u64,
    /// What the node has left.
    pub free: FreeMemory,
    /// At most [`Pressure::MOST`].
    pub triggers: Vec<StallTrigger>,
}

impl Pressure {
    /// One for each kind.
    pub const MOST: usize = 2;
}

/// Signalled by the kernel once tasks have waited for too long.
#[derive(Debug)]
pub struct StallTrigger {
    /// The cgroup.
    pub kind: PsiKind,
    /// How far back the kernel looks.
    pub window: Duration,
    /// Has an exceptional condition (`POLLPRI`) then.
    pub notice: OwnedFd,
}

/// A pod that may be evicted. Pods that may not (critical, static, our own) are not in the plan.
#[derive(Debug)]
pub struct Victim {
    /// The reconciler's name for the pod; unique while the agent runs.
    pub token: u64,
    /// Its uid, for the tie-break.
    pub uid: Box<str>,
    /// The class of the tier that its cgroup is in; the manifest may say another.
    pub place: QosClass,
    /// Class, priority and request; its working set is read when it matters.
    pub candidate: Candidate,
    /// Its cgroup; the next plan takes it over.
    pub files: Arc<VictimFiles>,
}

/// A pod of which no source has told yet: it may not be evicted so far.
#[derive(Debug)]
pub struct Stranger {
    /// Its cgroup, relative to the root.
    pub path: CgroupPath,
    /// The class of the tier that its cgroup is in.
    pub place: QosClass,
    /// Its usage.
    pub memory: MemoryReader,
    /// What it used at the last samples.
    pub seen: Seen,
}

/// The open files of a victim's cgroup.
#[derive(Debug)]
pub struct VictimFiles {
    /// The cgroup, relative to the root.
    pub path: CgroupPath,
    /// Its usage.
    pub memory: MemoryReader,
    pub kill: KillHandle,
    /// What it used at the last samples.
    pub seen: Seen,
}

/// Everything the reactor works from.
#[derive(Debug, Default)]
pub struct ArmedPlan {
    /// The levels, each shared with the next plan as long as it stays the same.
    pub scopes: Vec<Arc<Scope>>,
    /// Levels that cannot be watched here, each warned of in the first plan without it.
    pub unwatched: Vec<ScopeName>,
    /// Whom it may evict, in no particular order.
    pub victims: Vec<Victim>,
    /// Whose memory it waits to hear of; each shared with the next plan as long as it stays one.
    pub strangers: Vec<Arc<Stranger>>,
    /// Where it is configured.
    pub pressure: Option<Arc<Pressure>>,
    /// Where it is configured.
    pub pids: Option<Pids>,
    /// Who goes first.
    pub ranking: Ranking,
    /// CPUs online: each may fill memory, and the kernel charges ahead on each.
    pub cpus: u32,
    /// False in observe mode: decide and report, write nothing.
    pub enforce: bool,
}

impl ArmedPlan {
    /// The pod with this uid, where it may be evicted.
    pub fn victim(&self, uid: &str) -> Option<&Victim> {
        self.victims.iter().find(|victim| *victim.uid == *uid)
    }
}
