//! The loop itself. After construction nothing here allocates; every call into the kernel is
//! non-blocking except the wait.

use std::{
    mem::MaybeUninit,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use podwarden_abi::Source;

use super::{
    KernelLevels, Shared,
    choose::{Choice, choose},
    fill::{Costs, Fill},
    freeing::{Freeing, Outlook},
    plan::{ArmedPlan, Scope},
    poll::{EVENTS, Poll, drain},
    reap::Reaper,
    report::{Chosen, Crossing, Detector, Outcome, Report},
    restraint::{Pace, PassedOver},
    ring,
    watch::{Look, Next, Watch},
};
use crate::{clock::monotonic as now, config::ReactorConfig, kernel::events};

/// Scopes that a plan can have.
const SCOPES: usize = 3;

/// How often a dying victim's memory is looked at.
const FREED_POLL: std::time::Duration = std::time::Duration::from_millis(1);

/// Tokens of the epoll set; a scope's eventfd is `NOTIFY + index`.
const CONTROL: u64 = 0;
const TIMER: u64 = 1;
const DECISIONS: u64 = 2;
const NOTIFY: u64 = 16;

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
                    notify => self.notified(notify, woke),
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
        }
        self.plan = new;
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
    fn notified(&mut self, token: u64, woke: u64) {
        let index = usize::try_from(token.wrapping_sub(NOTIFY)).unwrap_or(usize::MAX);
        let (Some(scope), Some(watch)) = (self.plan.scopes.get(index), self.watches.get_mut(index))
        else {
            return;
        };
        if let Some(fd) = &scope.notify {
            drain(fd);
        }
        watch.notified(woke);
    }

    /// Looks at every scope and acts where its working set is at its level.
    fn step(&mut self, woke: u64) {
        self.check_dying();
        let plan = Arc::clone(&self.plan);
        for (index, scope) in plan.scopes.iter().enumerate().take(SCOPES) {
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
        }
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
                choose(plan, scope.name, None, passed_over, None).map_or(0, |choice| choice.usage)
            },
        )
    }

    /// The working set is below the level: forget the last crossing, arm the kernel's level again.
    fn below(&mut self, index: usize, scope: &Scope, look: Look) {
        let watch = &mut self.watches[index];
        watch.below(look);
        if let Some(kernel) = &mut self.kernel
            && let Some(usage) =
                watch.usage_to_arm(self.fills[index].level, look, self.config.min_interval)
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
        if !paced && self.evict_one(plan, index, crossing) {
            return;
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

    /// Evicts the first that can be; false when there is none.
    fn evict_one(&mut self, plan: &Arc<ArmedPlan>, index: usize, crossing: Crossing) -> bool {
        let mut after = None;
        // One that cannot be killed, or has nothing to kill, does not save the others.
        for _ in 0..plan.victims.len() {
            let at = now();
            let passed_over = |token| self.passed_over.contains(token, at);
            let Some(choice) = choose(
                plan,
                crossing.scope,
                Some(&self.shared.trace),
                passed_over,
                after,
            ) else {
                break;
            };
            if !plan.enforce {
                self.watches[index].settle();
                self.evicted(plan, choice, crossing, None);
                return true;
            }
            if self.kill(plan, choice, crossing) {
                self.watches[index].acted();
                return true;
            }
            after = Some((choice.rank, &*plan.victims[choice.position].uid));
        }
        false
    }

    /// Kills one victim; false when nothing came of it.
    fn kill(&mut self, plan: &Arc<ArmedPlan>, choice: Choice, crossing: Crossing) -> bool {
        let victim = &plan.victims[choice.position];
        let verified = now();
        let mut attempt = self.reaper.attempt();
        let mut found = |pid| attempt.found(pid);
        match victim.files.kill.kill_workload(&mut found) {
            // Also who is dying already, of an agent's hand that is no more: what comes next is theirs.
            Ok(killed) if killed.processes > 0 || killed.dying => {
                let outcome = Outcome {
                    killed: now(),
                    processes: killed.processes,
                    spared: killed.spared,
                    complete: killed.complete,
                };
                // With the queue full they die by themselves.
                attempt.hand_over(&victim.files, self.evictions + 1);
                self.pace.note(outcome.killed);
                self.evicted(plan, choice, crossing, Some((verified, outcome)));
                true
            }
            // Nothing in it, or gone meanwhile.
            Ok(killed) if killed.complete => false,
            Err(error) if error.is_gone() => false,
            Ok(_) | Err(_) => {
                let token = victim.token;
                self.passed_over.add(token, verified);
                self.tell(Report::NotKilled { token, crossing });
                false
            }
        }
    }

    /// Reports a choice and, where it was carried out, waits for the victim's memory from now on.
    fn evicted(
        &mut self,
        plan: &Arc<ArmedPlan>,
        choice: Choice,
        crossing: Crossing,
        done: Option<(u64, Outcome)>,
    ) {
        let victim = &plan.victims[choice.position];
        self.evictions += 1;
        let number = self.evictions;
        if let Some((verified, _)) = done {
            self.dying = Some(Dying {
                plan: Arc::clone(plan),
                victim: choice.position,
                number,
                freeing: Freeing::new(choice.usage, verified),
            });
        }
        self.tell(Report::Chosen(Chosen {
            number,
            token: victim.token,
            class: victim.standing.qos,
            rank: choice.rank,
            usage: choice.usage,
            crossing,
            verified: done.map_or_else(now, |(verified, _)| verified),
            outcome: done.map(|(_, outcome)| outcome),
        }));
    }

    /// Is the last victim's memory free?
    fn check_dying(&mut self) {
        let Some(dying) = &mut self.dying else { return };
        let at = now();
        let victim = &dying.plan.victims[dying.victim];
        // An error is a cgroup that is gone.
        let left = victim.files.memory.usage().unwrap_or(0);
        self.shared.trace.pod(victim.token, at, left, None);
        let progress = self.reaper.progress();
        let (number, token) = (dying.number, victim.token);
        let (empty, swept) = (progress.is_empty(number), progress.is_swept(number));
        let freed = match dying.freeing.look(at, left, empty, swept) {
            Outlook::Wait => return,
            Outlook::Freed => {
                if let Some((bytes, took)) = dying.freeing.cost(at, left) {
                    self.costs.reap.learn(bytes, took);
                }
                Some(at)
            }
            Outlook::Stuck => {
                self.passed_over.add(token, at);
                None
            }
        };
        self.dying = None;
        self.tell(Report::Freed { number, at: freed });
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

fn stopping(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests;
