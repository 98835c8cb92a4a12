//! Converges a tier's memory limit to its target while the tier may use more, one write at a
//! time, without ever giving the kernel a reason to kill.
//!
//! Terminology: the *target* is what `qosReserved` leaves to the tier. The tier is *reached* once its
//! usage and a margin fit below the target, so that the hard limit can be put there. Until then there
//! is a *gap*. The *cap* keeps the tier from growing meanwhile. The *hold* is the level at
//! which the reactor evicts while there is a gap: a tier that does not grow loses no pod.
//!
//! Approach: the kernel answers a hard limit below usage with `EBUSY` (v1) or with the OOM killer (v2).
//! So:
//!
//! - v2: the cap is `memory.high`, which slows the tier's own tasks and kills none. `memory.max` is
//!   lowered once, when the target is reached; `memory.high` stands a margin below it from then on.
//! - v1 has no such file: the cap is the hard limit, a margin above the level at which the reactor
//!   evicts, so that the reactor comes before the kernel.
//! - Page cache is dropped in bounded pieces where the kernel can drop page cache alone. v1 does that for
//!   a hard limit a piece below usage, which is lifted again at once; it is asked only where so much
//!   page cache stays that a task that grows in between finds some to take.
//! - A limit is raised at once, `memory.max` before `memory.high`.
//!
//! Properties: a hard limit that is written is never below usage plus the margin. While the target
//! stays, no limit is raised again. With usage at rest the steps come to an end. No step writes what is
//! there.
//!
//! Everything is read anew before each step; times and files are the caller's.

mod terms;

use crate::{limits::Limit, units::Bytes};
pub use terms::*;

/// `memory.high` a part of usage below it: the kernel delays a task by the square of the part that
/// usage is above it (`calculate_high_delay`, `mm/memcontrol.c`), so that at usage itself a tier grows
/// by another hundredth before anything slows it. At a sixteenth each 256 KiB take 0.25 s.
const THROTTLE: u64 = 16;

/// A limit follows usage down in steps of this part of the margin.
const GRAIN: u64 = 16;

/// Most looks that are let pass after the kernel found no page cache to drop.
const MOST_SKIPPED: u32 = 32;

/// One tier on its way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tier {
    target: Option<Limit<Bytes>>,
    /// The hard limit of the last write; another value is foreign, see [`Tier::admit`].
    left: Option<Limit<Bytes>>,
    /// Page cache is being dropped, as far as is known.
    dropping: bool,
    /// Looks to let pass before page cache is dropped again, and how many it were last time.
    skip: u32,
    skipped: u32,
    /// See [`Tier::inherit`]; until the first look.
    inherited: Option<Limit<Bytes>>,
    /// What `memory.high` holds may be of our making.
    presses: bool,
}

impl Tier {
    /// The limits that the first look finds are those of an agent that was killed; `found` is the hard
    /// limit that was there before any agent. No agent kept the margin meanwhile, and v1 may have been left
    /// between the two writes of [`Step::Reclaim`]: a limit on the way that is too near to usage is
    /// raised once.
    pub fn inherit(&mut self, found: Limit<Bytes>) {
        self.inherited = Some(found);
        self.presses = true;
    }

    /// The tier's target; `None` where another writer decides.
    pub fn aim(&mut self, target: Option<Limit<Bytes>>) {
        if self.target != target {
            self.target = target;
            self.left = None;
        }
    }

    /// The target; `None` where there is none.
    pub const fn target(&self) -> Option<Limit<Bytes>> {
        self.target
    }

    /// Whatever the hard limit holds by now, it may be written: the rate limit on foreign writes lets
    /// it.
    pub fn admit(&mut self) {
        self.left = None;
    }

    /// The hard limit that was left last: found right, or written.
    pub const fn left(&self) -> Option<Limit<Bytes>> {
        self.left
    }

    /// The bytes that the tier uses above its target; 0 where it may use them.
    pub fn gap(&self, usage: Bytes) -> Bytes {
        match self.target {
            Some(Limit::At(target)) => usage.saturating_sub(target),
            Some(Limit::Unlimited) | None => Bytes::ZERO,
        }
    }

