//! The thread: waits for the kernel's records, and lowers and raises what the tier may use. The rounds of suppression
//! are in [`super::rounds`].

use std::{
    os::fd::AsFd as _,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use podwarden_abi::LongWait;
use podwarden_cgroup::Controller;
use podwarden_policy::{MilliCpu, colocation::hold::Hold};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    Aim, Parts, Report, Standing, What, rounds::Rounds, standing::Figures, tier::Tier,
    watched::Watched,
};
use crate::{
    base::{
        bell::{silence, wait},
        clock,
        error::chain,
        worker::take_all,
    },
    colocation::{found::Originals, undo},
    hierarchy::converge::guard::Guard,
    kernel::{realtime, waits::Waits},
};

/// Between two looks at what best effort uses, while there is a protected pod.
const LOOK: Duration = Duration::from_millis(250);
/// Between two looks at a quota that another may have written.
const ADOPT: Duration = Duration::from_secs(5);
/// Between two reports of a lower limit.
const REPORTS_EACH: Duration = Duration::from_secs(1);
/// How long the tier is left alone after the kernel refused a write.
const REFUSED: Duration = Duration::from_secs(10);

pub(super) struct Thread {
    pub(super) parts: Parts,
    waits: Option<Waits>,
    bell: Arc<EventFd>,
    tell: UnboundedSender<Report>,
    standing: Arc<Standing>,
    originals: Originals,
    watched: Watched,
    pub(super) tier: Option<Tier>,
    pub(super) hold: Hold,
    pub(super) rounds: Rounds,
    /// Since when the tier is held back, and the waits since then.
    held: Option<(Instant, u64)>,
    reported: Option<Instant>,
    adopted: Instant,
    pub(super) refused: Option<Instant>,
    /// The refusal that was reported last.
    told: Option<String>,
    /// Puts the quota back when the agent is killed.
    guard: Option<Guard>,
}

impl Thread {
    pub(super) fn new(
        parts: Parts,
        waits: Option<Waits>,
        bell: Arc<EventFd>,
        tell: UnboundedSender<Report>,
        standing: Arc<Standing>,
    ) -> Self {
        Self {
            originals: Originals::open(parts.found.clone()),
            parts,
            waits,
            bell,
            tell,
            standing,
            watched: Watched::default(),
            tier: None,
            hold: Hold::default(),
            rounds: Rounds::default(),
            held: None,
            reported: None,
            adopted: Instant::now(),
            refused: None,
            told: None,
            guard: None,
        }
    }

    /// Runs until the channel closes; then puts everything back.
    pub(super) fn run(mut self, messages: &Receiver<Aim>) {
        if self.parts.real_time && !realtime::make_fifo() {
            tracing::info!("SCHED_FIFO was refused: on a busy node best effort is held back late");
        }
        loop {
            self.sleep();
            silence(&self.bell);
            while let Some(wait) = self.waits.as_mut().and_then(Waits::next) {
                self.waited(wait);
            }
            if !take_all(messages, |aim| self.take(aim)) {
                break;
            }
            self.look();
            self.standing.set(self.hold.limit(), self.rounds.limit());
            self.standing.set_figures(Figures {
                suppress: self.rounds.measured(),
                used: self.tier.as_ref().map(Tier::last_used),
            });
        }
        self.end();
    }

    fn sleep(&self) {
        let due = self.hold.due().map(|at| {
            Duration::from_nanos(at.saturating_sub(clock::monotonic())) + Duration::from_millis(1)
        });
        let look = self.is_needed().then_some(LOOK);
        let waits = self.waits.as_ref().map(Waits::as_fd);
        let fds = waits.into_iter().chain([self.bell.as_fd()]);
        wait(fds, due.into_iter().chain(look).min());
    }

    /// True while there is something to look at.
    fn is_needed(&self) -> bool {
        !self.watched.is_empty() || self.parts.suppress.is_some()
    }

    /// True for a while after the kernel refused a write.
    pub(super) fn is_refused(&self, now: Instant) -> bool {
        (self.refused).is_some_and(|at| now.duration_since(at) < REFUSED)
    }

    /// The tier's quota; `None` for what was found.
    fn limit(&self) -> Option<MilliCpu> {
        self.hold
            .limit()
            .into_iter()
            .chain(self.rounds.quota())
            .min()
    }

