//! Co-location: CPU quotas that an agent before this one left, and the threads of the strategies.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::{SysconfVar, sysconf};
use podwarden_cgroup::Tree;
use podwarden_policy::{QosClass, colocation::burst::Policy, plan::Ownership};

use super::{Environment, LOCK_DIR};
use crate::{
    agent::reconciler::colocation::Colocation,
    colocation::{
        self, Ours,
        burst::{Burster, Parts},
        hold::{self, Holder},
        proactive::{Proactive, ProactiveError},
        resctrl::{self, Resctrl, ResctrlError},
    },
    config::{Config, Mode},
    kernel::waits::Waits,
};

fn found_file(config: &Config) -> PathBuf {
    colocation::found_file(Path::new(LOCK_DIR), &config.cgroup_root)
}

fn hold_file(config: &Config) -> PathBuf {
    colocation::hold_file(Path::new(LOCK_DIR), &config.cgroup_root)
}

/// Puts back what an agent before this one left, whatever this one's mode and strategies.
pub(super) fn restore(config: &Config, tree: &Tree) {
    let cpus = colocation::cpus_file(Path::new(LOCK_DIR), &config.cgroup_root);
    if colocation::restore_cpus(tree, cpus) {
        tracing::info!(
            "the besteffort tier's CPUs that an agent before this one left: as it found them again"
        );
    }
    for (file, what) in [
        (found_file(config), "CPU quotas of pods"),
        (hold_file(config), "the besteffort tier's CPU quota"),
    ] {
        if colocation::restore(tree, file) {
            tracing::info!("{what} that an agent before this one left: as it found it again");
        }
    }
    if config.mode == Mode::Enforce {
        resctrl::remove_left(Path::new(resctrl::DIRECTORY), &config.cgroup_root);
    }
}

/// Starts the threads of the strategies that are on; besides, what is lost without one.
pub(super) fn start(env: &Environment, waits: Option<Waits>) -> (Colocation, Vec<String>) {
    let ours = Arc::new(Ours::default());
    let mut lost = Vec::new();
    let burster = burster(env, &ours).unwrap_or_else(|error| {
        lost.push(format!("no pod exceeds its CPU limit: no thread ({error})"));
        None
    });
    let holder = holder(env, waits, &mut lost);
    let proactive = proactive(env).unwrap_or_else(|error| {
        lost.push(format!(
            "no pod gives back page cache that it does not use: {error}"
        ));
        None
    });
    let resctrl = resctrl(env).unwrap_or_else(|error| {
        lost.push(format!(
            "classes have no part of cache and memory bandwidth of their own: {error}"
        ));
        None
    });
    let colocation = Colocation::new(burster, holder, proactive, resctrl, ours);
    (colocation, lost)
}

fn burster(env: &Environment, ours: &Arc<Ours>) -> std::io::Result<Option<Burster>> {
    let burst = env.config.colocation.burst;
    if burst.policy == Policy::None {
        return Ok(None);
    }
    Burster::start(Parts {
        tree: env.tree.clone(),
        config: burst,
        cpus: env.node.cpu_capacity,
        online: online(),
        enforce: env.config.mode == Mode::Enforce,
        found: found_file(&env.config),
        cgroup_root: env.config.cgroup_root.clone(),
        real_time: env.config.reactor.real_time,
        ours: Arc::clone(ours),
    })
    .map(Some)
}

const NOT_HELD: &str = "best-effort CPU is not held back when a protected pod waits";
const NOT_SUPPRESSED: &str = "best-effort CPU is not held to cpuSuppressThresholdPercent";

/// The thread that holds best effort back, where a strategy needs it; what is lost goes to `lost`.
fn holder(env: &Environment, waits: Option<Waits>, lost: &mut Vec<String>) -> Option<Holder> {
    let config = &env.config.colocation;
    let (holds, suppresses) = (config.wait.enable, config.suppress);
    let strategies = [
        holds.then_some(NOT_HELD),
        suppresses.and(Some(NOT_SUPPRESSED)),
    ];
    let mut lose = |what: &str, why: &str| lost.push(format!("{what}: {why}"));
    if env.config.ownership == Ownership::Assist {
        for what in strategies.into_iter().flatten() {
            lose(what, "a kubelet owns the tier's cgroup (ownership: assist)");
        }
        return None;
    }
    let waits = waits.filter(|_| holds);
    if holds && waits.is_none() {
        lose(NOT_HELD, "the kernel programs do not report waits");
    }
    if waits.is_none() && suppresses.is_none() {
        return None;
    }
    match Holder::start(parts(env), waits) {
        Ok(holder) => Some(holder),
        Err(error) => {
            for what in strategies.into_iter().flatten() {
                lose(what, &format!("no thread ({error})"));
            }
            None
        }
    }
}

fn parts(env: &Environment) -> hold::Parts {
    let (layout, config) = (&env.layout, &env.config.colocation);
    let suppress = config.cpu_strategies(&env.node).suppress;
    hold::Parts {
        tree: env.tree.clone(),
        tier: layout.path(&layout.kubepods.tier(QosClass::BestEffort)),
        bounds: config.bounds(&env.node),
        suppress: suppress.map(|suppress| hold::Strategy {
            node: suppress.node,
            threshold: suppress.threshold,
            policy: suppress.policy,
            kubepods: layout.path(&layout.kubepods),
        }),
        enforce: env.config.mode == Mode::Enforce,
        found: hold_file(&env.config),
        found_cpus: colocation::cpus_file(Path::new(LOCK_DIR), &env.config.cgroup_root),
        cgroup_root: env.config.cgroup_root.clone(),
        real_time: env.config.reactor.real_time,
    }
}

fn proactive(env: &Environment) -> Result<Option<Proactive>, ProactiveError> {
    let config = env.config.colocation.proactive;
    // Without a write there is nothing that a pod could miss.
    if !config.enable || env.config.mode != Mode::Enforce {
        return Ok(None);
    }
    let kubepods = env.layout.path(&env.layout.kubepods);
    Proactive::start(env.tree.clone(), &kubepods, config).map(Some)
}

fn resctrl(env: &Environment) -> Result<Option<Resctrl>, ResctrlError> {
    let config = env.config.colocation.resctrl;
    if !config.enable || env.config.mode != Mode::Enforce {
        return Ok(None);
    }
    Resctrl::start(env.tree.clone(), config, &env.config.cgroup_root).map(Some)
}

fn online() -> u64 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online
        .and_then(|cpus| u64::try_from(cpus).ok())
        .unwrap_or(1)
}
