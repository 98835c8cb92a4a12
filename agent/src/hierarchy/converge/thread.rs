//! The thread: waits until it is told something or it is time to look, and takes steps.

use std::{
    sync::{
        Arc, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};

use podwarden_cgroup::{Error, TreeLock};
use podwarden_policy::{converge::Look, limits::Limit};
use tokio::sync::mpsc::UnboundedSender;

use super::{
    Aim, Figures, Message, Parts, Report,
    found::Originals,
    guard::{self, Guard},
    ours::Ours,
    tier::Tier,
};
use crate::base::{error::chain, heartbeat::Heartbeat};

/// Between two looks at a tier above its target when something has just happened; doubled each time, up
/// to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(2);

/// Well below the 100 ms within which a target is to be reached that usage allows.
pub(super) const LONGEST: Duration = Duration::from_millis(40);

const STUCK: &str = "the tiers' limits are stuck where they are: the thread that lowers them waits for the kernel or \
     for systemd; see what for (/proc/PID/task/*/wchan)";

/// How many times longer after a step that the kernel refused.
const REFUSED: u32 = 8;

/// Steps of one tier before the messages are looked at again: a limit that is to be raised waits for no
/// more.
const AT_ONCE: u32 = 4;

/// What is needed to put back what was found; nothing before there is something to find.
#[derive(Default)]
struct Keeping {
    originals: Option<Originals>,
    guard: Option<Guard>,
    /// So that the guard of an agent before this one is done, and ours waits for us.
    lock: Option<TreeLock>,
    /// There is no guard to be had, which has been said.
    unguarded: bool,
}

impl Keeping {
    /// Opens a tier, with the tree to oneself: what the guard of an agent before this one puts back is
    /// not read before it is there.
    fn open(&mut self, parts: &Parts, aim: &Aim) -> Result<Tier, Error> {
        let _exists = parts.tree.memory_id(&aim.path)?;
        let originals = self.originals(parts);
        Tier::open(parts, aim, originals)
    }

    fn originals(&mut self, parts: &Parts) -> &mut Originals {
        self.originals.get_or_insert_with(|| {
            match guard::wait_for(&parts.tree) {
                Ok(Some(lock)) => self.lock = Some(lock),
                Ok(None) => tracing::warn!(
                    "another process writes the tiers' limits: what it has written counts as found"
                ),
                Err(error) => tracing::warn!(%error, "the tree is not locked"),
            }
            Originals::open(parts.found.clone())
        })
    }

    /// Before the first limit is lowered, or the first pod is frozen.
    fn guard(&mut self, parts: &Parts, tell: &UnboundedSender<Report>) {
        let Some(place) = parts.guard.as_ref() else {
            return;
        };
        if self.unguarded || self.guard.is_some() {
            return;
        }
        let refused = match Guard::start(place) {
            Ok(guard) => {
                let left = guard.leave();
                self.guard = Some(guard);
                left.err().map(|error| {
                    format!(
                        "what kills the agent's whole cgroup kills its guard, too, and only the next agent \
                         restores the tiers' limits then: {}",
                        chain(&error)
                    )
                })
            }
            Err(error) => {
                self.unguarded = true;
                Some(format!(
                    "after a kill only the next agent restores the tiers' limits: no \
                     process to be had ({error})"
                ))
            }
        };
        if let Some(refused) = refused {
            let _ = tell.send(Report::Refused(refused));
        }
    }

    /// Puts everything back that was found, also what an agent before this one has left and this one did
    /// not come to.
    fn end(self, parts: &Parts, handed_over: bool) {
        if handed_over && let Some(guard) = self.guard {
            guard.hand_over();
            return;
        }
        if let Some(originals) = self.originals.filter(|_| parts.config.on_exit.restores()) {
            guard::restore(parts, originals);
        }
        if let Some(guard) = self.guard {
            guard.dismiss();
        }
        drop(self.lock);
    }
}

pub(super) struct Thread {
    parts: Parts,
    ours: Arc<Ours>,
    tell: UnboundedSender<Report>,
    figures: Figures,
    keeping: Keeping,
    aims: Vec<Aim>,
    tiers: Vec<Tier>,
    pause: Duration,
}

impl Thread {
    pub(super) fn new(
        parts: Parts,
        ours: Arc<Ours>,
        tell: UnboundedSender<Report>,
        figures: Figures,
    ) -> Self {
        Self {
            parts,
            ours,
            tell,
            figures,
            keeping: Keeping::default(),
            aims: Vec::new(),
            tiers: Vec::new(),
            pause: SHORTEST,
        }
    }

    /// Runs until the channel closes; then restores the limits.
    pub(super) fn run(mut self, waiting: &Receiver<Message>) {
        let mut wait = None;
        let heartbeat = Heartbeat::new(STUCK);
        if self.parts.freezes() {
            self.keeping.guard(&self.parts, &self.tell);
        }
        loop {
            heartbeat.idle();
            let message = match wait {
                None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => waiting.recv_timeout(wait),
            };
            heartbeat.beat();
            let mut next = match message {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return self.keeping.end(&self.parts, false),
            };
            let mut answers = Vec::new();
            while let Some(message) = next {
                self.pause = SHORTEST;
                match message {
                    Message::Aim(aims) => self.aims = aims,
                    Message::Answer(path) => {
                        if let Some(tier) = self.tiers.iter_mut().find(|tier| tier.path == path) {
                            tier.answer();
                        }
                        answers.push(path);
                    }
                    Message::Look => {}
                    Message::HandOver => return self.keeping.end(&self.parts, true),
                }
                next = match waiting.try_recv() {
                    Ok(message) => Some(message),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => return self.keeping.end(&self.parts, false),
                };
            }
            self.open();
            wait = self.look();
            answers.iter().for_each(|path| self.ours.answered(path));
            self.publish();
        }
    }

    /// Opens the tiers that converge and are not open, and sets their targets.
    fn open(&mut self) {
        let (parts, keeping, tiers) = (&self.parts, &mut self.keeping, &mut self.tiers);
        tiers.retain(|tier| tier.is_current(&parts.tree));
        for aim in &self.aims {
            let at = match tiers.iter().position(|tier| tier.path == aim.path) {
                Some(at) => at,
                None if aim.target.is_none() => continue,
                None => match keeping.open(parts, aim) {
                    Ok(tier) => {
                        tiers.push(tier);
                        tiers.len() - 1
                    }
                    Err(error) => {
                        if !error.is_gone() {
                            tracing::warn!(%error, cgroup = %aim.path, "its memory limit cannot be kept");
                        }
                        continue;
                    }
                },
            };
            if matches!(aim.target, Some(Limit::At(_))) && parts.config.on_exit.restores() {
                keeping.guard(parts, &self.tell);
            }
            tiers[at].aim(aim);
        }
    }

    /// Looks at all tiers; the answer is how long to wait for the next look.
    fn look(&mut self) -> Option<Duration> {
        let (parts, keeping, tiers) = (&self.parts, &mut self.keeping, &mut self.tiers);
        let mut tell = |report| {
            // An error says that the reconciler has ended.
            let _ = self.tell.send(report);
        };
        let mut wait: Option<Duration> = None;
        let mut stepped = false;
        let mut gone = Vec::new();
        for (index, tier) in tiers.iter_mut().enumerate() {
            for round in 1..=AT_ONCE {
                let looked = match tier.look(parts, &self.ours, &mut tell) {
                    Ok(looked) => looked,
                    Err(error) => {
                        tracing::debug!(%error, cgroup = %tier.path, "not looked at any more");
                        gone.push(index);
                        break;
                    }
                };
                stepped |= looked.stepped;
                let next = match looked.look {
                    _ if looked.failed => Some(self.pause * REFUSED),
                    Look::Again if round < AT_ONCE => continue,
                    Look::Again => Some(Duration::ZERO),
                    Look::Soon => Some(self.pause),
                    Look::OnChange => None,
                };
                wait = wait.into_iter().chain(next).min();
                break;
            }
            stepped |= tier.slow_pods(parts, keeping.originals(parts), &mut tell);
        }
        for index in gone.into_iter().rev() {
            tiers.remove(index);
        }
        self.pause = if stepped {
            SHORTEST
        } else {
            LONGEST.min(self.pause * 2)
        };
        wait
    }

    fn publish(&self) {
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        figures.clear();
        let with_target = self
            .tiers
            .iter()
            .filter(|t| t.progress.figures.target_bytes.is_some());
        figures.extend(with_target.map(|tier| (tier.scope(), tier.progress.figures.clone())));
    }
}
