//! CPU quotas: what an agent before this one left, and the threads that write them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::{SysconfVar, sysconf};
use podwarden_cgroup::Tree;
use podwarden_policy::{
    MilliCpu, QosClass,
    colocation::{burst::Policy, hold::Bounds},
    plan::Ownership,
};

use super::{Environment, LOCK_DIR};
use crate::{
    agent::reconciler::colocation::Colocation,
    colocation::{
        self, Burster, Ours, Parts,
        hold::{self, Holder},
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
    for (file, what) in [
        (found_file(config), "CPU quotas of pods"),
        (hold_file(config), "the besteffort tier's CPU quota"),
    ] {
        if colocation::restore(tree, file) {
            tracing::info!("{what} that an agent before this one left: as it found it again");
        }
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
    let holder = holder(env, waits).unwrap_or_else(|why| {
        lost.push(format!(
            "best-effort CPU is not held back when a protected pod waits: {why}"
        ));
        None
    });
    (Colocation::new(burster, holder, ours), lost)
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

fn holder(env: &Environment, waits: Option<Waits>) -> Result<Option<Holder>, String> {
    let config = env.config.colocation.wait;
    if !config.enable {
        return Ok(None);
    }
    if env.config.ownership == Ownership::Assist {
        return Err("a kubelet owns the tier's cgroup (ownership: assist)".to_owned());
    }
    let waits = waits.ok_or("the kernel programs do not report waits")?;
    let layout = &env.layout;
    let cpus = env.node.cpu_capacity;
    let parts = hold::Parts {
        tree: env.tree.clone(),
        tier: layout.path(&layout.kubepods.tier(QosClass::BestEffort)),
        bounds: Bounds {
            cpus,
            floor: MilliCpu(cpus.0.saturating_mul(config.min_percent) / 100),
        },
        enforce: env.config.mode == Mode::Enforce,
        found: hold_file(&env.config),
        cgroup_root: env.config.cgroup_root.clone(),
        real_time: env.config.reactor.real_time,
    };
    let started = Holder::start(parts, waits);
    started
        .map(Some)
        .map_err(|error| format!("no thread ({error})"))
}

fn online() -> u64 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online
        .and_then(|cpus| u64::try_from(cpus).ok())
        .unwrap_or(1)
}
