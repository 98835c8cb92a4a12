//! The kernel's figures joined with the tree: walks it at the start, follows the kernel's records, keeps the index.

mod children;
pub mod figures;
mod gather;
mod gone;
pub mod index;
mod kernel_side;
pub mod network;
pub mod node_usage;
mod orphans;
mod pace;
pub mod walked;

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use podwarden_abi::{ExitEvent, NO_SLOT, NearLimitEvent, OomEvent, Tracked};
use podwarden_cgroup::{CgroupPath, Tree};
use podwarden_policy::PodUid;

use crate::{
    accounting::index::{CgroupIndex, Change},
    api::types::DropStats,
    base::{clock, error},
    kernel::{
        accounts::{AccountError, Parent, PodKey},
        events::{self, CgroupChange, Telemetry},
    },
};
pub use kernel_side::KernelSide;

use children::children;
use kernel_side::track;
use orphans::Orphans;
use pace::{AT_ONCE, COME_BACK, come_back};

/// How often the tree is looked at where no kernel program reports changes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Free accounts that one [`Accounting::drain`] gives the kernel programs, a millisecond's work.
const FREED_AT_ONCE: usize = 256;

/// Exits whose cgroup is not known yet that are kept.
const PENDING: usize = 4096;

/// How long they are kept.
const PENDING_FOR: Duration = Duration::from_secs(5);

/// What is above kubepods is not in scope.
const NO_PARENT: Parent = Parent {
    id: 0,
    slot: NO_SLOT,
};

