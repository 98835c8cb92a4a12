//! The machine: a tree of cgroups, the maps, and an agent that comes and goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use podwarden_abi::{Account, NO_SLOT, Tracked};
use podwarden_policy::model::QosClass;

use crate::{
    accounting::index::{AccountReader, AccountStore, CgroupIndex, Change},
    kernel::{
        accounts::{
            FoldTarget, PodKey,
            fold::{Maps as _, Records, fold, settle, tables::Tables},
        },
        events::CgroupChange,
    },
};

pub(super) const SLOTS: u32 = 64;
const ROOT: u64 = 1;

/// What an agent has in memory besides its cgroup index.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) tables: Tables,
    pub(super) records: Records,
}

impl AccountReader for Kernel {
    fn read(&self, slot: u32) -> Option<Account> {
        self.tables.figures(slot)
    }
    fn folded(&self, target: FoldTarget) -> Account {
        let record = self.records.get(&target.key());
        record.map(|record| record.sum).unwrap_or_default()
    }
}

impl AccountStore for Kernel {
    fn fold(&mut self, id: u64, own: Option<u32>, target: FoldTarget) {
        let key = target.key();
        fold(&mut self.records, &mut self.tables, id, own, key);
    }
}

/// A cgroup of the tree.
#[derive(Debug, Clone)]
pub(super) struct Cgroup {
    pub(super) parent: u64,
    name: String,
    pub(super) depth: u16,
    class: Option<QosClass>,
    pub(super) pod: Option<String>,
    pub(super) container: Option<String>,
}

/// The machine: a tree, the maps, and an agent that comes and goes.
#[derive(Debug)]
pub(super) struct World {
    pub(super) tree: BTreeMap<u64, Cgroup>,
    pub(super) kernel: Kernel,
    index: CgroupIndex,
    now: Instant,
    pub(super) next: u64,
    /// What was ever used, by class (`None`: by no pod) and by pod and container that are there.
    classes: BTreeMap<Option<QosClass>, u64>,
    pods: BTreeMap<String, u64>,
    containers: BTreeMap<(String, String), u64>,
}

impl World {
    pub(super) fn new() -> Self {
        let root = Cgroup {
            parent: 0,
            name: "kubepods".to_owned(),
            depth: 0,
            class: None,
            pod: None,
            container: None,
        };
        let mut world = Self {
            tree: BTreeMap::from([(ROOT, root)]),
            kernel: Kernel::default(),
            index: CgroupIndex::default(),
            now: Instant::now(),
            next: ROOT + 1,
            classes: BTreeMap::new(),
            pods: BTreeMap::new(),
            containers: BTreeMap::new(),
        };
        world.start();
        for tier in ["burstable", "besteffort"] {
            world.make(ROOT, tier.to_owned());
        }
        world
    }

    /// A new agent takes over: `Accounts::new` and `Accounting::start` in small.
    pub(super) fn start(&mut self) {
        let Kernel { tables, records } = &mut self.kernel;
        tables.left = None;
        records.clone_from(&tables.records);
        let table = tables.tracked.iter().map(|(id, t)| (*id, *t)).collect();
        let settled = settle(records, tables, table, SLOTS);
        assert_eq!(settled.wrong, 0);
        assert_eq!(*records, tables.records);
        tables.free.clear();
        for slot in (1..SLOTS).filter(|slot| !settled.used.contains(slot)) {
            tables.clear(slot);
            tables.free(slot);
        }
        let slot = self.track(ROOT, 0, 0);
        self.index = CgroupIndex::new(ROOT, &"kubepods".into(), slot);
        for (id, cgroup) in self.tree.clone() {
            if id != ROOT {
                self.track(id, cgroup.parent, cgroup.depth);
                self.enter(id, &cgroup);
            }
        }
        let inherited: Vec<_> = settled
            .inherited
            .into_iter()
            .map(|(id, tracked)| (id, tracked, self.pod_of(id)))
            .collect();
        self.index.inherit(inherited, self.now);
        self.look();
    }

    fn pod_of(&self, id: u64) -> Option<PodKey> {
        PodKey::of(self.kernel.records.get(&id)?)
    }

    /// Puts a cgroup in scope, unless it is.
    fn track(&mut self, id: u64, parent: u64, depth: u16) -> u32 {
        let tables = &mut self.kernel.tables;
        let fresh = match tables.tracked.get(&id) {
            Some(tracked) => return tracked.slot,
            None if depth <= 3 => tables.free.pop(),
            None => None,
        };
        let above = tables.tracked.get(&parent).map_or(0, |t| t.slot);
        let tracked = Tracked {
            slot: fresh.unwrap_or(above),
            depth,
            own: u16::from(fresh.is_some()),
            parent,
        };
        tables.tracked.insert(id, tracked);
        tracked.slot
    }

