//! The cgroup index: which cgroup belongs to which pod, and what each pod has used so far.
//!
//! The tree walk fills it at the start, kernel events from then on; it never polls. The kernel side
//! counts per cgroup; a pod's figure is the sum over the cgroups below it plus what cgroups that
//! are gone had used ([`former`]), so it never goes backwards.

mod former;
mod kept;
mod memory_id;
mod role;
mod slots;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use arcstr::ArcStr;
use foldhash::HashMap;
use podwarden_abi::{Account, NO_SLOT};
use podwarden_cgroup::CgroupPath;
use podwarden_policy::{PodUid, QosClass};

pub use kept::forget_gone;
pub use role::Role;

use crate::kernel::{accounts::FoldTarget, events::CgroupChange};

/// How long after its removal a cgroup may still be counted to: its last tasks are past
/// `cgroup_exit` then but have to be switched out once more. `cgroup_release` says so exactly, but
/// page cache can hold that back for hours.
const GRACE: Duration = Duration::from_secs(1);

/// Where the figures are read; the kernel's maps, what a pass has gathered of them, or a table in tests.
pub trait AccountReader {
    /// The account's figures; `None` where it cannot be read.
    fn read(&self, slot: u32) -> Option<Account>;
    /// A number that is another one once a task has run that counts to the account.
    fn activity(&self, slot: u32) -> u64 {
        let account = self.read(slot);
        account.map_or(0, |one| one.cpu_ns.wrapping_add(one.switches))
    }
    /// What cgroups that are gone left to `target`.
    fn folded(&self, target: FoldTarget) -> Account;
}

/// Where the figures are, and what is done to them; the kernel's maps, or a table in tests.
pub trait AccountStore: AccountReader {
    /// Cgroup `id` is gone for good; `own` is its account when it had one to itself. What it counted, and
    /// what others left to it, goes to `target`.
    fn fold(&mut self, id: u64, own: Option<u32>, target: FoldTarget);
}

/// A cgroup in scope.
#[derive(Debug, Clone)]
struct Node {
    path: CgroupPath,
    role: Role,
    slot: u32,
    /// True when no other cgroup counts to `slot`.
    own: bool,
    gone: bool,
}

#[derive(Debug, Default, Clone)]
pub struct ContainerEntry {
    nodes: BTreeSet<u64>,
    /// Those that are its own cgroup: two while one replaces the other.
    cgroups: BTreeSet<u64>,
    /// Its cgroup, relative to the root.
    pub path: CgroupPath,
    /// False once its cgroup is gone.
    pub live: bool,
}

#[derive(Debug, Clone)]
pub struct PodEntry {
    /// Its class as its place in the tree says.
    pub class: QosClass,
    /// Its cgroup, relative to the root.
    pub path: CgroupPath,
    /// The pod's own cgroup; containers have theirs. Two while one replaces the other.
    nodes: BTreeSet<u64>,
    /// By container id.
    pub containers: BTreeMap<ArcStr, ContainerEntry>,
}

/// What a change means to the rest of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A pod's cgroup is there.
    PodAppeared {
        uid: PodUid,
        /// Its class by its place.
        class: QosClass,
    },
    /// A pod's cgroup is gone and nothing counts to it any more.
    PodGone {
        uid: PodUid,
        /// Its cgroup, relative to the root.
        path: CgroupPath,
        /// What it has used in all.
        total: Box<Account>,
    },
    /// A container's cgroup is there.
    ContainerAppeared {
        uid: PodUid,
        /// The runtime's id, or the cgroup's name.
        container: String,
    },
    /// A container's cgroup is gone.
    ContainerGone {
        uid: PodUid,
        container: String,
        /// Its cgroup, relative to the root.
        path: CgroupPath,
    },
}

#[derive(Debug, Default)]
pub struct CgroupIndex {
    nodes: HashMap<u64, Node>,
    pods: BTreeMap<PodUid, PodEntry>,
    dying: VecDeque<(Instant, u64)>,
    /// Those of [`Role::Former`].
    former: BTreeSet<u64>,
}

