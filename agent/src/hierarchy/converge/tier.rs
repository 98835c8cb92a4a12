//! One tier: its files read, a step decided and carried out, what came of it.

use std::time::Instant;

use podwarden_cgroup::{CgroupPath, Error, MemoryReader, Reclaims, Tree};
use podwarden_policy::{
    Bytes,
    converge::{self, Decision, Kernel, Look, Reading, Step, Terms},
    limits::Limit,
};

use super::{
    Aim, Parts, Report,
    found::{Found, Originals},
    margin,
    ours::Ours,
    pods::Pods,
    progress::{self, Progress},
    writes,
};
use crate::{base::clock, hierarchy::act::Outcome, reactor::plan::ScopeName};

#[derive(Debug)]
pub(super) struct Tier {
    pub(super) path: CgroupPath,
    scope: ScopeName,
    machine: converge::Tier,
    memory: MemoryReader,
    reclaims: Reclaims,
    level: Option<Bytes>,
    slows: bool,
    pods: Pods,
    pub(super) found: Found,
    pub(super) progress: Progress,
    /// The next hard limit overwrites a foreign one.
    answers: bool,
    /// What was refused last, so that it is said once.
    refused: Option<String>,
}

/// What came of a look.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) look: Look,
    /// A step was carried out.
    pub(super) stepped: bool,
    /// The kernel refused it.
    pub(super) failed: bool,
}

impl Tier {
    /// Opens a tier's files; of what they held at first, an agent before this one may have left word.
    pub(super) fn open(parts: &Parts, aim: &Aim, originals: &mut Originals) -> Result<Self, Error> {
        let tree = &parts.tree;
        let memory = MemoryReader::open(tree, &aim.path)?;
        let is_v2 = tree.memory_high(&aim.path).is_ok();
        let now = Found {
            id: tree.memory_id(&aim.path)?,
            max: Some(match aim.made {
                true => Limit::Unlimited,
                false => bytes(memory.limit()?),
            }),
            high: match (is_v2, aim.made) {
                (false, _) => None,
                (true, true) => Some(Limit::Unlimited),
                (true, false) => Some(tree.memory_high(&aim.path)?),
            },
        };
        let (found, inherited) = originals.of(&aim.path, now);
        let mut machine = converge::Tier::default();
        if let Some(max) = found.max.filter(|_| inherited) {
            machine.inherit(max);
        }
        Ok(Self {
            path: aim.path.clone(),
            scope: aim.scope,
            machine,
            memory,
            reclaims: tree.reclaims(&aim.path),
            level: None,
            slows: aim.slows,
            pods: Pods::inherited(originals, &aim.path),
            found,
            progress: Progress::of(aim.scope),
            answers: false,
            refused: None,
        })
    }

    /// Whether it is still the cgroup of this name.
    pub(super) fn is_current(&self, tree: &Tree) -> bool {
        tree.memory_id(&self.path)
            .is_ok_and(|id| id == self.found.id)
    }

    pub(super) const fn scope(&self) -> ScopeName {
        self.scope
    }

    pub(super) fn aim(&mut self, aim: &Aim) {
        let falls = |to: Limit<Bytes>| self.machine.target().is_none_or(|now| to < now);
        if aim.target.is_some_and(falls) {
            self.progress.lowered(aim.told);
        }
        self.machine.aim(aim.target);
        self.level = aim.level;
        self.slows = aim.slows;
        self.pods.aim(&aim.pods);
        self.progress.figures.target_bytes = progress::target(&self.machine);
    }

    /// Another's value in the hard limit is to be overwritten.
    pub(super) fn answer(&mut self) {
        self.answers = true;
        self.machine.admit();
    }

    fn terms(&self, parts: &Parts) -> Terms {
        let swaps = nix::sys::sysinfo::sysinfo().is_ok_and(|machine| machine.swap_total() > 0);
        let kernel = match self.found.high {
            None => Kernel::V1 {
                reclaims_cache: !swaps,
            },
            Some(_) => Kernel::V2 {
                reclaims_cache: match self.reclaims {
                    Reclaims::Nothing => false,
                    Reclaims::Anything => !swaps,
                    Reclaims::CacheAlone => true,
                },
                swaps,
            },
        };
        Terms {
            steps: match (self.slows, self.found.high) {
                (false, Some(_)) => parts.config.steps.without_slowing(),
                _ => parts.config.steps,
            },
            kernel,
            page_size: Bytes(rustix::param::page_size() as u64),
            margin: margin(),
            piece: parts.config.reclaim_step,
            high_at_rest: self.found.high.unwrap_or(Limit::Unlimited),
        }
    }

    /// All but the page cache, which costs ten times as much to read.
    fn read(&self, tree: &Tree) -> Result<Reading, Error> {
        Ok(Reading {
            usage: Bytes(self.memory.usage()?),
            cache: Bytes::ZERO,
            max: bytes(self.memory.limit()?),
            high: match self.found.high {
                Some(_) => Some(tree.memory_high(&self.path)?),
                None => None,
            },
            level: self.level,
        })
    }

