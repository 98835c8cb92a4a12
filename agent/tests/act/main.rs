//! Plan and actor against the cgroups of this machine's own kernel, below a private root.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use podwarden::{
    api::types::CgroupWrites,
    config::{Config, Machine, Overrides},
    hierarchy::{
        act::{Actor, Backend, Files, Operation, Outcome, Performed},
        sense::{self, Wanted},
    },
};
use podwarden_cgroup::{
    CgroupLayout, CgroupPath, Controller, Created, Driver, Error, Hierarchies, SystemdError, Tree,
};
use podwarden_policy::{
    Bytes, Container, MilliCpu, Pod, QosClass, Resources,
    limits::{CpuMax, Limit},
    name::CgroupName,
    plan::{self, Action},
    settings::Setting,
};

#[path = "../../cgroup/tests/kernel/support.rs"]
#[allow(dead_code)]
mod support;

use support::Attach;

const CONFIG: &str = "apiVersion: podwarden.io/v1alpha1\nkind: AgentConfig\n\
    capacity: {cpu: 4, memory: 8Gi}\npodPidsLimit: 500\n\
    memoryReservationPolicy: TieredReservation\nqosReserved: {memory: 50%}\n";

/// A node without an agent's loops. Dropping it removes its cgroups.
struct World {
    tree: Tree,
    outer: Tree,
    root: String,
    layout: CgroupLayout,
    config: Config,
    actor: Actor,
    pods: Vec<Pod>,
    /// Cgroups of pods that were there at any time.
    known: Vec<CgroupName>,
}

