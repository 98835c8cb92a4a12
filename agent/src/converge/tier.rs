//! One tier: its files read, and a step carried out.

use podwarden_cgroup::{Error, MemoryReader, Reclaims, Tree};
use podwarden_policy::{
    Bytes,
    converge::{self, Decision, Kernel, Look, Reading, Step, Terms},
    limits::Limit,
    settings::Setting,
};

use super::{Aim, Gap, MARGIN, Parts, Report, found::Found, ours::Ours};
use crate::{act::Backend, api::TierConvergence, clock, reactor::plan::ScopeName};

/// What the reactor's level may be above usage and the margin before it is worth lowering it.
const LEVEL_GRAIN: u64 = MARGIN.0 / 2;

/// What was done since the gap opened.
#[derive(Debug)]
struct Open {
    gap: Gap,
    reclaimed: u64,
    writes: u64,
    /// Usage when the slow loop was last told that it fell.
    told: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) rel: String,
    scope: ScopeName,
    machine: converge::Tier,
    memory: MemoryReader,
    reclaims: Reclaims,
    level: Option<Bytes>,
    pub(super) found: Found,
    open: Option<Open>,
    pub(super) figures: TierConvergence,
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
    /// Opens a tier's files; `found` is given what they hold and tells what they held at first.
    ///
    /// # Errors
    /// [`Error::NotFound`] while there is no such cgroup.
    pub(super) fn open(
        tree: &Tree,
        aim: &Aim,
        found: impl FnOnce(Found) -> Found,
    ) -> Result<Self, Error> {
        let memory = MemoryReader::open(tree, &aim.rel)?;
        let is_v2 = tree.memory_high(&aim.rel).is_ok();
        let now = Found {
            id: tree.memory_id(&aim.rel)?,
            max: match aim.made {
                true => Limit::Unlimited,
                false => bytes(memory.limit()?),
            },
            high: match (is_v2, aim.made) {
                (false, _) => None,
                (true, true) => Some(Limit::Unlimited),
                (true, false) => Some(bytes(tree.memory_high(&aim.rel)?)),
            },
        };
        Ok(Self {
            rel: aim.rel.clone(),
            scope: aim.scope,
            machine: converge::Tier::default(),
            memory,
            reclaims: tree.reclaims(&aim.rel),
            level: None,
            found: found(now),
            open: None,
            figures: TierConvergence::default(),
            refused: None,
        })
    }

    /// Whether it is still the cgroup of this name.
    pub(super) fn is_current(&self, tree: &Tree) -> bool {
        tree.memory_id(&self.rel)
            .is_ok_and(|id| id == self.found.id)
    }

    pub(super) const fn scope(&self) -> ScopeName {
        self.scope
    }

    pub(super) fn aim(&mut self, aim: &Aim) {
        self.machine.aim(aim.target);
        self.level = aim.level;
        self.figures.target_bytes = target(&self.machine);
    }

    pub(super) fn admit(&mut self, ours: &Ours) {
        if let Ok(max) = self.memory.limit()
            && self.machine.left().is_some_and(|left| left != bytes(max))
        {
            ours.contested(&self.rel);
        }
        self.machine.admit();
    }

    fn terms(&self, parts: &Parts) -> Terms {
        let kernel = match self.found.high {
            None => Kernel::V1,
            Some(_) => {
                let swaps = rustix::system::sysinfo().totalswap > 0;
                Kernel::V2 {
                    reclaims_cache: match self.reclaims {
                        Reclaims::Nothing => false,
                        Reclaims::Anything => !swaps,
                        Reclaims::CacheAlone => true,
                    },
                    swaps,
                }
            }
        };
        Terms {
            steps: parts.config.steps,
            kernel,
            page_size: Bytes(rustix::param::page_size() as u64),
            margin: MARGIN,
            piece: parts.config.reclaim_step,
            high_at_rest: self.found.high.unwrap_or(Limit::Unlimited),
        }
    }

    fn read(&self, tree: &Tree) -> Result<Reading, Error> {
        let usage = self.memory.usage()?;
        let is_v2 = self.found.high.is_some();
        // Costs ten times as much, and says only how much may be dropped.
        let cache = if is_v2
            && !self
                .machine
                .gap(Bytes(usage).saturating_add(MARGIN))
                .is_zero()
        {
            self.memory.page_cache()?
        } else {
            0
        };
        Ok(Reading {
            usage: Bytes(usage),
            cache: Bytes(cache),
            max: bytes(self.memory.limit()?),
            high: match is_v2 {
                true => Some(bytes(tree.memory_high(&self.rel)?)),
                false => None,
            },
            level: self.level,
        })
    }

    /// Reads, decides and carries out one step at most.
    ///
    /// # Errors
    /// When the files cannot be read: the cgroup is gone, most likely.
    pub(super) fn look(
        &mut self,
        parts: &Parts,
        ours: &Ours,
        tell: &mut impl FnMut(Report),
    ) -> Result<Looked, Error> {
        let terms = self.terms(parts);
        let reading = self.read(&parts.tree)?;
        let Decision { step, look } = self.machine.next(&reading, &terms);
        self.account(&reading, tell);
        if let Some(left) = self.machine.left() {
            // Before the write, so that nobody sees the value and does not know it.
            ours.note(&self.rel, left);
        }
        let Some(step) = step else {
            return Ok(Looked {
                look,
                stepped: false,
                failed: false,
            });
        };
        let done = self.carry_out(parts, &step, tell);
        if done != Some(true) {
            self.machine.failed(&step);
        }
        let failed = done.is_none();
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

    /// Keeps figures, and tells when a gap opens, shrinks and closes.
    fn account(&mut self, reading: &Reading, tell: &mut impl FnMut(Report)) {
        let usage = reading.usage.0;
        let gap = self.machine.gap(reading.usage).0;
        self.figures.gap_bytes = gap;
        self.figures.high_bytes = reading.high.and_then(Limit::bound).map(|high| high.0);
        let Some(target) = target(&self.machine) else {
            self.close(usage, tell);
            return;
        };
        let reached = reading.max <= Limit::At(Bytes(target));
        self.figures.reached = reached;
        match &mut self.open {
            None if gap > 0 && !reached => {
                let gap = Gap {
                    scope: self.scope,
                    since: clock::monotonic(),
                    target,
                    usage,
                };
                self.open = Some(Open {
                    gap,
                    reclaimed: 0,
                    writes: 0,
                    told: usage,
                });
                tell(Report::Opened(gap));
            }
            Some(_) if reached => self.close(usage, tell),
            Some(open) if usage.saturating_add(LEVEL_GRAIN) < open.told => {
                open.told = usage;
                tell(Report::Fell(self.scope));
            }
            _ => {}
        }
    }

    fn close(&mut self, usage: u64, tell: &mut impl FnMut(Report)) {
        if let Some(open) = self.open.take() {
            tell(Report::Closed {
                gap: open.gap,
                usage,
                at: clock::monotonic(),
                reclaimed: open.reclaimed,
                writes: open.writes,
            });
        }
    }

    /// False when the kernel had no page cache to give, `None` when it refused the step.
    fn carry_out(
        &mut self,
        parts: &Parts,
        step: &Step,
        tell: &mut impl FnMut(Report),
    ) -> Option<bool> {
        let result = match *step {
            Step::Max(max) => {
                write_max(parts.backend.as_ref(), &parts.tree, &self.rel, max).map(|()| true)
            }
            Step::High(high) => {
                let high = high.bound().map(Bytes::as_u64);
                parts.tree.set_memory_high(&self.rel, high).map(|()| true)
            }
            Step::Reclaim(bytes) => parts.tree.reclaim(&self.rel, bytes.0, self.reclaims),
        };
        match result {
            Ok(done) => {
                self.count(step, done);
                self.refused = None;
                Some(done)
            }
            Err(error) if error.is_gone() => None,
            Err(error) => {
                let said = format!(
                    "the {} tier does not converge: {}",
                    self.scope.as_str(),
                    crate::error::chain(&error)
                );
                if self.refused.as_ref() != Some(&said) {
                    tell(Report::Refused(said.clone()));
                    self.refused = Some(said);
                }
                None
            }
        }
    }

    fn count(&mut self, step: &Step, done: bool) {
        let steps = &mut self.figures.steps;
        let mut limits = 0;
        let mut reclaimed = 0;
        match *step {
            Step::Max(_) => (steps.max, limits) = (steps.max + 1, 1),
            Step::High(_) => (steps.high, limits) = (steps.high + 1, 1),
            Step::Reclaim(bytes) => {
                steps.reclaim += 1;
                reclaimed = if done { bytes.0 } else { 0 };
            }
        }
        self.figures.reclaimed_bytes += reclaimed;
        if let Some(open) = &mut self.open {
            open.writes += limits;
            open.reclaimed += reclaimed;
        }
    }
}

