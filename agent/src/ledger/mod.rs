//! The books: which cgroup belongs to which pod, and what each pod has used so far.
//!
//! Fed by the tree walk at the start and by kernel events from then on; never polls. The kernel side
//! counts per cgroup; a pod's figure is the sum over the cgroups below it plus what cgroups that
//! are gone had used (`retired`), so it never goes backwards.

mod role;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use podwarden_abi::{Account, NO_SLOT};
use podwarden_policy::model::QosClass;

pub use role::Role;

use crate::kernel::{accounts::add, events::CgroupChange};

/// How long after its removal a cgroup may still be counted to: its last tasks are past
/// `cgroup_exit` then but have to be switched out once more. `cgroup_release` says so exactly, but
/// page cache can hold that back for hours.
const GRACE: Duration = Duration::from_secs(1);

/// Where the figures are; the kernel's maps, or a table in tests.
pub trait Figures {
    /// The account's figures; `None` where it cannot be read.
    fn read(&self, slot: u32) -> Option<Account>;
    /// Cgroup `id` is gone for good; `own` is its account when it had one to itself.
    fn forget(&mut self, id: u64, own: Option<u32>);
}

/// A cgroup in scope.
#[derive(Debug, Clone)]
struct Node {
    rel: String,
    role: Role,
    slot: u32,
    /// True when no other cgroup counts to `slot`.
    own: bool,
    gone: bool,
}

/// One container of a pod.
#[derive(Debug, Default, Clone)]
pub struct ContainerBook {
    nodes: BTreeSet<u64>,
    retired: Account,
    /// Its cgroup, relative to the root.
    pub rel: String,
    /// False once its cgroup is gone.
    pub live: bool,
}

/// One pod.
#[derive(Debug, Clone)]
pub struct PodBook {
    /// Its class as its place in the tree says.
    pub class: QosClass,
    /// Its cgroup, relative to the root.
    pub rel: String,
    /// The pod's own cgroup; containers have theirs. Two while one replaces the other.
    nodes: BTreeSet<u64>,
    retired: Account,
    /// By container id.
    pub containers: BTreeMap<String, ContainerBook>,
}

/// What a change means to the rest of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A pod's cgroup is there.
    PodAppeared {
        /// Its uid.
        uid: String,
        /// Its class by its place.
        class: QosClass,
    },
    /// A pod's cgroup is gone and nothing counts to it any more.
    PodGone {
        /// Its uid.
        uid: String,
        /// Its cgroup, relative to the root.
        rel: String,
        /// What it has used in all.
        total: Box<Account>,
    },
    /// A container's cgroup is there.
    ContainerAppeared {
        /// The pod's uid.
        uid: String,
        /// The runtime's id, or the cgroup's name.
        container: String,
    },
    /// A container's cgroup is gone.
    ContainerGone {
        /// The pod's uid.
        uid: String,
        /// As above.
        container: String,
        /// Its cgroup, relative to the root.
        rel: String,
    },
}

/// The books. See the module's text.
#[derive(Debug, Default)]
pub struct Ledger {
    nodes: HashMap<u64, Node>,
    pods: BTreeMap<String, PodBook>,
    dying: VecDeque<(Instant, u64)>,
    /// What pods that are gone had used, by class.
    gone_pods: BTreeMap<QosClass, Account>,
    /// What cgroups that belong to no pod had used.
    gone_others: Account,
}

impl Ledger {
    /// Books for the tree below kubepods, whose cgroup is `rel` with the kernel id `id` and the
    /// account `slot`.
    pub fn new(id: u64, rel: &str, slot: u32) -> Self {
        let mut ledger = Self::default();
        ledger.nodes.insert(
            id,
            Node {
                rel: rel.to_owned(),
                role: Role::Root,
                slot,
                own: slot != NO_SLOT,
                gone: false,
            },
        );
        ledger
    }

    /// A cgroup is there. Twice the same is fine. Returns `None` when its parent is not known (yet).
    pub fn created(&mut self, change: &CgroupChange) -> Option<Vec<Change>> {
        if self.nodes.contains_key(&change.id) {
            return Some(Vec::new());
        }
        let parent = self.nodes.get(&change.parent)?;
        let role = parent.role.child(&change.name);
        let node = Node {
            rel: format!("{}/{}", parent.rel, change.name),
            own: change.slot != NO_SLOT && change.slot != parent.slot,
            slot: change.slot,
            role: role.clone(),
            gone: false,
        };
        let changes = self.enter(change.id, &node);
        self.nodes.insert(change.id, node);
        Some(changes)
    }