impl World {
    /// `None`, with the reason printed, where cgroups cannot be made.
    fn new(test: &str) -> Option<Self> {
        let hierarchies = match Hierarchies::detect() {
            Ok(hierarchies) => hierarchies,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        if !rustix::process::geteuid().is_root()
            || hierarchies.mount_of(Controller::Memory).is_err()
        {
            println!("skipped: needs root and a memory controller");
            return None;
        }
        let root = format!("podwarden-act-{}-{test}", std::process::id());
        let tree = Tree::new(hierarchies.clone(), &root).unwrap();
        if let Err(error) = tree.create(&CgroupPath::ROOT) {
            assert!(error.is_permission(), "{error}");
            println!("skipped: {error}");
            return None;
        }
        Some(Self {
            tree,
            outer: Tree::new(hierarchies, "").unwrap(),
            root,
            layout: CgroupLayout::new(Driver::Cgroupfs, ""),
            config: Config::parse("test", CONFIG, Overrides::default()).unwrap(),
            actor: Actor::new(true, Arc::new(Files)),
            pods: Vec::new(),
            known: Vec::new(),
        })
    }

    fn plan(&mut self) -> Vec<Action> {
        for pod in &self.pods {
            let class = podwarden_policy::qos::classify(pod);
            let name = self.layout.kubepods.pod(class, &pod.uid);
            if !self.known.contains(&name) {
                self.known.push(name);
            }
        }
        let machine = Machine::probe().unwrap();
        let node = self.config.node(&machine, Driver::Cgroupfs);
        let snapshot = sense::snapshot(
            &self.tree,
            &self.layout,
            &self.config,
            &node,
            Wanted {
                pods: self.pods.clone(),
                incomplete: false,
            },
            &self.known,
            |path| self.actor.made(path),
        );
        plan::plan(&snapshot)
    }

    fn pass(&mut self) -> Performed {
        let actions = self.plan();
        self.actor.reconcile(&self.tree, &self.layout, &actions)
    }

    fn writes(&self) -> CgroupWrites {
        self.actor.counters().now().writes()
    }

    fn path(&self, pod: usize) -> CgroupPath {
        let pod = &self.pods[pod];
        let class = podwarden_policy::qos::classify(pod);
        self.layout.path(&self.layout.kubepods.pod(class, &pod.uid))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let removed = self.outer.remove(&self.root.as_str().into());
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

/// A pod of one container with a limit of CPU, in thousandths.
fn pod(uid: &str, cpu_limit: u64) -> Pod {
    Pod {
        uid: uid.into(),
        name: uid.to_owned(),
        containers: vec![Container {
            name: "main".to_owned(),
            resources: Resources {
                cpu_request: Some(MilliCpu(100)),
                cpu_limit: Some(MilliCpu(cpu_limit)),
                memory_request: Some(Bytes::mebi(32)),
                memory_limit: Some(Bytes::mebi(64)),
                ..Resources::default()
            },
            ..Container::default()
        }],
        ..Pod::default()
    }
}

#[test]
fn a_second_pass_writes_nothing_and_one_change_only_that() {
    let Some(mut world) = World::new("second") else {
        return;
    };
    world.pods = (0..20).map(|i| pod(&format!("uid-{i}"), 200)).collect();
    let first = world.pass();
    assert_eq!((first.failed, first.postponed), (0, 0));
    let written = world.writes();
    // kubepods, two tiers, the pods.
    assert_eq!(written.created, 23);
    assert!(written.updated >= 20 * 4, "{written:?}");

    assert_eq!(world.plan(), []);
    world.pass();
    assert_eq!(world.writes(), written);

    world.pods[7].containers[0].resources.cpu_limit = Some(MilliCpu(300));
    world.pass();
    assert_eq!(world.writes().updated, written.updated + 1);
    let quota = world.tree.read(&world.path(7)).cpu_max.unwrap();
    assert_eq!(quota.quota_us, Limit::At(30_000));
    assert_eq!(world.plan(), []);

    let last = *world.actor.counters().now().last().unwrap();
    assert_eq!((last.actions, last.writes, last.failed), (1, 1, 0));
    assert_eq!(world.actor.counters().now().reconciles(), 3);
}

#[test]
fn a_refused_value_stops_no_other_pod_and_is_tried_again() {
    let Some(mut world) = World::new("refused") else {
        return;
    };
    if world.tree.hierarchies().is_on_v2(Controller::Cpu) {
        println!("skipped: cgroup v2 takes a quota above the parent's");
        return;
    }
    world.pods = vec![pod("a", 200), pod("b", 200), pod("c", 200)];
    assert!(!world.pass().is_incomplete());
    // A foreign limit on one pod's parent; v1 refuses more below it.
    let tier = world
        .layout
        .path(&world.layout.kubepods.tier(QosClass::Burstable));
    let quota = CpuMax {
        quota_us: Limit::At(25_000),
        period_us: 100_000,
    };
    world.tree.write(&tier, &Setting::CpuMax(quota)).unwrap();
    for (index, limit) in [(0, 240), (1, 500), (2, 250)] {
        world.pods[index].containers[0].resources.cpu_limit = Some(MilliCpu(limit));
    }
    // The tier's own quota is a foreign value, but no value of ours is there to restore it.
    let refused = world.pass();
    assert_eq!((refused.done, refused.failed), (2, 1));
    assert!(refused.is_incomplete());
    assert_eq!(world.writes().failed, 1);
    let none = Setting::CpuMax(CpuMax::UNLIMITED);
    world.tree.write(&tier, &none).unwrap();
    let then = world.pass();
    assert_eq!((then.done, then.failed), (1, 0));
    let quota = world.tree.read(&world.path(1)).cpu_max.unwrap();
    assert_eq!(quota.quota_us, Limit::At(50_000));
}

#[test]
fn a_pod_is_removed_with_what_a_runtime_left_when_no_process_is_in_it() {
    let Some(mut world) = World::new("removed") else {
        return;
    };
    world.pods = ["used", "nested", "left", "empty"]
        .map(|uid| pod(uid, 200))
        .to_vec();
    world.pass();
    let [used, nested, left, empty] = [0, 1, 2, 3].map(|i| world.path(i));
    let container = |pod: &CgroupPath| {
        let path = CgroupPath::from(format!("{pod}/container").as_str());
        let _made_by_others = world.tree.create(&path).unwrap();
        path
    };
    let [running, _gone] = [&nested, &left].map(container);
    let sleepers = [&used, &running].map(|place| {
        let sleeper = Sleeper::start();
        let attach = Attach::open(&world.tree, place.as_str());
        attach.put(sleeper.0.id().to_string().as_bytes()).unwrap();
        sleeper
    });

    world.pods.clear();
    let performed = world.pass();
    assert_eq!((performed.postponed, performed.failed), (2, 0));
    for gone in [&left, &empty] {
        assert!(world.tree.id(gone).is_err(), "{gone} is still there");
    }
    for stays in [&used, &running] {
        assert!(world.tree.id(stays).is_ok(), "{stays} is gone");
    }

    drop(sleepers);
    assert!(!world.pass().is_incomplete());
    for gone in [&used, &nested] {
        assert!(world.tree.id(gone).is_err(), "{gone} is still there");
    }
    assert_eq!(world.writes().removed, 4);
    let tally = world.actor.counters().now();
    let deletes = tally.of(Operation::Delete);
    assert_eq!(deletes.of(Outcome::Unchanged), 2);
}

#[test]
fn what_others_wrote_is_counted_when_it_is_corrected() {
    let Some(mut world) = World::new("corrected") else {
        return;
    };
    world.pods = vec![pod("a", 200)];
    world.pass();
    world
        .tree
        .write(&world.path(0), &Setting::PidsLimit(Limit::At(7)))
        .unwrap();
    let actions = world.plan();
    world.actor.correct(&world.tree, &world.layout, &actions);
    assert_eq!(world.writes().corrected, 1);
    assert_eq!(
        world.tree.read(&world.path(0)).pids_limit,
        Some(Limit::At(500))
    );
}

#[test]
fn observe_mode_changes_nothing() {
    let Some(mut world) = World::new("observe") else {
        return;
    };
    world.actor = Actor::new(false, Arc::new(Files));
    world.pods = vec![pod("a", 200)];
    let performed = world.pass();
    assert!(performed.withheld > 0);
    assert_eq!(world.writes(), CgroupWrites::default());
    assert!(world.tree.id(&"kubepods".into()).is_err());
}

/// A process that does nothing and ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        let sleep = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn();
        Self(sleep.unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A systemd that has stopped to answer, as the driver reports it.
#[derive(Debug, Default)]
struct Silent(AtomicU32);

impl Silent {
    fn asked<T>(&self) -> Result<T, Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(Error::Systemd(SystemdError::Unreachable {
            bus: "no answer".to_owned(),
            socket: "no answer".to_owned(),
        }))
    }
}

impl Backend for Silent {
    fn limit(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn create(&self, _: &Tree, _: &CgroupPath, _: &[Setting]) -> Result<Created, Error> {
        self.asked()
    }

    fn write(&self, _: &Tree, _: &CgroupPath, _: &Setting) -> Result<(), Error> {
        self.asked()
    }

    fn remove(&self, _: &Tree, _: &CgroupPath, _: &Created) -> Result<(), Error> {
        self.asked()
    }

    fn made_before(&self, _: &Tree, _: &CgroupPath) -> Result<Created, Error> {
        Ok(Created::default())
    }

    fn remove_unused(&self, _: &Tree, _: Vec<PathBuf>) {}
}

/// Each call would wait for half a minute: the first one that is not answered ends the pass.
#[test]
fn a_pass_ends_at_the_first_call_that_is_not_answered() {
    let Some(mut world) = World::new("silent") else {
        return;
    };
    let silent = Arc::new(Silent::default());
    world.actor = Actor::new(true, Arc::clone(&silent) as Arc<dyn Backend>);
    world.pods = (0..10).map(|n| pod(&format!("uid-{n}"), 500)).collect();
    let actions = world.plan();
    let performed = world.pass();
    assert_eq!(silent.0.load(Ordering::Relaxed), 1);
    assert_eq!(performed.failed as usize, actions.len());
    assert!(performed.is_incomplete(), "it is tried again");
    assert_eq!(performed.refused.len(), actions.len());
}