/// Puts back what was found in a cgroup, the hard limit no lower than a margin above usage. One that was
/// made anew holds nothing of ours.
///
/// # Errors
/// The first write that the kernel refuses.
pub(super) fn restore(parts: &Parts, rel: &str, found: &Found) -> Result<(), Error> {
    let tree = &parts.tree;
    if tree.memory_id(rel)? != found.id {
        return Ok(());
    }
    let memory = MemoryReader::open(tree, rel)?;
    let floor = Bytes(memory.usage()?)
        .saturating_add(MARGIN)
        .round_up(Bytes(rustix::param::page_size() as u64));
    let max = found.max.max(Limit::At(floor));
    if bytes(memory.limit()?) != max {
        write_max(parts.backend.as_ref(), tree, rel, max)?;
    }
    let Some(high) = found.high else {
        return Ok(());
    };
    if bytes(tree.memory_high(rel)?) != high {
        tree.set_memory_high(rel, high.bound().map(Bytes::as_u64))?;
    }
    Ok(())
}

fn write_max(
    backend: &dyn Backend,
    tree: &Tree,
    rel: &str,
    max: Limit<Bytes>,
) -> Result<(), Error> {
    backend.write(tree, rel, &Setting::MemoryLimit(max))
}

fn target(machine: &converge::Tier) -> Option<u64> {
    machine.target()?.bound().map(Bytes::as_u64)
}

fn bytes(limit: Option<u64>) -> Limit<Bytes> {
    limit.map(Bytes).into()
}
