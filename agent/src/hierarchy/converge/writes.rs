//! Every write to the files of a tier and of its pods, counted where all writes are counted.

use podwarden_cgroup::{CgroupPath, Error, MemoryReader, Reclaims};
use podwarden_policy::{Bytes, limits::Limit, settings::Setting};

use super::{Parts, found::Found, margin, tier::bytes};
use crate::hierarchy::act::{Operation, Outcome};

/// The hard limit.
pub(super) fn max(parts: &Parts, path: &CgroupPath, max: Limit<Bytes>) -> Result<Outcome, Error> {
    parts.counters.counted(Operation::Update, || {
        let setting = Setting::MemoryLimit(max);
        parts.backend.write(&parts.tree, path, &setting)?;
        Ok(Outcome::Done)
    })
}

/// `memory.high`.
pub(super) fn high(parts: &Parts, path: &CgroupPath, high: Limit<Bytes>) -> Result<Outcome, Error> {
    parts.counters.counted(Operation::Update, || {
        parts.tree.set_memory_high(path, high)?;
        Ok(Outcome::Done)
    })
}

/// `memory.reclaim`: drops a piece of the page cache; [`Outcome::Unchanged`] when there is no more.
pub(super) fn reclaim(
    parts: &Parts,
    path: &CgroupPath,
    piece: Bytes,
    how: Reclaims,
) -> Result<Outcome, Error> {
    parts.counters.counted(Operation::Reclaim, || {
        parts.tree.reclaim(path, piece.0, how).map(outcome)
    })
}

/// The same on v1, by a limit `below` usage that `after` follows at once.
pub(super) fn reclaim_by_limit(
    parts: &Parts,
    path: &CgroupPath,
    below: Limit<Bytes>,
    after: Limit<Bytes>,
) -> Result<Outcome, Error> {
    parts.counters.counted(Operation::Reclaim, || {
        let had = parts.tree.reclaim_by_limit(path, below, after);
        had.map(outcome)
    })
}

const fn outcome(had: bool) -> Outcome {
    if had {
        Outcome::Done
    } else {
        Outcome::Unchanged
    }
}

/// Puts back what was found in a cgroup, the hard limit no lower than a margin above usage. One that was
/// made anew holds nothing of ours. Ends with the first write that the kernel refuses.
pub(super) fn restore(parts: &Parts, path: &CgroupPath, found: &Found) -> Result<(), Error> {
    let tree = &parts.tree;
    if tree.memory_id(path)? != found.id {
        return Ok(());
    }
    if let Some(found) = found.max {
        let memory = MemoryReader::open(tree, path)?;
        let floor = Bytes(memory.usage()?)
            .saturating_add(margin())
            .round_up(Bytes(rustix::param::page_size() as u64));
        let wanted = found.max(Limit::At(floor));
        if bytes(memory.limit()?) != wanted {
            max(parts, path, wanted)?;
        }
    }
    if let Some(wanted) = found.high
        && tree.memory_high(path)? != wanted
    {
        high(parts, path, wanted)?;
    }
    Ok(())
}
