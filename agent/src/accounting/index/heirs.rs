//! What becomes of the figures of cgroups that are gone, and of cgroups that went while no agent ran.
//!
//! Sums of what is gone are kept beside the accounts themselves ([`Figures`]), by whom they count to: the
//! books hold none, so that an agent that dies loses none.

use std::time::Instant;

use podwarden_abi::{Account, Tracked};
use podwarden_policy::model::QosClass;

use super::{Figures, Ledger, Node, PodBook, Role, left};
use crate::kernel::accounts::add;

/// Whom the figures of a cgroup that is gone count to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Heir {
    /// A cgroup of the same pod.
    Cgroup(u64),
    /// The pods of a class that are gone.
    Class(QosClass),
    /// Cgroups that belonged to no pod.
    Others,
}

/// Which pod a cgroup is, in a form that fits the kernel's maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its class by its place.
    pub class: QosClass,
    /// FNV-1a of its uid, 64 bits: the same in every build.
    pub uid_hash: u64,
}

impl PodIdentity {
    /// Of a pod.
    pub fn new(class: QosClass, uid: &str) -> Self {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self {
            class,
            uid_hash: uid.bytes().fold(0xcbf2_9ce4_8422_2325, fnv),
        }
    }
}

/// The container that cgroups of a pod are entered under whose name nobody knows any more.
const NAMELESS: &str = "";

impl Ledger {
    /// Whom the figures of `id`, which is about to leave the books, count to: the nearest of its pod's
    /// cgroups, and the class once there is none.
    pub(super) fn heir(&self, id: u64, node: &Node) -> Heir {
        let Some((uid, container)) = node.role.owner() else {
            return match node.role {
                Role::Former { class: Some(class) } => Heir::Class(class),
                _ => Heir::Others,
            };
        };
        let Some(book) = self.pods.get(uid) else {
            return Heir::Others;
        };
        let beside = container.and_then(|name| book.containers.get(name));
        let beside = beside.into_iter().flat_map(|entry| &entry.nodes);
        let anywhere = book.containers.values().flat_map(|entry| &entry.nodes);
        let other = |found: &&u64| **found != id;
        // Of several the one that came last.
        beside
            .filter(|found| self.is_container(**found))
            .filter(other)
            .max()
            .or_else(|| book.nodes.iter().filter(other).max())
            .or_else(|| anywhere.filter(other).max())
            .map_or(Heir::Class(book.class), |id| Heir::Cgroup(*id))
    }

    /// Cgroups that an agent before this one knew, parents before their children: those that are not in the
    /// books are gone. Of them only the kernel's table tells, and that agent's note where they were pods.
    /// Their figures count at once, and they leave the books like any other.
    pub fn inherit(
        &mut self,
        known: impl IntoIterator<Item = (u64, Tracked, Option<PodIdentity>)>,
        now: Instant,
    ) {
        let mut gone = Vec::new();
        for (id, tracked, pod) in known {
            if !self.nodes.contains_key(&id) {
                self.enter_former(id, &tracked, pod);
                gone.push(id);
            }
        }
        // Children leave first: until they have, their parents' notes tell whose they were.
        for id in gone.into_iter().rev() {
            self.removed(id, now);
        }
    }

    fn enter_former(&mut self, id: u64, tracked: &Tracked, pod: Option<PodIdentity>) {
        let role = self.former_role(tracked.parent, pod);
        if let Some((uid, container)) = role.owner()
            && let Some(book) = self.pods.get_mut(uid)
        {
            match container {
                None => &mut book.nodes,
                Some(name) => &mut book.containers.entry(name.to_owned()).or_default().nodes,
            }
            .insert(id);
        } else {
            self.former.insert(id);
        }
        let node = Node {
            rel: String::new(),
            role,
            slot: tracked.slot,
            own: tracked.own_slot().is_some(),
            gone: false,
        };
        self.nodes.insert(id, node);
    }

    /// What a cgroup was that is gone, by its parent.
    fn former_role(&self, parent: u64, pod: Option<PodIdentity>) -> Role {
        if let Some(pod) = pod {
            // Made anew under its uid, it is the same pod still.
            let same = |book: &PodBook, uid: &str| PodIdentity::new(book.class, uid) == pod;
            let mut pods = self.pods.iter();
            return match pods.find(|(uid, book)| same(book, uid)) {
                Some((uid, book)) => Role::Pod {
                    uid: uid.clone(),
                    class: book.class,
                },
                None => Role::Former {
                    class: Some(pod.class),
                },
            };
        }
        match self.nodes.get(&parent).map(|node| &node.role) {
            Some(Role::Pod { uid, .. }) => Role::Container {
                uid: uid.clone(),
                id: NAMELESS.to_owned(),
            },
            Some(Role::Container { uid, id } | Role::Nested { uid, id }) => Role::Nested {
                uid: uid.clone(),
                id: id.clone(),
            },
            Some(Role::Tier(class)) => Role::Former {
                class: Some(*class),
            },
            Some(Role::Former { class }) => Role::Former { class: *class },
            Some(Role::Root | Role::Other) | None => Role::Former { class: None },
        }
    }

    /// What pods of a class that are gone had used.
    pub fn gone(&self, class: QosClass, figures: &impl Figures) -> Account {
        let mut sum = figures.retired(Heir::Class(class));
        self.add_former(&mut sum, Some(class), figures);
        sum
    }

    /// Adds what cgroups of former pods of a class, or of none, have counted.
    pub(super) fn add_former(
        &self,
        sum: &mut Account,
        of: Option<QosClass>,
        figures: &impl Figures,
    ) {
        for id in &self.former {
            if let Some(node) = self.nodes.get(id)
                && matches!(&node.role, Role::Former { class } if *class == of)
            {
                add(sum, &left(*id, node, figures));
            }
        }
    }
}