    /// What to do of what is read now. Page cache is looked at last: to stop the tier's growth waits for
    /// nothing.
    fn decide(&mut self, parts: &Parts, ours: &Ours) -> Result<(Reading, Decision), Error> {
        let terms = self.terms(parts);
        let mut reading = self.read(&parts.tree)?;
        if ours.has(&self.path, reading.max, Instant::now()) {
            // One of ours, be it not the last.
            self.machine.admit();
        }
        let mut decision = self.machine.next(&reading, &terms);
        if decision.look == Look::Soon && terms.drops_cache() {
            let cache = self.memory.page_cache()?;
            // On v1 a task may need room at once.
            let is_v1 = self.found.high.is_none();
            reading.cache = Bytes(if is_v1 { cache.clean } else { cache.all });
            decision = self.machine.next(&reading, &terms);
        }
        Ok((reading, decision))
    }

    /// Reads, decides and carries out one step at most.
    pub(super) fn look(
        &mut self,
        parts: &Parts,
        ours: &Ours,
        tell: &mut impl FnMut(Report),
    ) -> Result<Looked, Error> {
        let (reading, Decision { step, look }) = self.decide(parts, ours)?;
        self.progress.look(&reading, &self.machine, tell);
        if let Some(left) = self.machine.left() {
            // Before the write, so that no reader takes the value for a foreign one.
            ours.note(&self.path, left, Instant::now());
        }
        let Some(step) = step else {
            self.answers = false;
            if look == Look::OnChange {
                // It fits: there is nothing to keep from growing.
                self.progress.fits();
            }
            return Ok(Looked {
                look,
                stepped: false,
                failed: false,
            });
        };
        let begun = clock::monotonic();
        let done = self.carry_out(parts, ours, &reading, &step, tell);
        if done != Some(true) {
            self.machine.failed(&step);
        }
        let failed = done.is_none();
        match step {
            Step::Reclaim(_) => {}
            // As it was, for readers.
            Step::Max(_) if failed => ours.note(&self.path, reading.max, Instant::now()),
            Step::High(_) if failed => {}
            Step::Max(_) => {
                self.progress.capped(clock::monotonic());
                let answers = std::mem::take(&mut self.answers);
                parts.counters.count_corrected(answers.into());
            }
            // In force from the first; the write returns only when the kernel has reclaimed what it can:
            // `memory_high_write` of mm/memcontrol.c.
            Step::High(_) => self.progress.capped(begun),
        }
        tracing::debug!(
            tier = self.scope.as_str(),
            ?step,
            usage = reading.usage.0,
            failed,
            "convergence"
        );
        Ok(Looked {
            look,
            stepped: true,
            failed,
        })
    }

    /// Slows the tier's pods where it is above its target and may not be slowed itself, else puts back what was found in
    /// them; true when one was slowed further.
    pub(super) fn slow_pods(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        tell: &mut impl FnMut(Report),
    ) -> bool {
        let slows_pods =
            self.progress.is_open() && !self.slows && parts.config.steps.cap_lower_tiers;
        let slowed = match slows_pods && self.found.high.is_some() {
            true => self.pods.press(parts, originals, &self.terms(parts)),
            false => {
                self.pods.release(parts, originals);
                Ok(false)
            }
        };
        self.progress.figures.slowed_pods = self.pods.count();
        slowed.unwrap_or_else(|error| {
            self.say_refused(&error, tell);
            false
        })
    }

    /// False when the kernel had no page cache to give, `None` when it refused the step.
    fn carry_out(
        &mut self,
        parts: &Parts,
        ours: &Ours,
        reading: &Reading,
        step: &Step,
        tell: &mut impl FnMut(Report),
    ) -> Option<bool> {
        let result = match *step {
            Step::Max(max) => writes::max(parts, &self.path, max),
            Step::High(high) => writes::high(parts, &self.path, high),
            Step::Reclaim(piece) if self.found.high.is_some() => {
                writes::reclaim(parts, &self.path, piece, self.reclaims)
            }
            Step::Reclaim(piece) => {
                let below = Limit::At(reading.usage.saturating_sub(piece));
                // It stands there for a moment, and after it the one that is there now.
                ours.note(&self.path, below, Instant::now());
                ours.note(&self.path, reading.max, Instant::now());
                writes::reclaim_by_limit(parts, &self.path, below, reading.max)
            }
        };
        match result {
            Ok(outcome) => {
                let done = outcome == Outcome::Done;
                self.progress.count(step, done);
                self.refused = None;
                Some(done)
            }
            Err(error) if error.is_gone() => None,
            Err(error) => {
                self.say_refused(&error, tell);
                None
            }
        }
    }

    /// Says once that a write is refused.
    fn say_refused(&mut self, error: &Error, tell: &mut impl FnMut(Report)) {
        let said = format!(
            "the {} tier does not converge: {}",
            self.scope.as_str(),
            crate::base::error::chain(error)
        );
        if self.refused.as_ref() != Some(&said) {
            tell(Report::Refused(said.clone()));
            self.refused = Some(said);
        }
    }
}

/// A limit as it was read.
pub(super) fn bytes(limit: Option<u64>) -> Limit<Bytes> {
    limit.map(Bytes).into()
}
