//! The first pass over the cgroups, and what carries actions out.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use podwarden_cgroup::{Driver, FreezeRecord, Systemd, Tree};
use podwarden_policy::{
    QosClass,
    plan::{self, Ownership},
};

use super::{LOCK_DIR, Site, StartError};
use crate::{
    api::published::Published,
    config::{Config, Mode},
    hierarchy::{
        act::{Actor, Backend, Counters, Files, Slices},
        converge::{self, Converger},
        fresh::{self, Fresh},
        sense::{self, Wanted},
    },
    pods::{PodSet, runtime::Names},
};

/// What carries actions out.
pub(super) struct Writer {
    backend: Arc<dyn Backend>,
    /// It writes by way of systemd.
    systemd: bool,
    /// The record of what the agent freezes.
    frozen: Option<PathBuf>,
    /// The loss if it does not fit the driver.
    pub(super) lost: Option<String>,
}

impl Writer {
    pub(super) fn noting(self, frozen: &Option<Arc<FreezeRecord>>) -> Self {
        let frozen = frozen.as_ref().map(|record| record.path().to_owned());
        Self { frozen, ..self }
    }
}

/// Finds what carries actions out. Beside a kubelet the files alone are better than nothing: it sets the
/// same values again and again.
pub(super) fn writer(config: &Config, driver: Driver) -> Result<Writer, StartError> {
    let files = |lost| Writer {
        backend: Arc::new(Files),
        systemd: false,
        frozen: None,
        lost,
    };
    if config.mode != Mode::Enforce || driver != Driver::Systemd {
        return Ok(files(None));
    }
    let owns = config.ownership == Ownership::Own;
    if owns && !podwarden_cgroup::is_slice_path(&config.cgroup_root) {
        let root = config.cgroup_root.clone();
        return Err(StartError::RootIsNoSlice { root });
    }
    match Systemd::connect() {
        Ok(systemd) => Ok(Writer {
            backend: Arc::new(Slices(systemd)),
            systemd: true,
            frozen: None,
            lost: None,
        }),
        Err(error) if owns => Err(StartError::Systemd(error)),
        Err(error) => Ok(files(Some(format!(
            "values are written to the files of systemd's slices alone, and systemd writes its own \
             there when it next changes the slice ({error})"
        )))),
    }
}

/// What is there after the first pass.
pub(super) struct FirstPass {
    pub(super) actor: Actor,
    /// `None` in observe mode, and without a thread for it.
    pub(super) converger: Option<Converger>,
    /// `None` in observe mode, where no pod is given reclaimed resources, and without a thread for it.
    pub(super) fresh: Option<Fresh>,
    /// The loss without these threads, one sentence each.
    pub(super) without_thread: Vec<String>,
}

/// Takes over what an agent before this one made, and makes the cgroups of these pods.
pub(super) fn first_pass(
    config: &Config,
    site: &Site,
    tree: &Tree,
    writer: Writer,
    pods: &PodSet,
    names: Option<Names>,
    published: &Published,
) -> FirstPass {
    let (layout, node) = (&site.layout, &site.node);
    let enforce = config.mode == Mode::Enforce;
    let mut actor = Actor::new(enforce, Arc::clone(&writer.backend));
    published.set_counters(actor.counters());
    let mut without_thread = Vec::new();
    let parts = fresh::Parts {
        tree: tree.clone(),
        layout: layout.clone(),
        backend: Arc::clone(&writer.backend),
        counters: actor.counters(),
        names,
        real_time: config.reactor.real_time,
    };
    let start = || Fresh::start(parts);
    let gives = enforce && config.colocation.reclaimed.enforce;
    let fresh = gives.then(start).transpose().unwrap_or_else(|error| {
        without_thread.push(format!(
            "new containers get reclaimed resources with a pass over the tree, tens of milliseconds late: no thread \
             ({error})"
        ));
        None
    });
    let start = || converger(config, tree, writer, actor.counters());
    let converger = enforce.then(start).transpose().unwrap_or_else(|error| {
        without_thread.push(format!(
            "the tiers' limits are lowered with each pass over the tree alone: no thread ({error})"
        ));
        None
    });
    if converger.is_some() {
        let tiers = [QosClass::Burstable, QosClass::BestEffort];
        let tiers = tiers.map(|class| layout.path(&layout.kubepods.tier(class)));
        actor.leave(tiers.into());
    }
    if config.ownership == Ownership::Own {
        actor.adopt(tree, &layout.path(&layout.kubepods));
    }
    actor.learn(pods);
    let wanted = Wanted::from(pods);
    let snapshot = sense::snapshot(tree, layout, config, node, wanted, &[], |_| false);
    actor.reconcile(tree, layout, &plan::plan(&snapshot));
    FirstPass {
        actor,
        converger,
        fresh,
        without_thread,
    }
}

/// What brings the tiers' limits to their targets, and starts the guard.
fn converger(
    config: &Config,
    tree: &Tree,
    writer: Writer,
    counters: Arc<Counters>,
) -> std::io::Result<Converger> {
    let found = converge::found_file(Path::new(LOCK_DIR), &config.cgroup_root);
    let restores = config.convergence.on_exit.restores();
    Converger::start(converge::Parts {
        tree: tree.clone(),
        backend: writer.backend,
        counters,
        config: config.convergence,
        guard: Some(converge::guard::Place {
            quotas: None,
            resctrl: None,
            cgroup_root: config.cgroup_root.clone(),
            found: restores.then(|| found.clone()),
            frozen: writer.frozen,
            systemd: writer.systemd,
        }),
        found,
    })
}
