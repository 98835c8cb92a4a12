//! The loop itself. After construction nothing here allocates; every call into the kernel is
//! non-blocking except the wait.

use std::{
    mem::MaybeUninit,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use podwarden_abi::Source;
use podwarden_cgroup::PsiKind;
use podwarden_policy::pressure::WORTH_EVICTING;

mod evict;

use evict::Evicted;

use super::{
    KernelLevels, Shared,
    choose::{Choice, choose},
    fill::{Costs, Fill},
    freeing::Freeing,
    plan::{ArmedPlan, Pressure, Scope, ScopeName},
    poll::{EVENTS, Poll, drain},
    reap::Reaper,
    report::{Crossing, Detector, Report},
    restraint::{Pace, PassedOver},
    ring,
    stalls::{self, Stalls},
    watch::{Look, Next, Watch},
};
use crate::{
    clock::{monotonic as now, nanos},
    config::ReactorConfig,
    kernel::events,
};

/// Scopes that a plan can have.
const SCOPES: usize = 4;

/// How often a dying victim's memory is looked at.
const FREED_POLL: Duration = Duration::from_millis(1);

/// Tokens of the epoll set; a scope's eventfd is `NOTIFY + index`.
const CONTROL: u64 = 0;
const TIMER: u64 = 1;
const DECISIONS: u64 = 2;
const NOTIFY: u64 = 16;
/// A scope's `memory.events` is `EVENTS_OF + index`, a stall trigger `STALL + index`.
const EVENTS_OF: u64 = 32;
const STALL: u64 = 48;

/// Room on the node is rounded down to this, so that the kernel's level is not armed anew for every page
/// that somebody else uses, bytes.
const ROOM_GRAIN: u64 = 1 << 20;

/// The node's memory is looked at no more often than this, nanoseconds: it makes the kernel gather
/// figures of every cgroup.
const NODE_LOOK_NS: u64 = 10_000_000;

/// A victim whose memory is awaited.
#[derive(Debug)]
struct Dying {
    plan: Arc<ArmedPlan>,
    victim: usize,
    number: u64,
    freeing: Freeing,
}

/// The reactor's own state.
pub(super) struct Core {
    shared: Arc<Shared>,
    kernel: Option<KernelLevels>,
    reports: rtrb::Producer<Report>,
    poll: Poll,
    plan: Arc<ArmedPlan>,
    watches: [Watch; SCOPES],
    fills: [Fill; SCOPES],
    costs: Costs,
    dying: Option<Dying>,
    reaper: Reaper,
    pace: Pace,
    passed_over: PassedOver,
    stalls: Stalls,
    /// How far the node's working set was below its level, and when to look again.
    node_room: Option<u64>,
    node_due: u64,
    evictions: u64,
    cpus: u32,
    config: ReactorConfig,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        kernel: Option<KernelLevels>,
        reports: rtrb::Producer<Report>,
        reaper: Reaper,
        config: ReactorConfig,
    ) -> rustix::io::Result<Self> {
        let poll = Poll::new(TIMER)?;
        poll.add(&shared.control, CONTROL)?;
        if let Some(kernel) = &kernel {
            poll.add(&kernel.decisions, DECISIONS)?;
        }
        let plan = shared.plan.load_full();
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        Ok(Self {
            shared,
            kernel,
            reports,
            poll,
            plan,
            watches: [Watch::default(); SCOPES],
            fills: [Fill::default(); SCOPES],
            costs: Costs::new(config.max_headroom, cpus),
            dying: None,
            reaper,
            pace: Pace::new(config.max_evictions_per_minute),
            passed_over: PassedOver::default(),
            stalls: Stalls::default(),
            node_room: None,
            node_due: 0,
            evictions: 0,
            cpus,
            config,
        })
    }

    /// Runs until told to stop.
    pub(super) fn run(mut self) {
        let mut buffer = [const { MaybeUninit::uninit() }; EVENTS];
        // The swap keeps a record for every thread that loads from it, made at the first time.
        drop(self.shared.plan.load());
        while !stopping(&self.shared.stop) {
            // The set is ours alone; the reconciler notices that the thread has ended.
            let Ok(ready) = self.poll.wait(&mut buffer) else {
                return;
            };
            let woke = now();
            self.shared.beat.fetch_add(1, Ordering::Relaxed);
            let mut replan = false;
            for event in ready {
                match event.data.u64() {
                    CONTROL => replan = true,
                    TIMER => self.poll.drain_timer(),
                    DECISIONS => self.take_crossings(woke),
                    token @ NOTIFY..EVENTS_OF => self.notified(token - NOTIFY, woke),
                    token @ EVENTS_OF..STALL => self.limit_reached(token - EVENTS_OF, woke),
                    token => self.stalled(token - STALL, woke),
                }
            }
            // After the rest, which speaks of the plan that was in force.
            if replan {
                self.take_plan();
            }
            self.step(woke);
            self.set_timer();
        }
    }

    /// Swaps in the reconciler's newest plan and arms the kernel's levels.
    fn take_plan(&mut self) {
        drain(&self.shared.control);
        let new = self.shared.plan.load_full();
        // Rung to see whether we are there.
        if Arc::ptr_eq(&new, &self.plan) {
            return;
        }
        for scope in &self.plan.scopes {
            if let Some(fd) = &scope.notify {
                self.poll.remove(fd);
            }
            if let Some(events) = &scope.events {
                self.poll.remove(events);
            }
            let stays = new.scopes.iter().any(|s| s.memory_id == scope.memory_id);
            if let (false, Some(kernel)) = (stays, &mut self.kernel) {
                kernel.levels.disarm(scope.memory_id);
            }
        }
        // A level that moved starts afresh; one that stands keeps what was said about it.
        let mut watches = [Watch::default(); SCOPES];
        let mut fills = [Fill::default(); SCOPES];
        for (index, scope) in new.scopes.iter().enumerate().take(SCOPES) {
            let same = |s: &Arc<Scope>| s.name == scope.name && s.memory_id == scope.memory_id;
            let Some(before) = self.plan.scopes.iter().take(SCOPES).position(same) else {
                continue;
            };
            fills[index] = self.fills[before];
            if self.plan.scopes[before].level == scope.level {
                watches[index] = self.watches[before].replanned();
            }
        }
        (self.watches, self.fills) = (watches, fills);
        for (index, scope) in new.scopes.iter().enumerate().take(SCOPES) {
            if let Some(fd) = &scope.notify {
                // Without it the sampler and the kernel programs remain.
                let _ = self.poll.add(fd, NOTIFY + index as u64);
            }
            if let Some(events) = &scope.events {
                let _ = self.poll.add_exceptional(events, EVENTS_OF + index as u64);
            }
        }
        self.swap_triggers(&new);
        // The node is looked at afresh.
        (self.node_due, self.node_room) = (0, None);
        self.plan = new;
    }

    /// Listens to the new plan's stall triggers; those that stay are not touched, and say nothing twice.
    fn swap_triggers(&mut self, new: &ArmedPlan) {
        let stay = match (&self.plan.pressure, &new.pressure) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if stay {
            return;
        }
        for trigger in self.plan.pressure.iter().flat_map(|p| &p.triggers) {
            self.poll.remove(&trigger.notice);
        }
        let triggers = new.pressure.iter().flat_map(|p| &p.triggers);
        for (index, trigger) in triggers.enumerate().take(Pressure::MOST) {
            // Without it there are the levels.
            let _ = self
                .poll
                .add_exceptional(&trigger.notice, STALL + index as u64);
        }
    }

    /// Notes what the kernel programs saw.
    fn take_crossings(&mut self, woke: u64) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        while let Some(record) = kernel.decisions.next() {
            let Ok(crossing) = events::crossing(&record) else {
                continue;
            };
            let detector = if crossing.source == Source::Charge as u32 {
                Detector::Charge
            } else {
                Detector::Switch
            };
            for (scope, watch) in self.plan.scopes.iter().zip(&mut self.watches) {
                if scope.memory_id == crossing.cgroup {
                    watch.reported(crossing.time_ns, detector, woke);
                }
            }
        }
    }

    /// Notes that a v1 threshold was passed, in either direction.
    fn notified(&mut self, index: u64, woke: u64) {
        let Some((scope, watch)) = at(index, &self.plan.scopes, &mut self.watches) else {
            return;
        };
        if let Some(fd) = &scope.notify {
            drain(fd);
        }
        watch.notified(woke, Detector::EventFd);
    }

    /// Notes that a limit was reached in a scope, of its own or of a cgroup in it.
    fn limit_reached(&mut self, index: u64, woke: u64) {
        let Some((scope, watch)) = at(index, &self.plan.scopes, &mut self.watches) else {
            return;
        };
        // Of one that is gone nothing more is said.
        let there = scope.events.as_ref().is_some_and(|e| e.silence().is_ok());
        if there {
            watch.notified(woke, Detector::MemoryEvents);
        }
    }

    /// Notes that tasks have waited for memory.
    fn stalled(&mut self, index: u64, woke: u64) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let pressure = self.plan.pressure.as_ref();
        let Some(trigger) = pressure.and_then(|p| p.triggers.get(index)) else {
            return;
        };
        self.stalls.noticed(
            woke,
            match trigger.kind {
                PsiKind::Some => Detector::PsiSome,
                PsiKind::Full => Detector::PsiFull,
            },
        );
    }

    /// Looks at every scope and acts where its working set is at its level.
    fn step(&mut self, woke: u64) {
        self.check_dying();
        let plan = Arc::clone(&self.plan);
        for (index, scope) in plan.scopes.iter().enumerate().take(SCOPES) {
            if scope.name == ScopeName::Node && now() < self.node_due {
                continue;
            }
            let Some(look) = self.look(&plan, index) else {
                continue;
            };
            self.shared.trace.scope(scope.name, look);
            let level = self.fills[index].level;
            if look.working_set < self.watches[index].floor(level, scope.target) {
                self.below(index, scope, look);
            } else if self.dying.is_none() {
                // Killed is not freed: until it is, nothing else is decided.
                let retry = self.config.max_interval;
                let next = self.watches[index].above(level, look, woke, retry);
                self.decide(&plan, index, look, woke, next);
            }
            if scope.name == ScopeName::Node {
                self.look_at_node_again(index, look);
            }
        }
        self.relieve_stalls(&plan);
    }

    /// Notes how much room the node has, and when that may be used up.
    fn look_at_node_again(&mut self, index: usize, look: Look) {
        let level = self.fills[index].level;
        self.node_room = Some(level.saturating_sub(look.working_set));
        let (shortest, longest) = (self.config.min_interval, self.config.max_interval);
        let sleep = self.watches[index].sleep(level, look.at, self.cpus, shortest, longest);
        self.node_due = look.at.saturating_add(nanos(sleep).max(NODE_LOOK_NS));
    }

    /// Evicts somebody where tasks wait for memory and memory is short; once for every notice.
    fn relieve_stalls(&mut self, plan: &Arc<ArmedPlan>) {
        let Some((woke, detector)) = self.stalls.take() else {
            return;
        };
        let Some(pressure) = &plan.pressure else {
            return;
        };
        // Somebody is dying for it already.
        if self.dying.is_some() {
            return;
        }
        let Some((usage, level)) = stalls::shortage(pressure) else {
            return;
        };
        let crossing = Crossing {
            scope: ScopeName::Pressure,
            level,
            headroom: 0,
            fill_rate: 0,
            usage,
            detector,
            crossed: woke,
            woke,
        };
        self.tell(Report::Crossed(crossing));
        let paced = plan.enforce && !self.pace.allows(now());
        let done = match paced {
            true => Evicted::Nobody,
            false => self.evict_one(plan, crossing, WORTH_EVICTING.as_u64()),
        };
        match done {
            Evicted::Killed => return,
            Evicted::Told => {}
            Evicted::Nobody => self.tell(match paced {
                true => Report::Limited(crossing),
                false => Report::NobodyLeft(crossing),
            }),
        }
        self.stalls.said(now());
    }

    /// Looks at one scope, which settles the level that is in force.
    fn look(&mut self, plan: &ArmedPlan, index: usize) -> Option<Look> {
        let (scope, watch) = (&plan.scopes[index], &self.watches[index]);
        let passed_over = &self.passed_over;
        self.fills[index].look(
            scope,
            &self.costs,
            |level| watch.floor(level, scope.target),
            || {
                let at = now();
                let passed_over = |token| passed_over.contains(token, at);
                let choice = choose(plan, scope.name, None, passed_over, None, 0);
                choice.map_or(0, |choice| choice.usage)
            },
        )
    }

    /// The working set is below the level: forget the last crossing, arm the kernel's level again.
    fn below(&mut self, index: usize, scope: &Scope, look: Look) {
        let watch = &mut self.watches[index];
        watch.below(look);
        let level = match (scope.name, self.node_room) {
            // The kernel counts no node: what room it has is room for pods.
            (ScopeName::Node, _) => return,
            (ScopeName::Kubepods, Some(room)) => {
                let level = look
                    .working_set
                    .saturating_add(room / ROOM_GRAIN * ROOM_GRAIN);
                self.fills[index].level.min(level)
            }
            _ => self.fills[index].level,
        };
        if let Some(kernel) = &mut self.kernel
            && let Some(usage) = watch.usage_to_arm(level, look, self.config.min_interval)
            && kernel.levels.arm(scope.memory_id, usage).is_ok()
        {
            watch.armed(usage);
        }
    }

    fn decide(&mut self, plan: &Arc<ArmedPlan>, index: usize, look: Look, woke: u64, next: Next) {
        let Next::Decide {
            crossed,
            detector,
            first,
        } = next
        else {
            return;
        };
        let (scope, fill) = (&plan.scopes[index], &self.fills[index]);
        let level = fill.level;
        let crossing = Crossing {
            scope: scope.name,
            level,
            headroom: scope.level - level,
            fill_rate: fill.rate,
            usage: look.usage,
            detector,
            crossed,
            woke,
        };
        if first {
            self.tell(Report::Crossed(crossing));
        }
        let paced = plan.enforce && !self.pace.allows(now());
        let done = match paced {
            true => Evicted::Nobody,
            false => self.evict_one(plan, crossing, 0),
        };
        match done {
            Evicted::Killed => return self.watches[index].acted(),
            Evicted::Told => return self.watches[index].settle(),
            Evicted::Nobody => {}
        }
        if look.working_set < level {
            // Enough for the level, and nobody who could give more.
            self.watches[index].below(look);
        } else if self.watches[index].nobody(now()) {
            self.tell(match paced {
                true => Report::Limited(crossing),
                false => Report::NobodyLeft(crossing),
            });
        }
    }

    fn tell(&mut self, report: Report) {
        if self.reports.push(report).is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        ring(&self.shared.bell);
    }

    /// Sleeps no longer than usage needs to reach the nearest level.
    fn set_timer(&self) {
        let sleep = if self.dying.is_some() {
            Some(FREED_POLL)
        } else {
            let (at, config) = (now(), self.config);
            let scopes = self
                .fills
                .iter()
                .zip(&self.watches)
                .take(self.plan.scopes.len());
            scopes
                .map(|(fill, watch)| {
                    let (shortest, longest) = (config.min_interval, config.max_interval);
                    watch.sleep(fill.level, at, self.cpus, shortest, longest)
                })
                .min()
        };
        self.poll.wake_after(sleep);
    }
}

/// A scope of the plan and its watch.
fn at<'a>(
    index: u64,
    scopes: &'a [Arc<Scope>],
    watches: &'a mut [Watch; SCOPES],
) -> Option<(&'a Arc<Scope>, &'a mut Watch)> {
    let index = usize::try_from(index).ok()?;
    Some((scopes.get(index)?, watches.get_mut(index)?))
}

fn stopping(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests;
