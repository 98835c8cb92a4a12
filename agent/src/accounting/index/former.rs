//! The figures of cgroups that are gone, also of those that were removed while no agent ran.
//!
//! Their sums are beside the accounts ([`AccountReader`]), one for each fold target. The index holds no sum, so an agent
//! that dies loses none.

use std::time::Instant;

use podwarden_abi::{Account, Tracked};
use podwarden_cgroup::CgroupPath;
use podwarden_policy::model::QosClass;

use super::{AccountReader, CgroupIndex, Node, PodEntry, Role, left};
use crate::kernel::accounts::{FoldTarget, PodKey};

/// The container of a pod's cgroups whose name is lost.
const NAMELESS: &str = "";

impl CgroupIndex {
    /// The fold target of `id`, which is about to leave the index: the nearest of its pod's cgroups, or the class where
    /// the pod has no other.
    pub(super) fn fold_target(&self, id: u64, node: &Node) -> FoldTarget {
        let Some((uid, container)) = node.role.owner() else {
            return match node.role {
                Role::Former { class: Some(class) } => FoldTarget::Class(class),
                _ => FoldTarget::Others,
            };
        };
        let Some(entry) = self.pods.get(uid) else {
            return FoldTarget::Others;
        };
        let beside = container.and_then(|name| entry.containers.get(name));
        let anywhere = entry
            .containers
            .values()
            .flat_map(|container| &container.nodes);
        let other = |found: &&u64| **found != id;
        // Of several the one that came last.
        beside
            .and_then(|container| container.cgroups.iter().rfind(other))
            .or_else(|| entry.nodes.iter().filter(other).max())
            .or_else(|| anywhere.filter(other).max())
            .map_or(FoldTarget::Class(entry.class), |id| FoldTarget::Cgroup(*id))
    }

    /// Enters, as gone, the cgroups that an agent before this one knew and the index lacks; `known` has parents before
    /// their children. Only the kernel's table names them, and that agent's note where they were pods. Their figures
    /// count at once, and they leave the index like any other.
    pub fn inherit(
        &mut self,
        known: impl IntoIterator<Item = (u64, Tracked, Option<PodKey>)>,
        now: Instant,
    ) {
        let mut gone = Vec::new();
        for (id, tracked, pod) in known {
            if !self.nodes.contains_key(&id) {
                self.enter_former(id, &tracked, pod);
                gone.push(id);
            }
        }
        // Children leave first: the notes of their parents name their pod.
        for id in gone.into_iter().rev() {
            self.removed(id, now);
        }
    }

    fn enter_former(&mut self, id: u64, tracked: &Tracked, pod: Option<PodKey>) {
        let role = self.former_role(tracked.parent, pod);
        if let Some((uid, container)) = role.owner()
            && let Some(entry) = self.pods.get_mut(uid)
        {
            match container {
                None => entry.nodes.insert(id),
                Some(name) => {
                    let one = entry.containers.entry((*name).into()).or_default();
                    if matches!(role, Role::Container { .. }) {
                        one.cgroups.insert(id);
                    }
                    one.nodes.insert(id)
                }
            };
        } else {
            self.former.insert(id);
        }
        let node = Node {
            path: CgroupPath::ROOT,
            role,
            slot: tracked.slot,
            own: tracked.own_slot().is_some(),
            gone: false,
        };
        self.nodes.insert(id, node);
    }

    /// What a cgroup was that is gone, by its parent.
    fn former_role(&self, parent: u64, pod: Option<PodKey>) -> Role {
        if let Some(pod) = pod {
            // Made anew under its uid, it is the same pod still.
            let same = |entry: &PodEntry, uid: &str| PodKey::new(entry.class, uid) == pod;
            let mut pods = self.pods.iter();
            return match pods.find(|(uid, entry)| same(entry, uid)) {
                Some((uid, entry)) => Role::Pod {
                    uid: uid.clone(),
                    class: entry.class,
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
    pub fn gone(&self, class: QosClass, figures: &impl AccountReader) -> Account {
        let mut sum = figures.folded(FoldTarget::Class(class));
        self.add_former(&mut sum, Some(class), figures);
        sum
    }

    /// Adds what cgroups of former pods of a class, or of none, have counted.
    pub(super) fn add_former(
        &self,
        sum: &mut Account,
        of: Option<QosClass>,
        figures: &impl AccountReader,
    ) {
        for id in &self.former {
            if let Some(node) = self.nodes.get(id)
                && matches!(&node.role, Role::Former { class } if *class == of)
            {
                sum.accumulate(&left(*id, node, figures));
            }
        }
    }
}
