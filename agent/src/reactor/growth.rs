//! What grew in a scope of late: its candidates, or something else. Allocates nothing.
//!
//! Twice a second the usage of every candidate is read and kept beside its open files, and what a scope uses
//! besides its candidates is kept here. A decision compares the present with the older of two samples, so that
//! it looks back half a second at least. While no scope moves, samples are further apart: that which moves one is
//! sampled before it has come far, and the older sample is of the time before.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use podwarden_policy::{
    pressure::WORTH_EVICTING,
    worth::{Effect, Grower, Growth, KUBELET_PACE_NS, Strangers},
};

use super::{
    plan::{ArmedPlan, ScopeName, Stranger},
    watch::Look,
};

/// Two samples are this far apart, nanoseconds.
const DISTANCE_NS: u64 = 500_000_000;

/// Two samples while every scope uses what it did at the last one, but for less than [`WORTH_EVICTING`] or than
/// one in [`FAR`] parts of the room below its level: a thousand candidates take some 4 ms to read.
const DISTANCE_AT_REST_NS: u64 = 5_000_000_000;

/// What moves a scope by less than this part of its room is sampled in time all the same.
const FAR: u64 = 64;

/// Scopes by name.
const SCOPES: usize = ScopeName::LEVELS.len();

/// A pod with nothing to kill is tried again once it grew by more than this, bytes: a process that starts has its
/// page tables, stacks and the kernel's memory for it charged.
const STARTED: u64 = 256 << 10;

/// And after this long, nanoseconds.
const TRIED_AGAIN_NS: u64 = KUBELET_PACE_NS;

/// A pod is left out for this long after a try in vain, nanoseconds: by then there is another process in it, or rights
/// were granted.
const LEFT_OUT_NS: u64 = 60_000_000_000;

/// What a candidate used at the last two samples, bytes, and whether a try to evict it was in vain.
#[derive(Debug, Default)]
pub struct Seen {
    /// The older first.
    samples: [AtomicU64; 2],
    /// The least that it used since nothing was found to kill, plus one; 0 where that was not so.
    empty: AtomicU64,
    /// When that was found.
    tried: AtomicU64,
    /// Until when it is left out, nanoseconds.
    left_out: AtomicU64,
}

impl Seen {
    /// A candidate that is not sampled yet and uses so much.
    pub fn new(usage: u64) -> Self {
        Self {
            samples: [usage.into(), usage.into()],
            ..Self::default()
        }
    }

    fn sample(&self, usage: u64) {
        let newer = self.samples[1].swap(usage, Ordering::Relaxed);
        self.samples[0].store(newer, Ordering::Relaxed);
    }

    /// How much a candidate that uses `usage` now grew since the older sample, bytes.
    pub(super) fn growth(&self, usage: u64) -> u64 {
        usage.saturating_sub(self.samples[0].load(Ordering::Relaxed))
    }

    /// It uses `usage`, and nothing was found in it at `now` that could be killed.
    pub(super) fn nothing_to_kill(&self, usage: u64, now: u64) {
        self.empty.store(usage.saturating_add(1), Ordering::Relaxed);
        self.tried.store(now, Ordering::Relaxed);
    }

    /// It could not be killed at `now`, or did not give its memory back: it is left out for a while.
    pub(super) fn leave_out(&self, now: u64) {
        let until = now.saturating_add(LEFT_OUT_NS);
        self.left_out.store(until, Ordering::Relaxed);
    }

    /// Whether it is left out at `now`, when it uses `usage`: it cannot be killed, or has nothing to kill.
    pub(super) fn is_passed_over(&self, usage: u64, now: u64) -> bool {
        now < self.left_out.load(Ordering::Relaxed) || self.has_nothing_to_kill(usage, now)
    }

    /// Whether nothing is still there to kill at `now`, when it uses `usage`.
    fn has_nothing_to_kill(&self, usage: u64, now: u64) -> bool {
        let empty = self.empty.load(Ordering::Relaxed);
        let tried = self.tried.load(Ordering::Relaxed);
        if empty == 0 || now.saturating_sub(tried) >= TRIED_AGAIN_NS {
            return false;
        }
        // Page cache of the dead may go before a process starts.
        self.empty
            .fetch_min(usage.saturating_add(1), Ordering::Relaxed);
        usage < empty.saturating_add(STARTED)
    }
}

/// What the scopes used besides their candidates.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Growths {
    /// At the last two samples, bytes; the older first. `None` where the scope was not looked at before.
    others: [[Option<u64>; SCOPES]; 2],
    /// When the samples were taken, nanoseconds; the older first.
    sampled: [u64; 2],
    /// Usage at the last look, bytes.
    usage: [Option<u64>; SCOPES],
    /// And at the last sample.
    usage_then: [Option<u64>; SCOPES],
    /// Below the level at the last look, bytes.
    room: [u64; SCOPES],
}

impl Growths {
    /// A scope uses so much, and has this level.
    pub(super) fn looked(&mut self, scope: ScopeName, look: Look, level: u64) {
        if let Some(index) = index(scope) {
            self.usage[index] = Some(look.usage);
            self.room[index] = level.saturating_sub(look.working_set);
        }
    }

    /// Samples the candidates and the strangers of a plan where a sample is due at `now`.
    pub(super) fn sample(&mut self, plan: &ArmedPlan, now: u64) {
        if now.saturating_sub(self.sampled[1]) < self.distance() {
            return;
        }
        self.sampled = [self.sampled[1], now];
        self.usage_then = self.usage;
        let mut others = self.usage;
        for victim in &plan.victims {
            let usage = victim.files.memory.usage().unwrap_or(0);
            victim.files.seen.sample(usage);
            for scope in plan.scopes.iter().map(|scope| scope.name) {
                if let Some(index) = index(scope)
                    && scope.contains(victim.place)
                {
                    others[index] = others[index].map(|rest| rest.saturating_sub(usage));
                }
            }
        }
        for stranger in &plan.strangers {
            let usage = stranger.memory.usage().unwrap_or(0);
            stranger.seen.sample(usage);
        }
        self.others = [self.others[1], others];
    }