    /// The step that was given last did not do what it should: the kernel refused it, or found no page
    /// cache to drop.
    pub fn failed(&mut self, step: &Step) {
        match step {
            Step::Reclaim(_) => {
                self.dropping = false;
                self.skipped = (self.skipped * 2).clamp(1, MOST_SKIPPED);
                self.skip = self.skipped;
            }
            Step::Max(_) => self.left = None,
            Step::High(_) => {}
        }
    }

    /// What to do of what was read just now. A step is taken to be carried out before the next call,
    /// unless [`Tier::failed`] says otherwise.
    pub fn next(&mut self, reading: &Reading, terms: &Terms) -> Decision {
        let inherited = self.inherited.take();
        let (step, rest) = match self.target {
            None => (None, Look::OnChange),
            Some(Limit::Unlimited) => (self.release(reading, terms), Look::OnChange),
            Some(Limit::At(target)) => {
                let relief = inherited.and_then(|found| relief(target, found, reading, terms));
                match relief {
                    Some(_) => (relief, Look::Again),
                    None => self.towards(target, reading, terms),
                }
            }
        };
        let step = step.filter(|step| self.is_admitted(step, reading));
        match step {
            Some(Step::Max(max)) => self.left = Some(max),
            None | Some(Step::High(_) | Step::Reclaim(_)) if self.left.is_none() => {
                self.left = Some(reading.max);
            }
            _ => {}
        }
        if let Some(Step::High(_)) = step {
            self.presses = true;
        }
        let look = if step.is_some() { Look::Again } else { rest };
        Decision { step, look }
    }

    /// The part that counts foreign writes answers a foreign hard limit.
    fn is_admitted(&self, step: &Step, reading: &Reading) -> bool {
        !matches!(step, Step::Max(_)) || self.left.is_none_or(|left| left == reading.max)
    }

    fn release(&mut self, reading: &Reading, terms: &Terms) -> Option<Step> {
        if reading.max != Limit::Unlimited {
            return Some(Step::Max(Limit::Unlimited));
        }
        self.stop_pressing(reading, terms)
    }

    /// Takes back what was written to `memory.high` here; what others have there is theirs.
    fn stop_pressing(&mut self, reading: &Reading, terms: &Terms) -> Option<Step> {
        let step = at(reading.high, terms.high_at_rest).filter(|_| self.presses);
        self.presses = step.is_some();
        step
    }

    fn towards(&mut self, target: Bytes, reading: &Reading, terms: &Terms) -> (Option<Step>, Look) {
        let target = least(target, terms);
        let floor = floor(reading.usage, terms);
        if reading.max < Limit::At(target) {
            let step = Step::Max(Limit::At(target.max(floor)));
            return (Some(step), Look::OnChange);
        }
        if floor > target && reading.max != Limit::At(target) {
            let cap = match terms.kernel {
                Kernel::V1 { .. } => cap(floor, reading, terms),
                Kernel::V2 { swaps, .. } if terms.steps.cap_lower_tiers => {
                    press(target, swaps, reading, terms)
                }
                // A critical pod came into the tier while it was slowed.
                Kernel::V2 { .. } => self.stop_pressing(reading, terms),
            };
            let step =
                cap.or_else(|| self.drop_cache(floor.saturating_sub(target), reading, terms));
            return (step, Look::Soon);
        }
        (self.dropping, self.skip, self.skipped) = (false, 0, 0);
        let high = if terms.steps.memory_high {
            at(reading.high, Limit::At(target.saturating_sub(terms.margin)))
        } else {
            self.stop_pressing(reading, terms)
        };
        let max = (reading.max != Limit::At(target)).then_some(Step::Max(Limit::At(target)));
        // What slows goes first on the way down and last on the way up.
        let lowers = matches!((high, reading.high), (Some(Step::High(to)), Some(now)) if to < now);
        let step = if lowers { high.or(max) } else { max.or(high) };
        (step, Look::OnChange)
    }