    /// A task of a protected pod waited too long.
    fn waited(&mut self, wait: LongWait) {
        let Some((pod, waited_nanos)) = self.watched.waited(wait.slot, wait.wait_ns) else {
            return;
        };
        self.standing.waited();
        let now = Instant::now();
        if self.is_refused(now) {
            return;
        }
        let Some(tier) = &mut self.tier else { return };
        let used = tier.used(now);
        let from = self.hold.limit().map_or(used, |limit| limit.min(used));
        let lowered = self
            .hold
            .waited(clock::monotonic(), used, &self.parts.bounds);
        if let Some((_, waits)) = &mut self.held {
            *waits += 1;
        }
        if !lowered || !self.write(now) {
            return;
        }
        let at = clock::monotonic();
        let Some(to) = self.hold.limit() else { return };
        let begins = self.held.is_none();
        self.held.get_or_insert((now, 1));
        let due = self
            .reported
            .is_none_or(|at| now.duration_since(at) >= REPORTS_EACH);
        if (begins || due)
            && let Some(pod) = self.watched.pod(pod).cloned()
        {
            self.reported = Some(now);
            self.report(
                at,
                What::Held {
                    pod,
                    waited_nanos,
                    delay_nanos: at.saturating_sub(wait.time_ns),
                    from,
                    to,
                },
            );
        }
    }

    /// Lets the tier use what the law says. False where the kernel refused.
    pub(super) fn write(&mut self, now: Instant) -> bool {
        let limit = self.limit();
        let Some(tier) = &mut self.tier else {
            return false;
        };
        if !self.parts.enforce {
            return true;
        }
        let Err(error) = tier.limit(limit) else {
            return true;
        };
        if error.is_gone() {
            self.tier = None;
        } else {
            // A limit of before is in force, which nothing would raise. Where that is refused, too, the tier is gone or
            // stays as it is: either is said.
            let _ = tier.limit(None);
            self.refuse(now, &error);
        }
        self.hold = Hold::default();
        self.held = None;
        self.rounds.forget();
        false
    }

    /// The kernel refused a write or a file; the same refusal is reported once.
    pub(super) fn refuse(&mut self, now: Instant, error: &podwarden_cgroup::Error) {
        self.refused = Some(now);
        let error = chain(error);
        if self.told.as_ref() != Some(&error) {
            self.told = Some(error.clone());
            self.report(clock::monotonic(), What::Refused(error));
        }
    }

    /// What comes with time: steps back, and what others have done.
    fn look(&mut self) {
        let now = Instant::now();
        let rises = self.hold.rises(clock::monotonic(), &self.parts.bounds);
        if rises && self.write(now) && self.hold.limit().is_none() {
            self.freed(now);
        }
        if self.tier.is_none() && self.is_needed() && !self.is_refused(now) {
            self.open_tier(now);
        }
        self.suppress(now);
        if let Some(tier) = &mut self.tier
            && self.hold.limit().is_none()
        {
            // What a wait is to be judged by.
            tier.used(now);
            if now.duration_since(self.adopted) >= ADOPT {
                self.adopted = now;
                let originals = self.parts.enforce.then_some(&mut self.originals);
                tier.adopt(&self.parts.tree, originals);
            }
        }
    }

    fn freed(&mut self, now: Instant) {
        if let Some((since, waits)) = self.held.take() {
            let held = now.duration_since(since);
            self.report(clock::monotonic(), What::Freed { held, waits });
        }
    }

    /// Another list of pods.
    fn take(&mut self, aim: Aim) {
        let tree = &self.parts.tree;
        self.watched.set(tree, self.waits.as_mut(), aim.protected);
        self.rounds.pinned = aim.pinned;
        if self.watched.is_empty() {
            self.free();
        }
    }

    /// Opens the tier's files. It may come after the protected pods, with its first pod.
    fn open_tier(&mut self, now: Instant) {
        let parts = &self.parts;
        // Kept before anything is written.
        let originals = parts.enforce.then_some(&mut self.originals);
        // Where no cpu controller is delegated, a tier of v2 is there without these files.
        let directory = parts.tree.path(Controller::Cpu, &parts.tier);
        let is_there = || directory.as_ref().is_ok_and(|directory| directory.is_dir());
        let was_there = is_there();
        match Tier::open(&parts.tree, &parts.tier, originals) {
            Ok(tier) => self.tier = Some(tier),
            Err(error) if error.is_gone() && !(was_there && is_there()) => return,
            Err(error) => return self.refuse(now, &error),
        }
        if parts.enforce && self.guard.is_none() {
            self.guard = undo::guard(&parts.cgroup_root, &parts.found);
        }
    }

    /// The tier may use what it could when it was found. True once it may, or is gone.
    fn free(&mut self) -> bool {
        self.hold = Hold::default();
        let now = Instant::now();
        let held = self.tier.as_ref().is_some_and(Tier::is_held);
        let freed = !held || self.write(now);
        self.freed(now);
        freed || self.tier.is_none()
    }

    fn end(mut self) {
        let cpus = self.rounds.end(&self.parts.tree);
        if self.free() && self.parts.enforce {
            self.originals.close();
        }
        if let Some(cpus) = cpus {
            cpus.close();
        }
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
    }

    pub(super) fn report(&self, at: u64, what: What) {
        // An error says that the reconciler has ended.
        let _ = self.tell.send(Report {
            at,
            what,
            dry_run: !self.parts.enforce,
        });
    }
}