    /// The agent hears of a cgroup.
    fn enter(&mut self, id: u64, cgroup: &Cgroup) {
        let slot = self.kernel.tables.tracked[&id].slot;
        let change = CgroupChange {
            time_ns: 0,
            id,
            parent: cgroup.parent,
            slot,
            depth: 0,
            name: cgroup.name.clone(),
        };
        for change in self.index.created(&change).expect("its parent is known") {
            if let Change::PodAppeared { uid, class } = change {
                let record = self.kernel.records.entry(id).or_default();
                PodKey::new(class, &uid).note_in(record);
                let record = *record;
                self.kernel.tables.write(id, &record);
            }
        }
    }

    /// A cgroup is made while an agent runs: its programs put it in scope.
    pub(super) fn make(&mut self, parent: u64, name: String) {
        let id = self.next;
        self.next += 1;
        let above = self.tree[&parent].clone();
        let pod = name.strip_prefix("pod").map(str::to_owned);
        let class = match (above.depth, name.as_str()) {
            (0, "burstable") => Some(QosClass::Burstable),
            (0, "besteffort") => Some(QosClass::BestEffort),
            (0, _) => Some(QosClass::Guaranteed),
            _ => above.class,
        };
        let container = above.pod.as_ref().map(|_| name.clone());
        let cgroup = Cgroup {
            parent,
            depth: above.depth + 1,
            class,
            container: above.container.or(container),
            pod: above.pod.or(pod),
            name,
        };
        self.tree.insert(id, cgroup.clone());
        self.track(id, parent, cgroup.depth);
        self.enter(id, &cgroup);
    }

    /// A cgroup uses something; what no pod is in counts to no class.
    pub(super) fn use_some(&mut self, id: u64, ns: u64) {
        let slot = self.kernel.tables.tracked[&id].slot;
        if slot == NO_SLOT {
            return;
        }
        self.kernel.tables.accounts.entry(slot).or_default().cpu_ns += ns;
        let cgroup = &self.tree[&id];
        let class = cgroup.class.filter(|_| cgroup.pod.is_some());
        *self.classes.entry(class).or_default() += ns;
        if let Some(pod) = &cgroup.pod {
            *self.pods.entry(pod.clone()).or_default() += ns;
            if let Some(container) = &cgroup.container {
                let key = (pod.clone(), container.clone());
                *self.containers.entry(key).or_default() += ns;
            }
        }
    }

    /// Removes a cgroup with all below it, children first. Returns the removed ones.
    pub(super) fn remove(&mut self, id: u64) -> Vec<u64> {
        let below: Vec<u64> = self
            .tree
            .iter()
            .filter(|(_, c)| c.parent == id)
            .map(|(id, _)| *id)
            .collect();
        let mut gone: Vec<u64> = below.into_iter().flat_map(|id| self.remove(id)).collect();
        let cgroup = self.tree.remove(&id).expect("it is there");
        match (&cgroup.pod, &cgroup.container, cgroup.depth) {
            (Some(pod), Some(container), _) if cgroup.name == *container => {
                self.containers.remove(&(pod.clone(), container.clone()));
            }
            (Some(pod), None, _) => {
                self.pods.remove(pod);
            }
            _ => {}
        }
        gone.push(id);
        gone
    }

    /// The agent hears that they went; it may die in the middle.
    pub(super) fn hear_of(&mut self, gone: &[u64], dies_after: Option<u32>) {
        for id in gone {
            self.index.removed(*id, self.now);
        }
        self.look();
        self.kernel.tables.left = dies_after;
        self.now += Duration::from_secs(2);
        self.index.expire(self.now, &mut self.kernel);
        if dies_after.is_some() {
            self.start();
        }
        self.look();
    }

    /// The index has the exact usage.
    pub(super) fn look(&self) {
        let mut sums: BTreeMap<Option<QosClass>, u64> = BTreeMap::new();
        for (uid, entry) in self.index.pods() {
            let mut total = self.index.pod_only(entry, &self.kernel).cpu_ns;
            for (id, container) in &entry.containers {
                let used = self.index.container(container, &self.kernel).cpu_ns;
                total += used;
                let key = (uid.to_string(), id.to_string());
                if let Some(expected) = self.containers.get(&key) {
                    assert_eq!(used, *expected, "container {id} of {uid}");
                }
            }
            if let Some(expected) = self.pods.get(uid.as_str()) {
                assert_eq!(total, *expected, "pod {uid}");
            }
            *sums.entry(Some(entry.class)).or_default() += total;
        }
        for class in QosClass::ALL {
            *sums.entry(Some(class)).or_default() += self.index.gone(class, &self.kernel).cpu_ns;
        }
        *sums.entry(None).or_default() += self.index.others(&self.kernel).cpu_ns;
        for (class, expected) in &self.classes {
            assert_eq!(sums.get(class), Some(expected), "class {class:?}");
        }
        let mut slots = BTreeSet::new();
        for slot in &self.kernel.tables.free {
            assert!(slots.insert(*slot), "account {slot} is free twice");
            assert!(
                !self.kernel.tables.accounts.contains_key(slot),
                "account {slot} is free and not empty"
            );
        }
        for tracked in self.kernel.tables.tracked.values() {
            if let Some(slot) = tracked.own_slot() {
                assert!(slots.insert(slot), "account {slot} has two owners");
            }
        }
    }
}