    /// Enters a new node into its pod's book.
    fn enter(&mut self, id: u64, node: &Node) -> Vec<Change> {
        let Some((uid, container)) = node.role.owner() else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        if let Role::Pod { class, .. } = node.role {
            let book = self
                .pods
                .entry(uid.to_owned())
                .or_insert_with(|| PodBook::new(class));
            book.class = class;
            book.rel.clone_from(&node.rel);
            changes.push(Change::PodAppeared {
                uid: uid.to_owned(),
                class,
            });
        }
        let Some(book) = self.pods.get_mut(uid) else {
            return changes;
        };
        let Some(container) = container else {
            book.nodes.insert(id);
            return changes;
        };
        let entry = book.containers.entry(container.to_owned()).or_default();
        entry.nodes.insert(id);
        if matches!(node.role, Role::Container { .. }) {
            entry.rel.clone_from(&node.rel);
            entry.live = true;
            changes.push(Change::ContainerAppeared {
                uid: uid.to_owned(),
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

    /// Nothing can count to `id` any more: its figures move to its pod's retired ones.
    pub fn released(&mut self, id: u64, figures: &mut impl Figures) -> Vec<Change> {
        let Some(node) = self.nodes.remove(&id) else {
            return Vec::new();
        };
        let last = if node.own {
            figures.read(node.slot).unwrap_or_default()
        } else {
            Account::default()
        };
        figures.forget(id, node.own.then_some(node.slot));
        self.retire(id, &node, &last)
    }

    fn retire(&mut self, id: u64, node: &Node, last: &Account) -> Vec<Change> {
        let Some((uid, container)) = node.role.owner() else {
            add(&mut self.gone_others, last);
            return Vec::new();
        };
        let Some(book) = self.pods.get_mut(uid) else {
            add(&mut self.gone_others, last);
            return Vec::new();
        };
        let mut changes = Vec::new();
        match container {
            None => {
                book.nodes.remove(&id);
                add(&mut book.retired, last);
            }
            Some(container) => {
                if book.retire_from(container, id, last, &self.nodes) {
                    changes.push(Change::ContainerGone {
                        uid: uid.to_owned(),
                        container: container.to_owned(),
                        rel: node.rel.clone(),
                    });
                }
            }
        }
        // Removals are not always learnt of in their order, and a pod may have been made anew under
        // its uid before the old one was released: it is gone with the last of its cgroups.
        if book.nodes.is_empty() && book.containers.is_empty() {
            let total = book.retired;
            add(self.gone_pods.entry(book.class).or_default(), &total);
            let rel = std::mem::take(&mut book.rel);
            self.pods.remove(uid);
            changes.push(Change::PodGone {
                uid: uid.to_owned(),
                rel,
                total: Box::new(total),
            });
        }
        changes
    }

    /// Retires what was removed longer than [`GRACE`] ago.
    pub fn expire(&mut self, now: Instant, figures: &mut impl Figures) -> Vec<Change> {
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

    /// When [`Ledger::expire`] has something to do next.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.dying.front().map(|(due, _)| *due)
    }

    /// The pods, by uid.
    pub fn pods(&self) -> &BTreeMap<String, PodBook> {
        &self.pods
    }

    /// The pod and container that a cgroup belongs to.
    pub fn owner(&self, id: u64) -> Option<(&str, Option<&str>)> {
        self.nodes.get(&id)?.role.owner()
    }

    /// Cgroups in the books that are not in `present`.
    pub fn missing_from(&self, present: &std::collections::HashSet<u64>) -> Vec<u64> {
        let known = self.nodes.keys();
        known.filter(|id| !present.contains(id)).copied().collect()
    }

    /// True when something in the books counts to the account.
    pub fn uses(&self, slot: u32) -> bool {
        self.nodes.values().any(|node| node.slot == slot)
    }

    /// True when the cgroup is known.
    pub fn knows(&self, id: u64) -> bool {
        self.nodes.contains_key(&id)
    }

    /// What a set of cgroups has counted.
    fn sum(&self, nodes: &BTreeSet<u64>, retired: &Account, figures: &impl Figures) -> Account {
        let mut sum = *retired;
        for id in nodes {
            if let Some(node) = self.nodes.get(id)
                && node.own
                && let Some(account) = figures.read(node.slot)
            {
                add(&mut sum, &account);
            }
        }
        sum
    }

    /// A container's figures.
    pub fn container(&self, book: &ContainerBook, figures: &impl Figures) -> Account {
        self.sum(&book.nodes, &book.retired, figures)
    }

    /// What counts to the pod's own cgroup and not to a container.
    pub fn pod_only(&self, book: &PodBook, figures: &impl Figures) -> Account {
        self.sum(&book.nodes, &book.retired, figures)
    }

    /// What pods of a class that are gone had used.
    pub fn gone(&self, class: QosClass) -> Account {
        self.gone_pods.get(&class).copied().unwrap_or_default()
    }

    /// What belongs to no pod: tasks directly in kubepods, in a tier or in a foreign cgroup there.
    pub fn others(&self, figures: &impl Figures) -> Account {
        let mut sum = self.gone_others;
        for node in self.nodes.values() {
            if node.own
                && node.role.owner().is_none()
                && let Some(account) = figures.read(node.slot)
            {
                add(&mut sum, &account);
            }
        }
        sum
    }
}

impl PodBook {
    fn new(class: QosClass) -> Self {
        Self {
            class,
            rel: String::new(),
            nodes: BTreeSet::new(),
            retired: Account::default(),
            containers: BTreeMap::new(),
        }
    }

    /// The kernel's number of its cgroup, while there is one; of two the one that came last.
    pub fn cgroup_id(&self) -> Option<u64> {
        self.nodes.last().copied()
    }

    /// Moves a node's last figures to its container's; true when that was the container's cgroup and
    /// it has no other by now. A container without any is dropped, and its figures become the pod's.
    fn retire_from(
        &mut self,
        container: &str,
        id: u64,
        last: &Account,
        nodes: &HashMap<u64, Node>,
    ) -> bool {
        let Some(entry) = self.containers.get_mut(container) else {
            add(&mut self.retired, last);
            return false;
        };
        entry.nodes.remove(&id);
        add(&mut entry.retired, last);
        let is_cgroup = |id| {
            let node = nodes.get(id);
            node.is_some_and(|n| matches!(n.role, Role::Container { .. }))
        };
        let was_live = entry.live;
        entry.live = entry.nodes.iter().any(is_cgroup);
        let stopped = was_live && !entry.live;
        if entry.nodes.is_empty() {
            add(&mut self.retired, &entry.retired);
            self.containers.remove(container);
        }
        stopped
    }
}

#[cfg(test)]
mod tests;
