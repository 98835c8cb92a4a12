//! New cgroups of pods that ask for reclaimed resources: a thread of its own writes their values.
//!
//! ```text
//!  reconciler ── pods, names of containers ──> thread ── shares, quota, memory limit ──> cgroups
//!  inotify ── directory made, file written ────┤  ▲
//!                                  id ──> runtime ┘ name, of one container of several
//! ```
//!
//! A runtime makes a container's cgroup, writes values of its own to it, and then starts the container's process (runc:
//! `Apply`, `Set`, then the init waits until it may `exec`). The thread answers both, without a pass over the tree, a
//! sampling pass or a source of pods. The runtime is asked only where a pod has several containers: which of them a
//! cgroup is of, no file says. [`FRESH`] after the cgroup was made it leaves foreign writes to
//! [`crate::hierarchy::drift`], which has a rate limit.
//!
//! inotify(7) reports a directory when mkdir(2) is done. The tracepoint `cgroup_mkdir` fires before the files can be
//! opened (`cgroup_mkdir` calls `kernfs_activate` after it, `kernel/cgroup/cgroup.c`).
//!
//! On v1 the shares come last: those of a container when its program is executed (see [`super::starting`]), which the
//! thread looks for every millisecond; those of a pod with the pass over the tree, because a kubelet checks what it wrote
//! as runc does.

mod files;
mod followed;
#[cfg(test)]
mod tests;
mod thread;

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use podwarden_cgroup::{CgroupLayout, Tree};
use podwarden_policy::{Pod, plan::Snapshot};

use crate::{
    base::{bell::bell, worker::Worker},
    hierarchy::act::{Backend, Counters},
    pods::runtime::Names,
};

/// How long a cgroup is new.
const FRESH: Duration = Duration::from_secs(10);

/// A pod that asks for reclaimed resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asking {
    pub pod: Pod,
    /// The names of its containers, as far as they are known, by the last component of their cgroups' paths.
    pub containers: BTreeMap<String, String>,
}

/// What the thread goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aim {
    /// Node and configuration; without pods and cgroups.
    pub terms: Snapshot,
    /// In the order of their uids.
    pub pods: Vec<Asking>,
}

/// What the thread works on.
#[derive(Debug)]
pub struct Parts {
    pub tree: Tree,
    /// How its cgroups are named.
    pub layout: CgroupLayout,
    /// What writes.
    pub backend: Arc<dyn Backend>,
    /// Where writes are counted.
    pub counters: Arc<Counters>,
    /// The runtime; `None` where none is configured.
    pub names: Option<Names>,
    /// Whether the thread may be SCHED_FIFO: an ordinary one can wait for hundreds of milliseconds.
    pub real_time: bool,
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Fresh {
    /// What the thread was told last.
    told: Option<Aim>,
    worker: Worker<Aim>,
}

impl Fresh {
    /// Starts the thread, with no pod. With [`Parts::names`], call it inside a tokio runtime.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let bell = Arc::new(bell()?);
        if let Some(names) = &parts.names {
            names.ring(Arc::clone(&bell));
        }
        let thread = thread::Thread::new(parts, Arc::clone(&bell))?;
        let worker =
            Worker::start_with_bell("new-cgroups", bell, move |waiting| thread.run(waiting))?;
        Ok(Self { told: None, worker })
    }

    /// The pods from now on.
    pub fn aim(&mut self, aim: Aim) {
        if self.told.as_ref() == Some(&aim) {
            return;
        }
        self.worker.tell(aim.clone());
        self.told = Some(aim);
    }
}
