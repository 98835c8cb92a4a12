//! The CPUs of the besteffort tier, as they were found and as suppression sets them.
//!
//! On v1 a cgroup's CPUs have to be among its parent's, so that every cgroup of the tier is written: first all that
//! it has and is to have, from the tier down, then what it is to have, from below up to the tier. On v2 the tier
//! alone is written, and its pods take what it leaves them.
//!
//! A v2 kernel may refuse to take a list away while processes are below it (`ENOSPC`, `validate_change` of
//! `kernel/cgroup/cpuset.c`; 6.12 does, 7.2 does not). The tier then gets all of its parent's CPUs, and what was found
//! stays noted until it can be put back.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use foldhash::HashMap;
use podwarden_cgroup::{CgroupPath, CpuList, Errno, Error, Tree, root_as_file_name};
use serde::{Deserialize, Serialize};

use crate::base::{error::chain, found};

/// What a cgroup's list held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FoundCpus {
    /// The cgroup's id, see [`Tree::id`].
    id: u64,
    cpus: String,
}

impl found::Found for FoundCpus {
    fn id(&self) -> u64 {
        self.id
    }
}

type Originals = found::Originals<FoundCpus>;

/// The name of the file with the besteffort tier's CPUs for a cgroup root.
pub fn file(directory: &Path, root: &str) -> PathBuf {
    directory.join(format!("podwarden-{}.cpuset.json", root_as_file_name(root)))
}

/// The same beside the file with the tier's quota.
pub fn beside(hold: &Path) -> Option<PathBuf> {
    let name = hold.file_name()?.to_str()?;
    let root = name.strip_suffix(".cpu-tier.json")?;
    Some(hold.with_file_name(format!("{root}.cpuset.json")))
}

/// Where the tier's tasks run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Present {
    /// On these.
    pub(super) tier: BTreeSet<u32>,
    /// And may on these at most, as all pods.
    pub(super) usable: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct Cpus {
    tier: CgroupPath,
    originals: Originals,
    written: bool,
}

impl Cpus {
    /// Reads what there is. An error where the tier has no list of CPUs: no cpuset controller, or it is not delegated.
    pub(super) fn open(tree: &Tree, tier: &CgroupPath, file: PathBuf) -> Result<Self, Error> {
        tree.cpus(tier)?;
        Ok(Self {
            tier: tier.clone(),
            originals: Originals::open(file),
            written: false,
        })
    }

    /// The CPUs that the tier's tasks run on.
    pub(super) fn present(&self, tree: &Tree) -> Result<Present, Error> {
        Ok(Present {
            tier: tree.effective_cpus(&self.tier)?.0,
            usable: tree.effective_cpus(&self.tier.parent())?.0,
        })
    }

    /// Lets the tier run on these alone.
    pub(super) fn set(&mut self, tree: &Tree, cpus: &BTreeSet<u32>) -> Result<(), Error> {
        self.written = true;
        let originals = &mut self.originals;
        let mut wanted = Vec::new();
        // What each cgroup has now, and what was found in it.
        let mut above: HashMap<CgroupPath, (CpuList, String)> = HashMap::default();
        gather(tree, &self.tier, &mut wanted, &mut |path, now, parent| {
            // One that was made since took what its parent was left, in place of what the parent had.
            let inherited = above.get(&path.parent()).filter(|(left, _)| left == now);
            let former = inherited.map_or_else(|| now.to_string(), |(_, found)| found.clone());
            let id = tree.id(path)?;
            // Kept before anything is written.
            let (found, _) = originals.of(path, FoundCpus { id, cpus: former });
            above.insert(path.clone(), (now.clone(), found.cpus.clone()));
            let found = CpuList::parse(&found.cpus).unwrap_or_default().0;
            let bound = parent.unwrap_or(cpus);
            let both: BTreeSet<u32> = found.intersection(bound).copied().collect();
            // Tasks may not be in a cgroup without CPUs.
            Ok(if both.is_empty() { bound.clone() } else { both })
        })?;
        apply(tree, &wanted)
    }

    /// Puts back what was found. True once all of it is.
    pub(super) fn restore(&mut self, tree: &Tree) -> bool {
        if !self.written {
            return true;
        }
        let restored = put_back(tree, &self.originals);
        if restored {
            let all: Vec<CgroupPath> = self.originals.all().map(|(path, _)| path).collect();
            self.originals.forget(&all);
            self.written = false;
        }
        restored
    }

    /// All is as it was found: the file goes.
    pub(super) fn close(self) {
        self.originals.close();
    }
}

/// The cgroups whose CPUs an agent has left otherwise than it found them.
pub fn left(file: PathBuf) -> Vec<CgroupPath> {
    Originals::open(file).all().map(|(path, _)| path).collect()
}

/// Puts everything back that an agent has left in the file, and removes the file once all of that is done.
/// True when there was something.
pub fn restore(tree: &Tree, file: PathBuf) -> bool {
    let originals = Originals::open(file);
    let any = originals.all().next().is_some();
    if put_back(tree, &originals) {
        originals.close();
    }
    any
}