impl CgroupIndex {
    /// An index of the tree below kubepods, whose cgroup is `path` with the kernel id `id` and the
    /// account `slot`.
    pub fn new(id: u64, path: &CgroupPath, slot: u32) -> Self {
        let mut index = Self::default();
        index.nodes.insert(
            id,
            Node {
                path: path.to_owned(),
                role: Role::Root,
                slot,
                own: slot != NO_SLOT,
                gone: false,
            },
        );
        index
    }

    /// A cgroup is there. Twice the same is fine. Returns `None` when its parent is not known (yet).
    pub fn created(&mut self, change: &CgroupChange) -> Option<Vec<Change>> {
        if self.nodes.contains_key(&change.id) {
            return Some(Vec::new());
        }
        let parent = self.nodes.get(&change.parent)?;
        let role = parent.role.child(&change.name);
        let node = Node {
            path: parent.path.child(&change.name),
            own: change.slot != NO_SLOT && change.slot != parent.slot,
            slot: change.slot,
            role: role.clone(),
            gone: false,
        };
        let changes = self.enter(change.id, &node);
        self.nodes.insert(change.id, node);
        Some(changes)
    }

    /// Enters a new node into its pod's entry.
    fn enter(&mut self, id: u64, node: &Node) -> Vec<Change> {
        let Some((uid, container)) = node.role.owner() else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        if let Role::Pod { class, .. } = node.role {
            let entry = self
                .pods
                .entry(uid.clone())
                .or_insert_with(|| PodEntry::new(class));
            entry.class = class;
            entry.path.clone_from(&node.path);
            changes.push(Change::PodAppeared {
                uid: uid.clone(),
                class,
            });
        }
        let Some(entry) = self.pods.get_mut(uid) else {
            return changes;
        };
        let Some(container) = container else {
            entry.nodes.insert(id);
            return changes;
        };
        let container_entry = entry.containers.entry(container.into()).or_default();
        container_entry.nodes.insert(id);
        if matches!(node.role, Role::Container { .. }) {
            container_entry.cgroups.insert(id);
            container_entry.path.clone_from(&node.path);
            container_entry.live = true;
            changes.push(Change::ContainerAppeared {
                uid: uid.clone(),
                container: container.to_owned(),
            });
        }
        changes
    }

    /// A cgroup was removed; its figures stay for [`GRACE`].
    pub fn removed(&mut self, id: u64, now: Instant) {
        if let Some(node) = self.nodes.get_mut(&id)
            && !node.gone
        {
            node.gone = true;
            self.dying.push_back((now + GRACE, id));
        }
    }

    /// Nothing can count to `id` any more: folds its figures into their target.
    pub fn released(&mut self, id: u64, figures: &mut impl AccountStore) -> Vec<Change> {
        let Some(node) = self.nodes.remove(&id) else {
            return Vec::new();
        };
        let last = left(id, &node, figures);
        let target = self.fold_target(id, &node);
        figures.fold(id, node.own.then_some(node.slot), target);
        self.leave(id, &node, last)
    }

    /// Takes a node out of its pod's entry; `last` is what it left.
    fn leave(&mut self, id: u64, node: &Node, last: Account) -> Vec<Change> {
        self.former.remove(&id);
        let Some((uid, container)) = node.role.owner() else {
            return Vec::new();
        };
        let Some(entry) = self.pods.get_mut(uid) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        match container {
            None => {
                entry.nodes.remove(&id);
            }
            Some(container) => {
                if entry.leave(container, id) {
                    changes.push(Change::ContainerGone {
                        uid: uid.clone(),
                        container: container.to_owned(),
                        path: node.path.clone(),
                    });
                }
            }
        }
        // Removals may arrive out of order, and a pod may have been made anew under its uid before the kernel released
        // the old one. The pod is gone with the last of its cgroups, which has the figures of all the others.
        if entry.nodes.is_empty() && entry.containers.is_empty() {
            let path = std::mem::take(&mut entry.path);
            self.pods.remove(uid);
            changes.push(Change::PodGone {
                uid: uid.clone(),
                path,
                total: Box::new(last),
            });
        }
        changes
    }

