//! CPU quotas: what an agent before this one left, and the thread that raises them.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::{SysconfVar, sysconf};
use podwarden_cgroup::Tree;
use podwarden_policy::colocation::burst::Policy;

use super::{Environment, LOCK_DIR};
use crate::{
    agent::reconciler::colocation::Colocation,
    colocation::{self, Burster, Ours, Parts},
    config::{Config, Mode},
};

fn found_file(config: &Config) -> PathBuf {
    colocation::found_file(Path::new(LOCK_DIR), &config.cgroup_root)
}

/// Puts back what an agent before this one left, whatever this one's mode and strategies.
pub(super) fn restore(config: &Config, tree: &Tree) {
    if colocation::restore(tree, found_file(config)) {
        tracing::info!("CPU quotas that an agent before this one raised are as it found them");
    }
}

/// Starts the thread where a strategy is on; besides, what is lost without it.
pub(super) fn start(env: &Environment) -> (Colocation, Option<String>) {
    let ours = Arc::new(Ours::default());
    let burst = env.config.colocation.burst;
    if burst.policy == Policy::None {
        return (Colocation::new(None, ours), None);
    }
    let started = Burster::start(Parts {
        tree: env.tree.clone(),
        config: burst,
        cpus: env.node.cpu_capacity,
        online: online(),
        enforce: env.config.mode == Mode::Enforce,
        found: found_file(&env.config),
        cgroup_root: env.config.cgroup_root.clone(),
        real_time: env.config.reactor.real_time,
        ours: Arc::clone(&ours),
    });
    match started {
        Ok(burster) => (Colocation::new(Some(burster), ours), None),
        Err(error) => {
            let lost = format!("no pod exceeds its CPU limit: no thread ({error})");
            (Colocation::new(None, ours), Some(lost))
        }
    }
}

fn online() -> u64 {
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    online
        .and_then(|cpus| u64::try_from(cpus).ok())
        .unwrap_or(1)
}