/// Why the accounts cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum AccountingError {
    /// A map refused.
    #[error(transparent)]
    Map(#[from] AccountError),
    /// The tree could not be read.
    #[error("looking for the pods that are there")]
    Tree(#[source] podwarden_cgroup::Error),
    /// A cgroup is there and could not be listed.
    #[error("listing the cgroups in {path}")]
    List {
        /// Its directory.
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The ring cannot be waited for.
    #[error("waiting for the kernel's records")]
    Ring(#[source] std::io::Error),
}

/// Something that happened, with its time where the kernel stamped it.
#[derive(Debug)]
pub enum Occurrence {
    /// The index changed.
    Changed(Change),
    /// A process of a pod ended.
    Exit { uid: PodUid, event: ExitEvent },
    /// The OOM killer chose a process; the uid where it is known.
    Oom {
        uid: Option<PodUid>,
        event: OomEvent,
    },
    /// A memory cgroup came near its limit, see [`CgroupIndex::by_memory_id`].
    NearLimit(NearLimitEvent),
}

pub struct Accounting {
    /// The kernel's side; `None` where it could not be loaded. The tree is then looked at every
    /// [`LOOK_AGAIN`].
    pub kernel: Option<KernelSide>,
    pub index: CgroupIndex,
    pending: VecDeque<(Instant, ExitEvent)>,
    come_back: Option<Instant>,
    drops_seen: u64,
    /// True until the second walk of the tree: neither the first walk nor the kernel may have seen a cgroup that was
    /// made meanwhile below one that was not in scope yet.
    look_once_more: bool,
    /// The last walk because the kernel's tables are full.
    looked: Option<Instant>,
    orphans: Orphans,
    root: CgroupPath,
}

impl Accounting {
    /// Puts the kubepods cgroup `path`, which must exist, and all below it in scope.
    pub fn start(
        mut kernel: Option<KernelSide>,
        tree: &Tree,
        path: &CgroupPath,
    ) -> Result<(Self, Vec<Change>), AccountingError> {
        let id = tree.id(path).map_err(AccountingError::Tree)?;
        if let Some(kernel) = &mut kernel {
            let kubepods = tree.identity_path(path).map_err(AccountingError::Tree)?;
            kernel.begin_at(&kubepods)?;
        }
        let slot = track(&mut kernel, id, NO_PARENT, 0).slot;
        let mut this = Self {
            come_back: Some(Instant::now() + COME_BACK),
            kernel,
            index: CgroupIndex::new(id, path, slot),
            pending: VecDeque::new(),
            drops_seen: 0,
            look_once_more: true,
            looked: None,
            orphans: Orphans::default(),
            root: path.to_owned(),
        };
        let changes = this.walk(tree)?;
        this.inherit();
        if let Some(kernel) = &mut this.kernel {
            kernel.accounts.invalidate()?;
            // The tasks that run now switched in before the programs were attached.
            for cpu in aya::util::online_cpus().unwrap_or_default() {
                kernel.flush_cpu(cpu);
            }
        }
        Ok((this, changes))
    }

    /// Enters everything below the root that the index lacks; removes what no longer exists.
    fn walk(&mut self, tree: &Tree) -> Result<Vec<Change>, AccountingError> {
        let mut changes = Vec::new();
        let mut present = HashSet::new();
        let id = tree.id(&self.root).map_err(AccountingError::Tree)?;
        present.insert(id);
        let slot = track(&mut self.kernel, id, NO_PARENT, 0).slot;
        let mut stack = vec![(self.root.clone(), Parent { id, slot }, 0_u16)];
        while let Some((path, parent, depth)) = stack.pop() {
            // A child made after its parent came in scope is reported by the kernel; one made
            // before is listed here; one in between is both, which is fine.
            for (name, child) in children(tree, &path)? {
                present.insert(child);
                let depth = depth.saturating_add(1);
                let slot = track(&mut self.kernel, child, parent, depth).slot;
                let change = CgroupChange {
                    time_ns: 0,
                    id: child,
                    parent: parent.id,
                    slot,
                    depth: u32::from(depth),
                    name: name.clone(),
                };
                changes.extend(self.created(&change));
                stack.push((path.child(&name), Parent { id: child, slot }, depth));
            }
        }
        let now = Instant::now();
        for id in self.index.missing_from(&present) {
            self.index.removed(id, now);
        }
        Ok(changes)
    }

    /// Enters a cgroup, and notes its pod for the next agent.
    fn created(&mut self, change: &CgroupChange) -> Vec<Change> {
        let changes = self.index.created(change).unwrap_or_default();
        if let Some(kernel) = &mut self.kernel {
            for change_of_pod in &changes {
                if let Change::PodAppeared { uid, class } = change_of_pod {
                    let pod = PodKey::new(*class, uid);
                    kernel.accounts.note_pod(change.id, pod);
                }
            }
        }
        changes
    }

    /// Gives the kernel programs free accounts for so many cgroups, as far as they lack some.
    pub fn expect(&mut self, cgroups: usize) {
        if let Some(kernel) = &mut self.kernel {
            kernel.accounts.free_more(cgroups);
        }
    }

    /// Completes when [`Accounting::drain`] has something to do.
    pub async fn ready(&self) {
        let timer = async {
            let kernel = self.kernel.as_ref();
            let withholds = kernel.is_some_and(|kernel| kernel.accounts.withholds());
            let due = [
                self.come_back,
                self.index.next_expiry(),
                self.orphans.due(),
                withholds.then(Instant::now),
            ];
            clock::until(due.into_iter().flatten().min()).await;
        };
        let records = async {
            match &self.kernel {
                Some(kernel) => {
                    if let Ok(mut guard) = kernel.telemetry.readable().await {
                        guard.clear_ready();
                    }
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = records => {}
            () = timer => {}
        }
    }

    /// Reads the records that there are, at most [`AT_ONCE`] of them, and brings the index up to date. What it leaves
    /// makes [`Accounting::ready`] complete at once.
    pub fn drain(&mut self, tree: &Tree) -> Vec<Occurrence> {
        let mut occurrences = Vec::new();
        let mut records = 0;
        while records < AT_ONCE
            && let Some(record) = self.next_record()
        {
            records += 1;
            match record {
                Ok(record) => self.apply(record, &mut occurrences),
                Err(error) => tracing::warn!(%error, "a kernel record could not be read"),
            }
        }
        let now = Instant::now();
        if let Some(kernel) = &mut self.kernel {
            kernel.accounts.free_more(FREED_AT_ONCE);
            self.come_back = come_back(self.come_back, records, now);
            self.resync_after_loss(tree, now, &mut occurrences);
            self.look_where_full(tree, now, &mut occurrences);
            self.bury_orphans(now);
        } else {
            self.come_back = Some(now + LOOK_AGAIN);
            self.look(tree, &mut occurrences);
        }
        let expired = self.index.expire(now, &mut self.kernel);
        occurrences.extend(expired.into_iter().map(Occurrence::Changed));
        self.retry_pending(now, &mut occurrences);
        occurrences
    }

    fn next_record(&mut self) -> Option<Result<Telemetry, events::DecodeError>> {
        let ring = self.kernel.as_mut()?.telemetry.get_mut();
        ring.next().map(|record| events::telemetry(&record))
    }

    fn apply(&mut self, record: Telemetry, out: &mut Vec<Occurrence>) {
        match record {
            Telemetry::Created(change) => {
                let changes = self.created(&change);
                out.extend(changes.into_iter().map(Occurrence::Changed));
            }
            Telemetry::Removed(change) => self.index.removed(change.id, Instant::now()),
            Telemetry::Released(change) => {
                let changes = self.index.released(change.id, &mut self.kernel);
                out.extend(changes.into_iter().map(Occurrence::Changed));
            }
            Telemetry::Exit(event) => {
                if self.index.contains(event.header.cgroup) {
                    self.exit(event, out);
                } else if self.pending.len() < PENDING {
                    self.pending.push_back((Instant::now(), event));
                }
            }
            Telemetry::Oom(event) => {
                let uid = self.index.owner(event.header.cgroup);
                let uid = uid.map(|(uid, _)| uid.clone());
                out.push(Occurrence::Oom { uid, event });
            }
            Telemetry::NearLimit(event) => out.push(Occurrence::NearLimit(event)),
        }
    }

    fn exit(&self, event: ExitEvent, out: &mut Vec<Occurrence>) {
        if let Some((uid, _)) = self.index.owner(event.header.cgroup) {
            let uid = uid.clone();
            out.push(Occurrence::Exit { uid, event });
        }
    }

    /// Exits that came before their cgroup was known.
    fn retry_pending(&mut self, now: Instant, out: &mut Vec<Occurrence>) {
        for (since, event) in std::mem::take(&mut self.pending) {
            if self.index.contains(event.header.cgroup) {
                self.exit(event, out);
            } else if now.duration_since(since) < PENDING_FOR {
                self.pending.push_back((since, event));
            }
        }
    }

    /// A full ring may have cost a creation or removal: look at the tree itself.
    fn resync_after_loss(&mut self, tree: &Tree, now: Instant, out: &mut Vec<Occurrence>) {
        let lost = self.drops().telemetry;
        if lost != self.drops_seen || self.look_once_more {
            self.drops_seen = lost;
            self.look_once_more = false;
            self.look(tree, out);
            let table = self.table();
            let unknown = table.iter().map(|(id, _)| *id);
            let unknown = unknown.filter(|id| !self.index.contains(*id)).collect();
            self.orphans.suspect(unknown, now);
        }
    }

    /// What has no entry in the kernel's table is reported when it is made, but not when it goes.
    fn look_where_full(&mut self, tree: &Tree, now: Instant, out: &mut Vec<Occurrence>) {
        if !self.is_full() {
            return;
        }
        if self.looked.is_none_or(|looked| now >= looked + LOOK_AGAIN) {
            self.looked = Some(now);
            self.look(tree, out);
        }
        let again = self.looked.unwrap_or(now) + LOOK_AGAIN;
        self.come_back = Some(self.come_back.map_or(again, |due| due.min(again)));
    }

    /// Whether a cgroup has found no account, or no room in the kernel's table, since the start.
    pub fn is_full(&self) -> bool {
        let kernel = self.kernel.as_ref();
        kernel.is_some_and(|kernel| kernel.accounts.is_full()) || self.drops().accounts > 0
    }

    fn look(&mut self, tree: &Tree, out: &mut Vec<Occurrence>) {
        match self.walk(tree) {
            Ok(changes) => out.extend(changes.into_iter().map(Occurrence::Changed)),
            Err(error) => {
                tracing::warn!(error = error::chain(&error), "the tree could not be read");
            }
        }
        // A CPU may have noted one that was entered now as out of scope.
        if let Some(kernel) = &mut self.kernel
            && let Err(error) = kernel.accounts.invalidate()
        {
            tracing::warn!(%error, "what was found now may not be accounted");
        }
    }

    /// The kernel's table; empty where there is none.
    fn table(&self) -> Vec<(u64, Tracked)> {
        let kernel = self.kernel.as_ref();
        kernel.map(|k| k.accounts.table()).unwrap_or_default()
    }

    /// What was lost since the start.
    pub fn drops(&self) -> DropStats {
        let kernel = self.kernel.as_ref();
        kernel
            .and_then(|k| k.accounts.drops().ok())
            .unwrap_or_default()
    }
}
