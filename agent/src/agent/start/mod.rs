//! Everything before the loop.

mod programs;

use std::{fs, path::Path, sync::Arc};

use podwarden_cgroup::{
    AgentLock, CgroupLayout, CgroupPath, Controller, Driver, DriverFacts, Hierarchies,
    MemoryReader, Systemd, Tree,
};
use podwarden_policy::{QosClass, evict::Immunity, plan, reserve};

use super::{
    own_pod, process,
    reconciler::{
        Environment, Reconciler, eviction::EvictionManager, figures::FiguresPublisher,
        hierarchy::Hierarchy, pods::Pods,
    },
    telling, wait,
};
use crate::{
    accounting::{Accounting, AccountingError},
    agent::arm,
    api::{
        published::{Figures, Published},
        server::HttpError,
        types::{Eviction, NodeStats},
    },
    config::{Config, Machine, MachineError, Mode, Ownership},
    hierarchy::{
        act::{Actor, Backend, Counters, Files, Slices},
        converge::{self, Converger},
        sense::{self, Wanted},
    },
    kernel::support::{self, Profile},
    pods::{DirError, PodSet, SourcedPod, feed},
    reactor::{self, Reactor},
    runtime::{Client, Follower, RuntimeError},
};

/// Where agents lock their root, so that two never share one.
const LOCK_DIR: &str = "/run/podwarden";