fn put_back(tree: &Tree, originals: &Originals) -> bool {
    let all: Vec<CgroupPath> = originals.all().map(|(path, _)| path).collect();
    let below = |path: &CgroupPath, other: &CgroupPath| {
        let rest = path.as_str().strip_prefix(other.as_str());
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let tops = all
        .iter()
        .filter(|path| !all.iter().any(|other| below(path, other)));
    let mut whole = true;
    for top in tops {
        match put_back_tier(tree, originals, top) {
            Ok(PutBack::AsFound) => {}
            Ok(PutBack::InEffect) => {
                tracing::info!(
                    cgroup = %top,
                    "it may run on all of its parent's CPUs as before; this kernel takes its list away only while it has no \
                     process: the next agent, or `podwarden undo`, does that"
                );
                whole = false;
            }
            Err(error) if error.is_gone() => {}
            Err(error) => {
                tracing::warn!(error = chain(&error), cgroup = %top, "its CPUs are not what was found");
                whole = false;
            }
        }
    }
    whole
}

/// What came of it.
enum PutBack {
    /// The files hold what was found.
    AsFound,
    /// It may run on the same CPUs as before; they are written out where an empty list was found.
    InEffect,
}

fn put_back_tier(tree: &Tree, originals: &Originals, tier: &CgroupPath) -> Result<PutBack, Error> {
    let left = tree.cpus(tier)?.0;
    let mut wanted = Vec::new();
    gather(tree, tier, &mut wanted, &mut |path, now, parent| {
        let id = tree.id(path)?;
        let found = originals
            .all()
            .find(|(of, found)| of == path && found.id == id);
        match found {
            Some((_, found)) => Ok(CpuList::parse(&found.cpus).unwrap_or_default().0),
            // Made while the tier was held: it took what its parent had then.
            None if now.0 == left => Ok(parent.unwrap_or(&now.0).clone()),
            None => Ok(now.0.clone()),
        }
    })?;
    match apply(tree, &wanted) {
        // On v1 a CPU that has gone offline since is refused.
        Err(error) if error.errno() == Some(Errno::INVAL) => {
            let online = tree.effective_cpus(&CgroupPath::ROOT)?.0;
            let there = |cpus: &BTreeSet<u32>| cpus.intersection(&online).copied().collect();
            let wanted: Vec<_> = wanted
                .iter()
                .map(|(path, cpus)| (path.clone(), there(cpus)))
                .collect();
            apply(tree, &wanted)?;
        }
        Err(error) if error.errno() == Some(Errno::NOSPC) && !tree.cpus_are_nested() => {
            let all = tree.effective_cpus(&tier.parent())?;
            if tree.cpus(tier)? != all {
                tree.set_cpus(tier, &all)?;
            }
            return Ok(PutBack::InEffect);
        }
        applied => applied?,
    }
    Ok(PutBack::AsFound)
}

/// What a cgroup is to have, from its path, what is written to it now and what its parent is to have.
type Wanted<'a> =
    dyn FnMut(&CgroupPath, &CpuList, Option<&BTreeSet<u32>>) -> Result<BTreeSet<u32>, Error> + 'a;

/// The tier, and on v1 all below it, a parent before its children.
fn gather(
    tree: &Tree,
    tier: &CgroupPath,
    all: &mut Vec<(CgroupPath, BTreeSet<u32>)>,
    wanted: &mut Wanted<'_>,
) -> Result<(), Error> {
    let mut next = vec![(tier.clone(), None)];
    while let Some((path, parent)) = next.pop() {
        let of = |wanted: &mut Wanted<'_>| wanted(&path, &tree.cpus(&path)?, parent.as_ref());
        let cpus = match of(wanted) {
            Ok(cpus) => cpus,
            Err(error) if error.is_gone() && path != *tier => continue,
            Err(error) => return Err(error),
        };
        if tree.cpus_are_nested() {
            let children = tree.cpuset_children(&path)?;
            next.extend(
                children
                    .into_iter()
                    .map(|child| (child, Some(cpus.clone()))),
            );
        }
        all.push((path, cpus));
    }
    Ok(())
}

/// Writes what is wanted, a parent before its children in the list.
fn apply(tree: &Tree, wanted: &[(CgroupPath, BTreeSet<u32>)]) -> Result<(), Error> {
    let write = |path: &CgroupPath, cpus: BTreeSet<u32>| -> Result<(), Error> {
        if tree.cpus(path)?.0 == cpus {
            return Ok(());
        }
        tree.set_cpus(path, &CpuList(cpus))
    };
    let top = wanted.first().map(|(path, _)| path);
    let there = |path: &CgroupPath, written: Result<(), Error>| match written {
        // A pod may end meanwhile.
        Err(error) if error.is_gone() && Some(path) != top => Ok(()),
        written => written,
    };
    if tree.cpus_are_nested() {
        for (path, cpus) in wanted {
            let both = |now: CpuList| now.0.union(cpus).copied().collect();
            let written = tree.cpus(path).and_then(|now| write(path, both(now)));
            there(path, written)?;
        }
    }
    for (path, cpus) in wanted.iter().rev() {
        there(path, write(path, cpus.clone()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
