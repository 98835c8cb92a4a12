//! The books over maps in memory, with an agent that dies between any two operations on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use podwarden_policy::model::QosClass;
use proptest::prelude::*;

use super::*;
use crate::{
    accounting::index::{Change, Figures, Heir, Ledger, PodIdentity},
    kernel::{accounts, events::CgroupChange},
};

const SLOTS: u32 = 64;
const ROOT: u64 = 1;

/// The maps, and who may still write to them.
#[derive(Debug, Default)]
struct Tables {
    accounts: BTreeMap<u32, Account>,
    tracked: BTreeMap<u64, Tracked>,
    records: Records,
    /// Ends with the agent.
    free: Vec<u32>,
    /// Operations until the agent dies; none after it has.
    left: Option<u32>,
}

impl Tables {
    fn lives(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

impl Maps for Tables {
    fn figures(&self, slot: u32) -> Option<Account> {
        Some(self.accounts.get(&slot).copied().unwrap_or_default())
    }
    fn write(&mut self, key: u64, record: &Record) {
        if self.lives() {
            self.records.insert(key, *record);
        }
    }
    fn erase(&mut self, key: u64) {
        if self.lives() {
            self.records.remove(&key);
        }
    }
    fn untrack(&mut self, id: u64) {
        if self.lives() {
            self.tracked.remove(&id);
        }
    }
    fn clear(&mut self, slot: u32) {
        if self.lives() {
            self.accounts.remove(&slot);
        }
    }
    fn free(&mut self, slot: u32) {
        if self.lives() {
            self.free.push(slot);
        }
    }
}

/// What an agent has in memory besides its books.
#[derive(Debug, Default)]
struct Kernel {
    tables: Tables,
    records: Records,
}

impl Figures for Kernel {
    fn read(&self, slot: u32) -> Option<Account> {
        self.tables.figures(slot)
    }
    fn retired(&self, heir: Heir) -> Account {
        let record = self.records.get(&accounts::key(heir));
        record.map(|record| record.sum).unwrap_or_default()
    }
    fn retire(&mut self, id: u64, own: Option<u32>, heir: Heir) {
        let key = accounts::key(heir);
        fold(&mut self.records, &mut self.tables, id, own, key);
    }
}

/// A cgroup of the tree.
#[derive(Debug, Clone)]
struct Cgroup {
    parent: u64,
    name: String,
    depth: u16,
    class: Option<QosClass>,
    pod: Option<String>,
    container: Option<String>,
}

/// The machine: a tree, the maps, and an agent that comes and goes.
#[derive(Debug)]
struct World {
    tree: BTreeMap<u64, Cgroup>,
    kernel: Kernel,
    ledger: Ledger,
    now: Instant,
    next: u64,
    /// What was ever used, by class (`None`: by no pod) and by pod and container that are there.
    classes: BTreeMap<Option<QosClass>, u64>,
    pods: BTreeMap<String, u64>,
    containers: BTreeMap<(String, String), u64>,
}

impl World {
    fn new() -> Self {
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
            ledger: Ledger::default(),
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
    fn start(&mut self) {
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
        self.ledger = Ledger::new(ROOT, "kubepods", slot);
        for (id, cgroup) in self.tree.clone() {
            if id != ROOT {
                self.track(id, cgroup.parent, cgroup.depth);
                self.enter(id, &cgroup);
            }
        }
        let inherited: Vec<_> = settled
            .inherited
            .into_iter()
            .map(|(id, tracked)| (id, tracked, self.introduced(id)))
            .collect();
        self.ledger.inherit(inherited, self.now);
        self.look();
    }

    fn introduced(&self, id: u64) -> Option<PodIdentity> {
        let record = self.kernel.records.get(&id)?;
        let class = QosClass::ALL
            .into_iter()
            .find(|class| accounts::class_number(*class) == record.class)?;
        Some(PodIdentity {
            class,
            uid_hash: record.uid_hash,
        })
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
        for change in self.ledger.created(&change).expect("its parent is known") {
            if let Change::PodAppeared { uid, class } = change {
                let pod = PodIdentity::new(class, &uid);
                let record = self.kernel.records.entry(id).or_default();
                record.class = accounts::class_number(class);
                record.uid_hash = pod.uid_hash;
                let record = *record;
                self.kernel.tables.write(id, &record);
            }
        }
    }

    /// A cgroup is made while an agent runs: its programs put it in scope.
    fn make(&mut self, parent: u64, name: String) {
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
    fn use_some(&mut self, id: u64, ns: u64) {
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

    /// A cgroup goes with all below it, children first. The answer is who went.
    fn remove(&mut self, id: u64) -> Vec<u64> {
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
    fn hear_of(&mut self, gone: &[u64], dies_after: Option<u32>) {
        for id in gone {
            self.ledger.removed(*id, self.now);
        }
        self.look();
        self.kernel.tables.left = dies_after;
        self.now += Duration::from_secs(2);
        self.ledger.expire(self.now, &mut self.kernel);
        if dies_after.is_some() {
            self.start();
        }
        self.look();
    }

    /// The books tell exactly what was used.
    fn look(&self) {
        let mut sums: BTreeMap<Option<QosClass>, u64> = BTreeMap::new();
        for (uid, book) in self.ledger.pods() {
            let mut total = self.ledger.pod_only(book, &self.kernel).cpu_ns;
            for (id, container) in &book.containers {
                let used = self.ledger.container(container, &self.kernel).cpu_ns;
                total += used;
                let key = (uid.clone(), id.clone());
                if let Some(expected) = self.containers.get(&key) {
                    assert_eq!(used, *expected, "container {id} of {uid}");
                }
            }
            if let Some(expected) = self.pods.get(uid) {
                assert_eq!(total, *expected, "pod {uid}");
            }
            *sums.entry(Some(book.class)).or_default() += total;
        }
        for class in QosClass::ALL {
            *sums.entry(Some(class)).or_default() += self.ledger.gone(class, &self.kernel).cpu_ns;
        }
        *sums.entry(None).or_default() += self.ledger.others(&self.kernel).cpu_ns;
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

/// Something happens. Numbers choose among what is there.
#[derive(Debug, Clone)]
enum Step {
    Pod(usize),
    Container(usize),
    Nested(usize),
    Use(usize, u64),
    Remove {
        which: usize,
        dies_after: Option<u32>,
    },
    RemoveUnseen(usize),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = 0..1000_usize;
    let step = prop_oneof![
        2 => any.clone().prop_map(Step::Pod),
        3 => any.clone().prop_map(Step::Container),
        2 => any.clone().prop_map(Step::Nested),
        8 => (any.clone(), 1..1000_u64).prop_map(|(which, ns)| Step::Use(which, ns)),
        3 => (any.clone(), prop::option::weighted(0.7, 0..12_u32))
            .prop_map(|(which, dies_after)| Step::Remove { which, dies_after }),
        1 => any.prop_map(Step::RemoveUnseen),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

fn choose(world: &World, which: usize, fits: impl Fn(&Cgroup) -> bool) -> Option<u64> {
    let found: Vec<u64> = world
        .tree
        .iter()
        .filter(|(_, cgroup)| fits(cgroup))
        .map(|(id, _)| *id)
        .collect();
    found.get(which.checked_rem(found.len())?).copied()
}

fn take(world: &mut World, step: &Step) {
    let name = |world: &World, prefix: &str| format!("{prefix}{}", world.next);
    match *step {
        Step::Pod(which) => {
            let above = choose(world, which, |c| {
                c.depth == 0 || (c.depth == 1 && c.pod.is_none())
            });
            world.make(above.expect("the root"), name(world, "podu"));
        }
        Step::Container(which) => {
            if let Some(pod) = choose(world, which, |c| c.pod.is_some() && c.container.is_none()) {
                world.make(pod, name(world, "c"));
            }
        }
        Step::Nested(which) => {
            if let Some(container) = choose(world, which, |c| c.container.is_some()) {
                world.make(container, name(world, "n"));
            }
        }
        Step::Use(which, ns) => {
            let id = choose(world, which, |_| true).expect("the root");
            world.use_some(id, ns);
            world.look();
        }
        Step::Remove { which, dies_after } => {
            if let Some(id) = choose(world, which, |c| c.pod.is_some()) {
                let gone = world.remove(id);
                world.hear_of(&gone, dies_after);
            }
        }
        Step::RemoveUnseen(which) => {
            if let Some(id) = choose(world, which, |c| c.pod.is_some()) {
                world.remove(id);
                world.start();
            }
        }
        Step::Restart => world.start(),
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_nor_counted_twice_whenever_the_agent_dies(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            take(&mut world, step);
        }
        // Everybody goes, and one more agent comes.
        let pods: Vec<u64> = world.tree.iter().filter(|(_, c)| c.container.is_none() && c.pod.is_some())
            .map(|(id, _)| *id).collect();
        for pod in pods {
            let gone = world.remove(pod);
            world.hear_of(&gone, None);
        }
        world.start();
        world.hear_of(&[], None);
        prop_assert_eq!(world.kernel.tables.tracked.len(), 3, "kubepods and its tiers");
        prop_assert!(world.kernel.tables.records.keys().all(|key| is_constant(*key)));
        prop_assert_eq!(world.kernel.tables.free.len(), SLOTS as usize - 4);
    }
}

#[test]
fn a_table_that_contradicts_itself_gives_no_account_to_two() {
    let tracked = |slot, own, depth| Tracked {
        slot,
        own,
        depth,
        parent: 0,
    };
    let table = vec![
        (10, tracked(5, 1, 1)),
        (11, tracked(5, 1, 2)),
        (12, tracked(SLOTS, 1, 2)),
        (13, tracked(NO_SLOT, 1, 2)),
        (14, tracked(5, 0, 2)),
    ];
    let mut tables = Tables {
        tracked: table.iter().copied().collect(),
        ..Tables::default()
    };
    let settled = settle(&mut Records::new(), &mut tables, table, SLOTS);
    assert_eq!(settled.wrong, 3);
    assert_eq!(settled.used, HashSet::from([5]));
    let ids = |found: &[(u64, Tracked)]| found.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(&settled.inherited), [10, 14]);
    assert_eq!(tables.tracked.into_keys().collect::<Vec<_>>(), [10, 14]);
}

#[test]
fn a_record_of_what_is_in_no_table_is_inherited() {
    let record = Record {
        class: 2,
        ..Record::default()
    };
    let mut records = Records::from([(7, record), (constant(2), record), (constant(0), record)]);
    let settled = settle(&mut records, &mut Tables::default(), Vec::new(), SLOTS);
    assert_eq!(settled.inherited, [(7, Tracked::default())]);
    assert_eq!(records.len(), 3, "it is kept until it is folded");
}
