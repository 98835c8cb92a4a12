//! The loop itself. After construction nothing here allocates; every call into the kernel is
//! non-blocking except the wait.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use podwarden_policy::{pressure::WORTH_EVICTING, promise::Living, worth::Effect};

mod evict;
mod notices;
mod pids;
mod promises;
mod rearm;

use evict::Evicted;

use super::{
    KernelLevels, Shared,
    choose::{Choice, Least, Order, Skip, Survey, choice_of},
    dying::Victims,
    fill::{Costs, Fill},
    growth::{self, Growths},
    node::NodeRoom,
    pids::{PidOrder, PidWatch},
    plan::{ArmedPlan, Scope, ScopeName, Victim},
    poll::{self, Poll},
    reap::Reaper,
    report::{Crossing, Report},
    restraint::Pace,
    ring,
    stalls::{self, Stalls},
    watch::{Look, Next, Watch},
};
use crate::{
    base::clock::{monotonic as now, nanos},
    config::ReactorConfig,
};

/// Scopes that a plan can have.
const SCOPES: usize = ScopeName::LEVELS.len();

/// How often a dying victim's memory is looked at, while its processes give it back and afterwards.
const FREED_POLL: Duration = Duration::from_millis(1);
const TEARDOWN_POLL: Duration = Duration::from_millis(20);

/// Tokens of the epoll set; a scope's eventfd is `NOTIFY + index`.
const CONTROL: u64 = 0;
const TIMER: u64 = 1;
const DECISIONS: u64 = 2;
const NOTIFY: u64 = 16;
/// A scope's `memory.events` is `EVENTS_OF + index`, a stall trigger `STALL + index`.
const EVENTS_OF: u64 = 32;
const STALL: u64 = 48;

/// The reactor's own state.
pub(super) struct Core {
    shared: Arc<Shared>,
    kernel: Option<KernelLevels>,
    reports: rtrb::Producer<Report>,
    poll: Poll,
    plan: Arc<ArmedPlan>,
    /// Which of the plan's scopes have their [`super::plan::Notice`] in the epoll set.
    listening: [bool; SCOPES],
    watches: [Watch; SCOPES],
    fills: [Fill; SCOPES],
    costs: Costs,
    dying: Victims,
    order: Order,
    /// Of those alone whose death lasts.
    lasting: Order,
    /// How fast the living fill each scope while victims of it die.
    living: [Living; SCOPES],
    reaper: Reaper,
    pace: Pace,
    stalls: Stalls,
    growths: Growths,
    /// What came of the evictions of each scope, by [`growth::index`].
    effects: [Effect; SCOPES],
    node: NodeRoom,
    pids: PidWatch,
    pid_order: PidOrder,
    evictions: u64,
    config: ReactorConfig,
}

impl Core {
    pub(super) fn new(
        shared: Arc<Shared>,
        reports: rtrb::Producer<Report>,
        reaper: Reaper,
        config: ReactorConfig,
    ) -> nix::Result<Self> {
        let poll = Poll::new(TIMER)?;
        poll.add(&shared.control, CONTROL)?;
        let plan = shared.plan.load_full();
        Ok(Self {
            shared,
            kernel: None,
            reports,
            poll,
            plan,
            listening: [false; SCOPES],
            watches: [Watch::default(); SCOPES],
            fills: [Fill::default(); SCOPES],
            costs: Costs::new(config.max_headroom),
            dying: Victims::default(),
            order: Order::default(),
            lasting: Order::default(),
            living: [Living::default(); SCOPES],
            reaper,
            pace: Pace::new(config.max_evictions_per_minute),
            stalls: Stalls::default(),
            growths: Growths::default(),
            effects: growth::effects(),
            node: NodeRoom::default(),
            pids: PidWatch::default(),
            pid_order: PidOrder::default(),
            evictions: 0,
            config,
        })
    }

    /// For the kernel's own levels.
    pub(super) fn take_kernel(&mut self, kernel: KernelLevels) -> nix::Result<()> {
        self.poll.add(&kernel.decisions, DECISIONS)?;
        self.kernel = Some(kernel);
        Ok(())
    }

