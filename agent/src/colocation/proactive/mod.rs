//! Best-effort and cold pods give back page cache that they do not use, before anything needs the memory.
//!
//! ```text
//!  reconciler ── pods ──> thread ── memory.reclaim ──> pods' cgroups
//!                           └──> given: what each pod gave, for the API
//! ```
//!
//! The law is that of [`podwarden_policy::colocation::proactive`]. The thread is its own, because a write to
//! `memory.reclaim` waits for the kernel. It sets no limit and leaves nothing behind.

mod given;
mod pod;
mod thread;

use std::{io, sync::Arc};

use podwarden_cgroup::{CgroupPath, ColdReader, Reclaims, Tree};
use podwarden_policy::PodUid;

pub use self::given::Given;
use crate::{
    base::worker::Worker,
    config::{ProactiveConfig, meminfo},
};

/// A pod that may give page cache back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Giver {
    pub uid: PodUid,
    /// Its cgroup below the tree's root.
    pub path: CgroupPath,
    /// Only while it does not work.
    pub only_cold: bool,
}

/// Why no pod gives memory back.
#[derive(Debug, thiserror::Error)]
pub enum ProactiveError {
    /// The files of kubepods.
    #[error("{0}")]
    Files(#[source] podwarden_cgroup::Error),
    /// v2 before Linux 5.19.
    #[error("this kernel has no memory.reclaim (Linux 5.19)")]
    NoReclaim,
    /// Linux 5.19 to 6.8 with swap.
    #[error(
        "this kernel's memory.reclaim cannot spare anonymous memory (Linux 6.9), and swap is on"
    )]
    Swap,
    /// No thread.
    #[error("no thread ({0})")]
    Thread(#[source] io::Error),
}

/// The reconciler's end of the thread.
#[derive(Debug)]
pub struct Proactive {
    /// Ends after the pod that it is at.
    worker: Worker<Vec<Giver>>,
    given: Arc<Given>,
}

impl Proactive {
    /// Starts the thread, with no pod to look at. `kubepods` is looked at for what this kernel can do.
    pub fn start(
        tree: Tree,
        kubepods: &CgroupPath,
        config: ProactiveConfig,
    ) -> Result<Self, ProactiveError> {
        let reader = ColdReader::open(&tree, kubepods);
        reader
            .and_then(|reader| reader.read())
            .map_err(ProactiveError::Files)?;
        let how = match tree.reclaims(kubepods) {
            Reclaims::Nothing => return Err(ProactiveError::NoReclaim),
            Reclaims::Anything if has_swap() => return Err(ProactiveError::Swap),
            how => how,
        };
        let given = Arc::new(Given::default());
        let thread = thread::Thread::new(tree, how, config, Arc::clone(&given));
        let worker = Worker::start("memory-reclaim", move |waiting| thread.run(waiting));
        Ok(Self {
            given,
            worker: worker.map_err(ProactiveError::Thread)?,
        })
    }

    /// The pods from now on.
    pub fn aim(&self, givers: Vec<Giver>) {
        self.worker.tell(givers);
    }

    /// What each pod gave.
    pub fn given(&self) -> &Given {
        &self.given
    }
}

/// What is not known counts as swap.
fn has_swap() -> bool {
    let text = std::fs::read_to_string("/proc/meminfo").ok();
    let total = text.and_then(|text| meminfo(&text, "SwapTotal"));
    total.is_none_or(|total| !total.is_zero())
}