    /// Nanoseconds between the last sample and the next.
    fn distance(&self) -> u64 {
        let scopes = self.usage.iter().zip(&self.usage_then);
        let mut scopes = scopes.zip(&self.room);
        let rests = scopes.all(|(usage, room)| match usage {
            (Some(now), Some(then)) => {
                now.abs_diff(*then) < WORTH_EVICTING.as_u64().max(room / FAR)
            }
            (now, then) => now == then,
        });
        if rests {
            DISTANCE_AT_REST_NS
        } else {
            DISTANCE_NS
        }
    }

    /// How fast a scope grew at `now`, bytes per second; 0 before there are two samples.
    pub(super) fn rate(&self, growth: &Growth, now: u64) -> u64 {
        let since = self.sampled[0];
        if since == 0 {
            return 0;
        }
        let rate = u128::from(growth.all()) * 1_000_000_000;
        let rate = rate.checked_div(now.saturating_sub(since).into());
        u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX)
    }

    /// How much a scope grew that uses `usage`, of which `candidates` use and grew so much.
    pub(super) fn of(&self, scope: ScopeName, usage: u64, candidates: Candidates) -> Growth {
        let others = usage.saturating_sub(candidates.usage);
        let before = index(scope).and_then(|index| self.others[0][index]);
        Growth {
            candidates: candidates.growth,
            // Nothing is known of the time before.
            others: before.map_or(0, |before| others.saturating_sub(before)),
        }
    }
}

/// What the candidates of a scope use, and by how much that grew, bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Candidates {
    pub(super) usage: u64,
    pub(super) growth: u64,
}

impl Candidates {
    pub(super) fn add(&mut self, usage: u64, growth: u64) {
        self.usage = self.usage.saturating_add(usage);
        self.growth = self.growth.saturating_add(growth);
    }
}

/// What the strangers of a scope use now, and by how much that grew.
pub(super) fn strangers(plan: &ArmedPlan, scope: ScopeName) -> Strangers {
    let mut sum = Strangers::default();
    let inside = |stranger: &&Arc<Stranger>| scope.contains(stranger.place);
    for stranger in plan.strangers.iter().filter(inside) {
        let usage = stranger.memory.usage().unwrap_or(0);
        sum.usage = sum.usage.saturating_add(usage);
        sum.growth = sum.growth.saturating_add(stranger.seen.growth(usage));
    }
    sum
}

/// What the evictions of each scope come to, before the first, by [`index`]. The node has a level of its own for
/// what is no pod's.
pub(super) fn effects() -> [Effect; SCOPES] {
    let mut effects = [Effect::new(Grower::Candidates); SCOPES];
    if let Some(node) = index(ScopeName::Node) {
        effects[node] = Effect::new(Grower::Others);
    }
    effects
}

pub(super) fn index(scope: ScopeName) -> Option<usize> {
    ScopeName::LEVELS.iter().position(|name| *name == scope)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(usage: u64) -> Look {
        Look {
            at: 0,
            usage,
            working_set: usage,
        }
    }

    #[test]
    fn samples_are_far_apart_while_no_scope_moves() {
        const MIB: u64 = 1 << 20;
        let plan = ArmedPlan::default();
        let mut growths = Growths::default();
        let mut sampled = |usage: u64, now: u64| {
            growths.looked(ScopeName::Kubepods, look(usage), usage + 200 * MIB);
            growths.sample(&plan, now);
            growths.sampled[1]
        };
        let (start, ms) = (10_000_000_000, 1_000_000);
        assert_eq!(sampled(100 * MIB, start), start);
        assert_eq!(sampled(103 * MIB, start + 4999 * ms), start);
        let second = start + 5000 * ms;
        assert_eq!(sampled(103 * MIB, second), second);
        // It moves, from what it was at the sample.
        assert_eq!(sampled(106 * MIB, second + 600 * ms), second);
        assert_eq!(sampled(107 * MIB, second + 499 * ms), second);
        let third = second + 601 * ms;
        assert_eq!(sampled(107 * MIB, third), third);
        assert_eq!(growths.sampled, [second, third]);
    }

    #[test]
    fn far_below_its_level_a_scope_may_move() {
        const MIB: u64 = 1 << 20;
        let plan = ArmedPlan::default();
        let mut growths = Growths::default();
        let start = 10_000_000_000;
        let mut sampled = |usage: u64, room: u64, now: u64| {
            growths.looked(ScopeName::Node, look(usage), usage + room);
            growths.sample(&plan, now);
            growths.sampled[1] == now
        };
        assert!(sampled(1000 * MIB, 6400 * MIB, start));
        let later = start + DISTANCE_NS;
        assert!(!sampled(1099 * MIB, 6400 * MIB, later));
        assert!(sampled(1100 * MIB, 6300 * MIB, later), "by a 64th");
        let later = later + DISTANCE_NS;
        assert!(sampled(1199 * MIB, 6200 * MIB, later), "of what is left");
    }

    #[test]
    fn left_out_for_a_while() {
        let seen = Seen::new(5);
        assert!(!seen.is_passed_over(5, 10));
        seen.leave_out(10);
        assert!(seen.is_passed_over(5, 10) && seen.is_passed_over(1 << 40, LEFT_OUT_NS));
        assert!(!seen.is_passed_over(5, 10 + LEFT_OUT_NS));
    }
}