    /// Runs until stopped.
    pub(super) fn run(mut self) {
        let mut buffer = poll::buffer();
        // The swap keeps a record for every thread that loads from it, made at the first time.
        drop(self.shared.plan.load());
        while !self.shared.stop.load(Ordering::Acquire) {
            // The set is ours alone; the reconciler notices that the thread has ended.
            let Ok(ready) = self.poll.wait(&mut buffer) else {
                return;
            };
            let wake = now();
            self.shared.beat.fetch_add(1, Ordering::Relaxed);
            let mut replan = false;
            for token in ready {
                match token {
                    CONTROL => replan = true,
                    TIMER => self.poll.drain_timer(),
                    DECISIONS => self.take_crossings(wake),
                    token @ NOTIFY..EVENTS_OF => self.notified(token - NOTIFY, wake),
                    token @ EVENTS_OF..STALL => self.limit_reached(token - EVENTS_OF, wake),
                    token => self.stalled(token - STALL, wake),
                }
            }
            // After the rest, which belongs to the previous plan.
            if replan {
                self.take_plan();
            }
            self.step(wake);
            self.set_timer();
        }
    }

    /// Looks at every scope and acts where its working set is at its level.
    fn step(&mut self, wake: u64) {
        self.check_dying();
        let plan = Arc::clone(&self.plan);
        for (index, scope) in plan.scopes.iter().enumerate().take(SCOPES) {
            if scope.name == ScopeName::Node && !self.node_is_due(&plan) {
                continue;
            }
            let Some(mut look) = self.look(&plan, index) else {
                continue;
            };
            self.shared.trace.scope(scope.name, look);
            let level = self.fills[index].level;
            self.growths.looked(scope.name, look, level);
            if look.working_set < self.watches[index].floor(level, scope.target) {
                self.below(index, scope, look);
            } else {
                look = self.at_level(&plan, index, look, wake);
            }
            if scope.name == ScopeName::Node {
                self.looked_at_node(&plan, index, look);
            }
        }
        self.relieve_stalls(&plan);
        self.relieve_pids(&plan, wake);
        self.growths.sample(&plan, now());
    }

    fn node_is_due(&self, plan: &ArmedPlan) -> bool {
        let shortest = nanos(self.config.min_interval);
        let pods = || pods_use(plan);
        self.node.is_due(now(), shortest, self.costs.ahead, pods)
    }

    /// Notes how much room the node has, and when that may be used up.
    fn looked_at_node(&mut self, plan: &ArmedPlan, index: usize, look: Look) {
        let level = self.fills[index].level;
        let room = level.saturating_sub(look.working_set);
        let (shortest, longest) = (self.config.min_interval, self.config.max_interval);
        let sleep = self.watches[index].sleep(level, look.at, plan.cpus, shortest, longest);
        let pods = pods_use(plan).unwrap_or(0);
        self.node
            .looked((look.at, now()), room, pods, nanos(sleep), nanos(shortest));
    }

    /// Evicts a pod where tasks wait for memory and memory is short; once for every notice.
    fn relieve_stalls(&mut self, plan: &Arc<ArmedPlan>) {
        let Some((wake, detector)) = self.stalls.take() else {
            return;
        };
        let Some(pressure) = &plan.pressure else {
            return;
        };
        // A victim is dying for it already.
        if self.dying.is_awaited() {
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
            working_set: usage,
            target: level,
            detector,
            crossed: wake,
            wake,
        };
        self.tell(Report::Crossed(crossing));
        let least = WORTH_EVICTING.as_u64();
        match self.evict_one(plan, crossing, least, least) {
            Evicted::Killed => {}
            Evicted::Told => self.stalls.said(now()),
            Evicted::None(why) => {
                self.tell(why);
                if let Report::StrangersGrow(..) = why {
                    self.stalls.waits(now());
                } else {
                    self.stalls.said(now());
                }
            }
        }
    }