    /// A piece of the page cache, at most `excess`.
    fn drop_cache(&mut self, excess: Bytes, reading: &Reading, terms: &Terms) -> Option<Step> {
        let stays = match terms.kernel {
            Kernel::V1 { .. } => spare(terms),
            Kernel::V2 { .. } => Bytes::ZERO,
        };
        let droppable = reading
            .cache
            .saturating_sub(stays)
            .min(excess)
            .min(terms.piece)
            .round_down(terms.page_size);
        if !terms.drops_cache() || droppable.is_zero() {
            return None;
        }
        if core::mem::take(&mut self.dropping) {
            self.skipped = 0;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        self.dropping = true;
        Some(Step::Reclaim(droppable))
    }
}

/// v2, above the target: `memory.high` at usage or below.
fn press(target: Bytes, swaps: bool, reading: &Reading, terms: &Terms) -> Option<Step> {
    let bottom = target.saturating_sub(terms.margin);
    let high = slowing(reading.usage, bottom, swaps, terms);
    let now = reading.high?;
    let follows = now > Limit::At(high.saturating_add(grain(terms)));
    (follows || now < Limit::At(bottom)).then_some(Step::High(Limit::At(high)))
}

/// `memory.high` of one pod of a tier that uses more than its target and holds a critical pod, see [`slowed_alone`]:
/// at usage or below, and not below what the pod `requests`. `None` where `high`, which is in force, is as low.
pub fn press_alone(
    usage: Bytes,
    requests: Bytes,
    high: Limit<Bytes>,
    terms: &Terms,
) -> Option<Limit<Bytes>> {
    let Kernel::V2 { swaps, .. } = terms.kernel else {
        return None;
    };
    let wanted = slowing(usage, requests.round_up(terms.page_size), swaps, terms);
    (high > Limit::At(wanted.saturating_add(grain(terms)))).then_some(Limit::At(wanted))
}

/// A `memory.high` that slows what uses so much, and no lower than `bottom`.
fn slowing(usage: Bytes, bottom: Bytes, swaps: bool, terms: &Terms) -> Bytes {
    // Below usage the kernel takes what it can, which may be to swap.
    let slack = if swaps { 0 } else { usage.0 / THROTTLE };
    let high = usage.saturating_sub(Bytes(slack));
    high.round_down(terms.page_size).max(bottom)
}

/// v1, above the target: the hard limit a margin above the reactor's level, where that is a margin
/// above usage.
fn cap(floor: Bytes, reading: &Reading, terms: &Terms) -> Option<Step> {
    let level = reading.level.filter(|_| terms.steps.cap_lower_tiers)?;
    let cap = level
        .max(floor)
        .saturating_add(terms.margin)
        .round_up(terms.page_size);
    let grain = cap.saturating_add(grain(terms));
    (reading.max > Limit::At(grain)).then_some(Step::Max(Limit::At(cap)))
}

/// The level to arm the reactor with where the tier's own would be `level` and it uses `used` that is no
/// page cache: a level that is lowered onto a tier causes no eviction; only growth does. `in_force` is the level
/// that is armed now, if any; usage that has reached that one is past it still.
pub fn hold(
    level: Bytes,
    used: Bytes,
    in_force: Option<Bytes>,
    margin: Bytes,
    steps: Steps,
) -> Bytes {
    if !steps.cap_lower_tiers || used < level {
        return level;
    }
    let hold = used.saturating_add(margin);
    in_force.map_or(hold, |now| now.min(hold)).max(level)
}

/// Below two margins there is no room for a margin on either side of usage.
fn least(target: Bytes, terms: &Terms) -> Bytes {
    target.round_down(terms.page_size).max(spare(terms))
}

/// A margin on either side.
fn spare(terms: &Terms) -> Bytes {
    terms.margin.saturating_add(terms.margin)
}

/// A limit on the way to the target that is below usage and a margin, brought there; no higher than
/// what was found at first.
fn relief(target: Bytes, found: Limit<Bytes>, reading: &Reading, terms: &Terms) -> Option<Step> {
    let wanted = Limit::At(floor(reading.usage, terms)).min(found);
    let arrived = reading.max == Limit::At(least(target, terms));
    (!arrived && reading.max < wanted).then_some(Step::Max(wanted))
}

/// The lowest hard limit that may be written.
fn floor(usage: Bytes, terms: &Terms) -> Bytes {
    usage.saturating_add(terms.margin).round_up(terms.page_size)
}

fn grain(terms: &Terms) -> Bytes {
    Bytes(terms.margin.0 / GRAIN).max(terms.page_size)
}

/// The write that brings `memory.high` to `wanted`, where there is such a file and it holds another.
fn at(now: Option<Limit<Bytes>>, wanted: Limit<Bytes>) -> Option<Step> {
    now.filter(|now| *now != wanted).map(|_| Step::High(wanted))
}