/// Why the agent could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another agent, or no directory to lock in.
    #[error("taking the cgroup root for this agent")]
    Lock(#[source] podwarden_cgroup::Error),
    /// The lock's directory cannot be made.
    #[error("making {LOCK_DIR}, where agents lock their root (root privileges?)")]
    LockDir(#[source] std::io::Error),
    /// A listener.
    #[error("opening the API")]
    Http(#[source] HttpError),
    /// The machine's size.
    #[error("reading the machine's size")]
    Machine(#[source] MachineError),
    /// The reserves.
    #[error(
        "keeping from pods what is reserved: lower kubeReserved, systemReserved or evictionHard, or \
         set the node's true size with capacity"
    )]
    Reserve(#[source] reserve::ReserveError),
    /// The hierarchies.
    #[error("finding the cgroup hierarchies")]
    Cgroup(#[source] podwarden_cgroup::Error),
    /// The container runtime's socket cannot be one.
    #[error("finding the container runtime")]
    Runtime(#[source] RuntimeError),
    /// Manifests.
    #[error("watching the manifest directory")]
    Pods(#[source] DirError),
    /// systemd cannot be asked for slices.
    #[error("connecting to systemd, which makes the cgroups under the systemd driver")]
    Systemd(#[source] podwarden_cgroup::Error),
    /// systemd cannot make slices there.
    #[error(
        "--cgroup-root {root} is not the path of a slice, and under the systemd driver every cgroup is \
         in one: use / or a path such as /name.slice (a kubelet's cgroupRoot /name is that), or \
         --cgroup-driver cgroupfs"
    )]
    RootIsNoSlice {
        /// As configured.
        root: String,
    },
    /// The books.
    #[error("starting the accounts")]
    Accounting(#[source] AccountingError),
    /// The reactor.
    #[error(transparent)]
    Reactor(#[from] reactor::StartError),
}

/// Takes the root for this agent.
pub(super) fn lock(config: &Config) -> Result<AgentLock, StartError> {
    fs::create_dir_all(LOCK_DIR).map_err(StartError::LockDir)?;
    AgentLock::acquire(Path::new(LOCK_DIR), &config.cgroup_root).map_err(StartError::Lock)
}

/// Builds everything that the loop runs.
pub(super) async fn agent(
    config: Config,
    published: Arc<Published>,
    recorded: Vec<(String, Eviction)>,
) -> Result<Reconciler, StartError> {
    let machine = Machine::probe().map_err(StartError::Machine)?;
    let hierarchies = Hierarchies::detect().map_err(StartError::Cgroup)?;
    let driver = config
        .cgroup_driver
        .unwrap_or_else(|| DriverFacts::probe(&hierarchies, &config.cgroup_root).guess());
    let node = config.node(&machine, driver);
    if config.ownership == Ownership::Own {
        reserve::validate(&node).map_err(StartError::Reserve)?;
    }
    let enforce = config.mode == Mode::Enforce;
    let (backend, without_systemd) = backend(&config, driver)?;
    let layout = CgroupLayout::new(driver, &config.cgroup_root);
    let looked_at = Tree::new(hierarchies.clone(), &config.cgroup_root);
    let exists = |pod: &SourcedPod| {
        let path = layout.path(&layout.kubepods.pod(pod.qos, &pod.pod.uid));
        let directory = |tree: &Tree| tree.path(Controller::Memory, &path);
        let directory = looked_at.as_ref().ok().map(directory);
        directory.is_some_and(|path| path.is_ok_and(|path| path.is_dir()))
    };
    let runtime = match &config.container_runtime_endpoint {
        Some(socket) => Some(Follower::start(
            Client::new(socket).map_err(StartError::Runtime)?,
        )),
        None => None,
    };
    let feed = feed::start(&config, exists).map_err(StartError::Pods)?;
    published.set_sources(feed.sources.clone());
    let pods = feed.pods.clone();
    let stats = NodeStats {
        node_name: config.node_name.clone(),
        mode: config.mode.as_str().to_owned(),
        profile: Profile::Sampling.as_str().to_owned(),
        cgroup_version: hierarchies.version.to_string(),
        cgroup_driver: driver.to_string(),
        start_time: crate::base::clock::now_text(),
        ..NodeStats::default()
    };
    let tree = if enforce && config.ownership == Ownership::Own {
        Tree::new(hierarchies, &config.cgroup_root).map_err(StartError::Cgroup)?
    } else {
        let kubepods = layout.path(&layout.kubepods);
        announce_waiting(&published, &stats, &config, &kubepods, &hierarchies);
        wait::for_kubepods(&hierarchies, &config.cgroup_root, &kubepods).await?
    };

    // The tree before the kernel programs: they need kubepods to be there.
    let mut actor = Actor::new(enforce, Arc::clone(&backend));
    published.set_counters(actor.counters());
    let mut without_thread = None;
    let systemd = driver == Driver::Systemd && without_systemd.is_none();
    let start = || converger(&config, &tree, backend, actor.counters(), systemd);
    let converger = match enforce.then(start) {
        None => None,
        Some(Ok(converger)) => {
            let tiers = [QosClass::Burstable, QosClass::BestEffort];
            let tiers = tiers.map(|class| layout.path(&layout.kubepods.tier(class)));
            actor.leave(tiers.into());
            Some(converger)
        }
        Some(Err(error)) => {
            without_thread = Some(format!(
                "the tiers' limits are lowered with each pass over the tree alone: no thread ({error})"
            ));
            None
        }
    };
    if config.ownership == Ownership::Own {
        actor.adopt(&tree, &layout.path(&layout.kubepods));
    }
    actor.learn(&pods.borrow());
    let first = pods.borrow().clone();
    let wanted = Wanted::from(&*first);
    let snapshot = sense::snapshot(&tree, &layout, &config, &node, wanted, &[], |_| false);
    actor.reconcile(&tree, &layout, &plan::plan(&snapshot));

    let built = build(&config, &node, &tree, &layout, &first);
    let (accounting, reactor, mut degradations, profile, changes) = match built {
        Ok(built) => built,
        Err(error) => {
            actor.remove_unused(&tree);
            return Err(error);
        }
    };
    degradations.extend(without_systemd);
    degradations.extend(without_thread);
    for degradation in &degradations {
        tracing::warn!("{degradation}");
    }
    tracing::info!(
        profile = profile.as_str(),
        mode = config.mode.as_str(),
        cgroup = stats.cgroup_version,
        driver = stats.cgroup_driver,
        degradations = degradations.len(),
        "running"
    );
    let stats = NodeStats {
        profile: profile.as_str().to_owned(),
        degradations,
        ..stats
    };
    let marks = enforce.then(|| {
        let sizes = telling::sizes(&node, &machine);
        let runtime = runtime.as_ref().map(Follower::client);
        telling::start(&config, feed, runtime, &published, sizes, &recorded)
    });
    let env = Environment {
        node_level: config.node_level(&machine),
        immunity: Immunity {
            own_pod: own_pod::find(),
            ..config.immunity()
        },
        config,
        node,
        tree,
        layout,
        published,
    };
    let eviction = EvictionManager::new(&env, reactor, marks.flatten());
    Ok(Reconciler::new(
        env,
        Pods::new(pods, runtime),
        Hierarchy::new(actor, converger),
        eviction,
        FiguresPublisher::new(accounting, stats),
        changes,
        &recorded,
    ))
}

/// Who carries actions out, and what is lost if it is not who it should be. Beside a kubelet the
/// files alone are better than nothing: it sets the same values again and again.
fn backend(
    config: &Config,
    driver: Driver,
) -> Result<(Arc<dyn Backend>, Option<String>), StartError> {
    if config.mode != Mode::Enforce || driver != Driver::Systemd {
        return Ok((Arc::new(Files), None));
    }
    let owns = config.ownership == Ownership::Own;
    if owns && !podwarden_cgroup::is_slice_path(&config.cgroup_root) {
        let root = config.cgroup_root.clone();
        return Err(StartError::RootIsNoSlice { root });
    }
    match Systemd::connect() {
        Ok(systemd) => Ok((Arc::new(Slices(systemd)), None)),
        Err(error) if owns => Err(StartError::Systemd(error)),
        Err(error) => {
            let lost = format!(
                "values are written to the files of systemd's slices alone, and systemd writes its own \
                 there when it next changes the slice ({error})"
            );
            Ok((Arc::new(Files), Some(lost)))
        }
    }
}

/// What brings the tiers' limits to their targets.
fn converger(
    config: &Config,
    tree: &Tree,
    backend: Arc<dyn Backend>,
    counters: Arc<Counters>,
    systemd: bool,
) -> std::io::Result<Converger> {
    let found = converge::found_file(Path::new(LOCK_DIR), &config.cgroup_root);
    Converger::start(converge::Parts {
        tree: tree.clone(),
        backend,
        counters,
        config: config.convergence,
        guard: Some(converge::guard::Place {
            cgroup_root: config.cgroup_root.clone(),
            found: found.clone(),
            systemd,
        }),
        found,
    })
}

/// Until there is a kubepods cgroup the API answers with an empty node, and says why.
fn announce_waiting(
    published: &Published,
    stats: &NodeStats,
    config: &Config,
    kubepods: &CgroupPath,
    hierarchies: &Hierarchies,
) {
    let there = Tree::new(hierarchies.clone(), &config.cgroup_root)
        .is_ok_and(|tree| tree.id(kubepods).is_ok());
    if there {
        return;
    }
    let waiting = format!(
        "there is no {kubepods} cgroup below {} yet: waiting for whoever makes it",
        config.cgroup_root
    );
    tracing::warn!("{waiting}");
    let node = NodeStats {
        time: crate::base::clock::now_text(),
        degradations: vec![waiting],
        ..stats.clone()
    };
    published.publish(Figures::new(node, Vec::new()));
    published.set_ready(true);
}

type Built = (
    Accounting,
    Reactor,
    Vec<String>,
    Profile,
    Vec<crate::accounting::index::Change>,
);

/// Kernel programs, books and reactor.
fn build(
    config: &Config,
    node: &podwarden_policy::Node,
    tree: &Tree,
    layout: &CgroupLayout,
    pods: &PodSet,
) -> Result<Built, StartError> {
    let kubepods = layout.path(&layout.kubepods);
    let decision = support::decide(&support::probe(&config.cgroup_root));
    let mut degradations: Vec<_> = decision.degradations().collect();
    let (kernel, levels, profile) = programs::load(config, tree, &mut degradations)?;
    let any_level = config.eviction_soft.is_some()
        || config.eviction_hard.is_some()
        || arm::Levels::of(node, pods.pods.iter().map(|p| &p.pod)) != arm::Levels::default();
    let (accounting, changes) =
        Accounting::start(kernel, tree, &kubepods, any_level).map_err(StartError::Accounting)?;
    process::release_unused_memory();
    let reactor = Reactor::start(levels, config.reactor)?;
    if config.reactor.real_time {
        degradations.extend(reactor.realtime.degradations());
    }
    degradations.extend(arm::pressure::degradations(&config.pressure));
    if let (Some(_), Err(error)) = (
        config.eviction_hard,
        MemoryReader::open_node(tree.hierarchies()),
    ) {
        degradations.push(format!(
            "memory.available counts for pods alone, not for all of the node ({error})"
        ));
    }
    degradations.extend(reactor::reaping_degradation().map(str::to_owned));
    degradations.sort();
    degradations.dedup();
    Ok((accounting, reactor, degradations, profile, changes))
}