    /// Folds what was removed longer than [`GRACE`] ago.
    pub fn expire(&mut self, now: Instant, figures: &mut impl AccountStore) -> Vec<Change> {
        let mut changes = Vec::new();
        while let Some((due, id)) = self.dying.front().copied() {
            if due > now {
                break;
            }
            self.dying.pop_front();
            changes.extend(self.released(id, figures));
        }
        changes
    }

    /// When [`CgroupIndex::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.dying.front().map(|(due, _)| *due)
    }

    pub fn pods(&self) -> &BTreeMap<PodUid, PodEntry> {
        &self.pods
    }

    /// The pod and container that a cgroup belongs to.
    pub fn owner(&self, id: u64) -> Option<(&PodUid, Option<&str>)> {
        self.nodes.get(&id)?.role.owner()
    }

    /// Cgroups in the index that are not in `present`, children before their parents.
    pub fn missing_from(&self, present: &std::collections::HashSet<u64>) -> Vec<u64> {
        let missing = self.nodes.iter().filter(|(id, _)| !present.contains(id));
        let mut missing: Vec<_> = missing
            .map(|(id, node)| (node.path.as_str().len(), *id))
            .collect();
        missing.sort_unstable_by(|a, b| b.cmp(a));
        missing.into_iter().map(|(_, id)| id).collect()
    }

    pub fn contains(&self, id: u64) -> bool {
        self.nodes.contains_key(&id)
    }

    /// What a set of cgroups has counted.
    fn sum(&self, nodes: &BTreeSet<u64>, figures: &impl AccountReader) -> Account {
        let mut sum = Account::default();
        for id in nodes {
            if let Some(node) = self.nodes.get(id) {
                sum.accumulate(&left(*id, node, figures));
            }
        }
        sum
    }

    /// A container's figures.
    pub fn container(&self, entry: &ContainerEntry, figures: &impl AccountReader) -> Account {
        self.sum(&entry.nodes, figures)
    }

    /// What counts to the pod's own cgroup and not to a container.
    pub fn pod_only(&self, entry: &PodEntry, figures: &impl AccountReader) -> Account {
        self.sum(&entry.nodes, figures)
    }

    /// What belongs to no pod: tasks directly in kubepods, in a tier or in a foreign cgroup there.
    pub fn others(&self, figures: &impl AccountReader) -> Account {
        let mut sum = figures.folded(FoldTarget::Others);
        self.add_former(&mut sum, None, figures);
        for (id, node) in &self.nodes {
            if matches!(node.role, Role::Root | Role::Tier(_) | Role::Other) {
                sum.accumulate(&left(*id, node, figures));
            }
        }
        sum
    }
}

/// What a cgroup has counted, and what others have left to it.
fn left(id: u64, node: &Node, figures: &impl AccountReader) -> Account {
    let mut sum = figures.folded(FoldTarget::Cgroup(id));
    if node.own
        && let Some(account) = figures.read(node.slot)
    {
        sum.accumulate(&account);
    }
    sum
}

impl PodEntry {
    pub(crate) fn new(class: QosClass) -> Self {
        Self {
            class,
            path: CgroupPath::ROOT,
            nodes: BTreeSet::new(),
            containers: BTreeMap::new(),
        }
    }

    /// Its containers: the runtime's id and the cgroup, relative to the root.
    pub fn cgroups(&self) -> impl Iterator<Item = (&str, &str)> {
        let containers = self.containers.iter();
        containers.map(|(id, container)| (id.as_str(), container.path.as_str()))
    }

    /// The kernel's number of its cgroup, while there is one; of two the one that came last.
    pub fn cgroup_id(&self) -> Option<u64> {
        self.nodes.last().copied()
    }

    /// Takes a node out of its container's; true when that was the container's cgroup and it has no
    /// other by now. A container without any is dropped.
    fn leave(&mut self, container: &str, id: u64) -> bool {
        let Some(container_entry) = self.containers.get_mut(container) else {
            return false;
        };
        container_entry.nodes.remove(&id);
        container_entry.cgroups.remove(&id);
        let was_live = container_entry.live;
        container_entry.live = was_live && !container_entry.cgroups.is_empty();
        let stopped = was_live && !container_entry.live;
        if container_entry.nodes.is_empty() {
            self.containers.remove(container);
        }
        stopped
    }
}

#[cfg(test)]
mod tests;
