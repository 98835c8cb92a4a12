//! The pods of a tier that holds a critical one, slowed in the tier's stead while it uses more than its target: v2's
//! `memory.high` of each, see [`podwarden_policy::converge::press_alone`].

use std::collections::HashMap;

use podwarden_cgroup::{CgroupPath, Error, MemoryReader, Tree};
use podwarden_policy::{
    Bytes,
    converge::{Terms, press_alone},
    limits::Limit,
};

use super::{
    Parts, PodAim,
    found::{Found, Originals},
    writes,
};

/// Pods that are slowed at one look, at most: a write may wait for the kernel to reclaim, and the tier's own limits
/// wait with it.
const AT_ONCE: usize = 8;

/// A pod with its files.
#[derive(Debug)]
struct Slowed {
    memory: MemoryReader,
    found: Found,
    /// `memory.high` as it was written here; another value is another writer's.
    left: Limit<Bytes>,
    /// What it used at the last look: what does not change needs none.
    used: Bytes,
}

impl Slowed {
    fn open(tree: &Tree, originals: &Originals, path: &CgroupPath) -> Result<Self, Error> {
        let high = tree.memory_high(path)?;
        let now = Found {
            id: tree.memory_id(path)?,
            max: None,
            high: Some(high),
        };
        let found = originals.get(path).filter(|found| found.id == now.id);
        Ok(Self {
            memory: MemoryReader::open(tree, path)?,
            found: found.copied().unwrap_or(now),
            left: high,
            used: Bytes::ZERO,
        })
    }

    /// Follows its usage down; true when that took a write.
    fn press(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        aim: &PodAim,
        terms: &Terms,
    ) -> Result<bool, Error> {
        let path = &aim.path;
        let usage = Bytes(self.memory.usage()?);
        if usage == self.used {
            return Ok(false);
        }
        let now = parts.tree.memory_high(path)?;
        let Some(high) = press_alone(usage, aim.requests, now, terms) else {
            self.used = usage;
            return Ok(false);
        };
        if now == self.left {
            (self.found, _) = originals.of(path, self.found);
        } else {
            self.found.high = Some(now);
            originals.set(path, self.found);
        }
        writes::high(parts, path, high)?;
        self.left = high;
        Ok(true)
    }
}

#[derive(Debug, Default)]
pub(super) struct Pods {
    aims: Vec<PodAim>,
    slowed: HashMap<CgroupPath, Slowed>,
    /// Those that an agent before this one has slowed, and those that are slowed no more: to be put back.
    former: Vec<CgroupPath>,
}

impl Pods {
    /// What an agent that was killed has left below the tier at `tier`.
    pub(super) fn inherited(originals: &Originals, tier: &CgroupPath) -> Self {
        let below = |path: &CgroupPath| {
            let rest = path.as_str().strip_prefix(tier.as_str());
            rest.is_some_and(|rest| rest.starts_with('/'))
        };
        let all = originals.all().map(|(path, _)| path);
        Self {
            former: all.filter(below).collect(),
            ..Self::default()
        }
    }

    /// Which pods are to be slowed when the tier is.
    pub(super) fn aim(&mut self, aims: &[PodAim]) {
        self.aims = aims.to_vec();
        let gone = self
            .slowed
            .extract_if(|path, _| !aims.iter().any(|aim| aim.path == *path));
        self.former.extend(gone.map(|(path, _)| path));
    }

    /// How many are slowed.
    pub(super) fn count(&self) -> u64 {
        let slowed = self.slowed.values();
        let lower = slowed.filter(|slowed| Some(slowed.left) != slowed.found.high);
        lower.count() as u64
    }

    /// Slows them, [`AT_ONCE`] at most; true when something was written. After a write that the kernel refuses the
    /// others are tried; the error is the first refusal.
    pub(super) fn press(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        terms: &Terms,
    ) -> Result<bool, Error> {
        let mut written = 0;
        let mut refused = None;
        for aim in &self.aims {
            let slowed = match self.slowed.get_mut(&aim.path) {
                Some(slowed) => Ok(slowed),
                None => Slowed::open(&parts.tree, originals, &aim.path)
                    .map(|opened| self.slowed.entry(aim.path.clone()).or_insert(opened)),
            };
            match slowed.and_then(|slowed| slowed.press(parts, originals, aim, terms)) {
                Ok(wrote) => written += usize::from(wrote),
                Err(error) if error.is_gone() => {
                    let gone = self.slowed.remove_entry(&aim.path);
                    self.former.extend(gone.map(|(path, _)| path));
                }
                Err(error) => refused = refused.or(Some(error)),
            }
            if written == AT_ONCE {
                break;
            }
        }
        self.put_back(parts, originals);
        refused.map_or(Ok(written > 0), Err)
    }

    /// Puts back what was found in all of them.
    pub(super) fn release(&mut self, parts: &Parts, originals: &mut Originals) {
        self.former
            .extend(self.slowed.drain().map(|(path, _)| path));
        self.put_back(parts, originals);
    }

    /// What is refused stays for the end.
    fn put_back(&mut self, parts: &Parts, originals: &mut Originals) {
        let mut done = Vec::new();
        for path in self.former.drain(..) {
            // Nothing is kept of a pod that was not slowed.
            let kept = originals.get(&path);
            let Some(found) = kept.filter(|_| !self.slowed.contains_key(&path)) else {
                continue;
            };
            match writes::restore(parts, &path, found) {
                Ok(()) => done.push(path),
                Err(error) if error.is_gone() => done.push(path),
                Err(error) => {
                    tracing::warn!(%error, cgroup = %path, "its memory.high is not what was found");
                }
            }
        }
        originals.forget(&done);
    }
}