    /// Looks at one scope, which settles the level that is in force.
    fn look(&mut self, plan: &ArmedPlan, index: usize) -> Option<Look> {
        let (scope, watch) = (&plan.scopes[index], &self.watches[index]);
        let dying = &self.dying;
        let order = &mut self.order;
        self.fills[index].look(
            scope,
            &self.costs,
            |level| watch.floor(level, scope.target),
            || {
                let at = now();
                let skip = |victim: &Victim, usage| skip(dying, victim, usage, at);
                order.fill(plan, scope.name, None, skip, Least::Used(0));
                order
                    .next(plan, None, Least::Used(0))
                    .map_or(0, |choice| choice.gain)
            },
        )
    }

    /// The working set is below the level: forget the last crossing, arm the kernel's level again.
    fn below(&mut self, index: usize, scope: &Scope, look: Look) {
        let watch = &mut self.watches[index];
        watch.below(look);
        let level = match scope.name {
            ScopeName::Kubepods => {
                let own = self.fills[index].level;
                let by_node = self.node.level_of_pods(look.working_set);
                by_node.map_or(own, |level| level.min(own))
            }
            name if name.is_cgroup() => self.fills[index].level,
            // The kernel counts no node: what room it has is room for pods.
            _ => return,
        };
        // Read only where page cache lifts the level.
        let limit = match look.usage > look.working_set {
            true => scope.limit(),
            false => None,
        };
        let most = limit.map(|limit| limit.saturating_sub(self.costs.ahead));
        if let Some(kernel) = &mut self.kernel
            && let Some(usage) = watch.usage_to_arm(level, most, look, self.config.min_interval)
            && kernel.levels.arm(scope.memory_id, usage).is_ok()
        {
            watch.armed(usage);
        }
    }

    /// Decides where what is free or promised does not suffice; `excess` is what has to be freed, bytes.
    fn decide(
        &mut self,
        plan: &Arc<ArmedPlan>,
        index: usize,
        look: Look,
        wake: u64,
        next: Next,
        excess: u64,
    ) {
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
            working_set: look.working_set,
            target: self.watches[index].floor(level, scope.target),
            detector,
            crossed,
            wake,
        };
        if first {
            self.tell(Report::Crossed(crossing));
        }
        match self.evict_one(plan, crossing, excess, 0) {
            Evicted::Killed => self.watches[index].acted(),
            Evicted::Told => self.watches[index].settle(),
            // Enough for the level, and no candidate that could give more.
            Evicted::None(_) if look.working_set < level => self.watches[index].below(look),
            Evicted::None(why) => {
                if self.watches[index].no_candidate(now()) {
                    self.tell(why);
                }
            }
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
        let (at, config) = (now(), self.config);
        let scopes = self.fills.iter().zip(&self.watches);
        let scopes = scopes.take(self.plan.scopes.len());
        let sleeps = scopes.map(|(fill, watch)| {
            let (shortest, longest) = (config.min_interval, config.max_interval);
            watch.sleep(fill.level, at, self.plan.cpus, shortest, longest)
        });
        let dying = match (self.dying.is_awaited(), self.dying.is_empty()) {
            (true, _) => Some(FREED_POLL),
            (false, false) => Some(TEARDOWN_POLL),
            (false, true) => None,
        };
        let pids = self.plan.pids.as_ref().map(|_| self.pids.sleep(at));
        let node = (self.node).sleep(at, nanos(config.min_interval), self.costs.ahead);
        self.poll
            .wake_after(sleeps.chain(dying).chain(pids).chain(node).min());
    }
}

/// Whether a pod that uses `usage` is left out of the order at `at`, and why.
fn skip(dying: &Victims, victim: &Victim, usage: u64, at: u64) -> Skip {
    match dying.promised_by(victim.token) {
        None => Skip::Dying,
        Some(_) if victim.files.seen.is_passed_over(usage, at) => Skip::PassedOver,
        Some(0) => Skip::No,
        Some(promised) => Skip::Promised(promised),
    }
}

/// What all pods use; `None` without a level of theirs.
fn pods_use(plan: &ArmedPlan) -> Option<u64> {
    let pods = plan.scopes.iter().find(|s| s.name == ScopeName::Kubepods)?;
    pods.memory.usage().ok()
}

#[cfg(test)]
mod tests;
