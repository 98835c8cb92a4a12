//! Pods of which no source has told yet: their memory counts, and none of them is evicted so far.

use std::sync::Arc;

use podwarden_cgroup::MemoryReader;

use super::Inputs;
use crate::reactor::{
    growth::Seen,
    plan::{ArmedPlan, Stranger},
};

/// Those whose cgroups are there, with what the plan `before` has seen of them.
pub(super) fn look(inputs: &Inputs<'_>, before: &ArmedPlan) -> Vec<Arc<Stranger>> {
    let found = inputs.strangers.iter().filter_map(|uid| {
        let entry = inputs.entries.get(*uid)?;
        let known = before.strangers.iter().find(|one| one.path == entry.path);
        if let Some(known) = known {
            return Some(Arc::clone(known));
        }
        let memory = MemoryReader::open(inputs.tree, &entry.path).ok()?;
        Some(Arc::new(Stranger {
            path: entry.path.clone(),
            place: entry.class,
            seen: Seen::new(memory.usage().unwrap_or(0)),
            memory,
        }))
    });
    found.collect()
}
