//! Levels that come down upon a tier -> levels that it is not yet over.

use podwarden_cgroup::MemoryReader;
use podwarden_policy::{Bytes, converge, plan};

use crate::{
    agent::{
        arm::Levels,
        reconciler::{Environment, TIERS},
    },
    base::cpus,
    reactor::plan::ArmedPlan,
};

/// Holds a level that comes down upon a tier above what the tier uses, so that only growth is answered by
/// an eviction.
pub(super) fn hold(levels: &mut Levels, before: &ArmedPlan, env: &Environment) {
    for (class, scope) in TIERS {
        let Some(level) = levels.of_scope(scope) else {
            continue;
        };
        let armed = before.scopes.iter().find(|armed| armed.name == scope);
        let used = match armed {
            Some(armed) => without_cache(&armed.memory),
            None => {
                let path = env.layout.path(&env.layout.kubepods.tier(class));
                let memory = MemoryReader::open(&env.tree, &path).ok();
                memory.and_then(|memory| without_cache(&memory))
            }
        };
        let held = converge::hold(
            Bytes(level),
            Bytes(used.unwrap_or(0)),
            armed.map(|armed| Bytes(armed.level)),
            plan::margin(cpus::online()),
            env.config.convergence.steps,
        );
        levels.set(scope, held.0);
    }
}

/// What the reactor compares a tier's level with; `None` for what cannot be read.
fn without_cache(memory: &MemoryReader) -> Option<u64> {
    let usage = memory.usage().ok()?;
    Some(memory.stat().ok()?.without_cache(usage))
}
