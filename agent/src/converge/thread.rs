//! The thread: waits until it is told something or it is time to look, and takes steps.

use std::{
    sync::{
        Arc, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};

use podwarden_policy::converge::Look;
use tokio::sync::mpsc::UnboundedSender;

use super::{Aim, Figures, Message, Parts, Report, found::Book, ours::Ours, tier, tier::Tier};

/// Between two looks at a tier above its target when something has just happened; doubled each time, up
/// to [`LONGEST`].
const SHORTEST: Duration = Duration::from_millis(2);

/// Well below the 100 ms within which a target is to be reached that usage allows.
pub(super) const LONGEST: Duration = Duration::from_millis(40);

/// How many times longer after a step that the kernel refused.
const REFUSED: u32 = 8;

/// Steps of one tier before the messages are looked at again: a limit that is to be raised waits for no
/// more.
const AT_ONCE: u32 = 4;

/// See the module's text.
pub(super) struct Thread {
    parts: Parts,
    ours: Arc<Ours>,
    tell: UnboundedSender<Report>,
    figures: Figures,
    book: Book,
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
        let book = Book::open(parts.found.clone());
        Self {
            parts,
            ours,
            tell,
            figures,
            book,
            aims: Vec::new(),
            tiers: Vec::new(),
            pause: SHORTEST,
        }
    }

    /// Runs until told to end; restores then what is to be restored.
    pub(super) fn run(mut self, waiting: &Receiver<Message>) {
        let mut wait = None;
        loop {
            let message = match wait {
                None => waiting.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => waiting.recv_timeout(wait),
            };
            let mut next = match message {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Message::End),
            };
            while let Some(message) = next {
                self.pause = SHORTEST;
                match message {
                    Message::Aim(aims) => self.aims = aims,
                    Message::Admit(rel) => {
                        if let Some(tier) = self.tiers.iter_mut().find(|tier| tier.rel == rel) {
                            tier.admit(&self.ours);
                        }
                    }
                    Message::Look => {}
                    Message::End => {
                        self.end();
                        return;
                    }
                }
                next = match waiting.try_recv() {
                    Ok(message) => Some(message),
                    Err(TryRecvError::Empty) => None,
                    Err(TryRecvError::Disconnected) => Some(Message::End),
                };
            }
            self.open();
            wait = self.look();
            self.publish();
        }
    }

    /// Opens what is to converge and is not open, and hands the tiers their targets.
    fn open(&mut self) {
        let tree = &self.parts.tree;
        self.tiers.retain(|tier| tier.is_current(tree));
        for aim in &self.aims {
            let tier = match self.tiers.iter_mut().find(|tier| tier.rel == aim.rel) {
                Some(tier) => tier,
                None if aim.target.is_none() => continue,
                None => match Tier::open(tree, aim, |now| self.book.of(&aim.rel, now)) {
                    Ok(tier) => {
                        self.tiers.push(tier);
                        let Some(tier) = self.tiers.last_mut() else {
                            continue;
                        };
                        tier
                    }
                    Err(error) => {
                        if !error.is_gone() {
                            tracing::warn!(%error, cgroup = aim.rel, "its memory limit cannot be kept");
                        }
                        continue;
                    }
                },
            };
            tier.aim(aim);
        }
    }

    /// Looks at all tiers; the answer is how long to wait for the next look.
    fn look(&mut self) -> Option<Duration> {
        let Self {
            parts,
            ours,
            tell,
            tiers,
            ..
        } = self;
        let mut tell = |report| {
            // An error says that the slow loop has ended: nobody wants to know any more.
            let _ = tell.send(report);
        };
        let mut wait: Option<Duration> = None;
        let mut stepped = false;
        let mut gone = Vec::new();
        for (index, tier) in tiers.iter_mut().enumerate() {
            for round in 1..=AT_ONCE {
                let looked = match tier.look(parts, ours, &mut tell) {
                    Ok(looked) => looked,
                    Err(error) => {
                        tracing::debug!(%error, cgroup = tier.rel, "not looked at any more");
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
            .filter(|t| t.figures.target_bytes.is_some());
        figures.extend(with_target.map(|tier| (tier.scope(), tier.figures.clone())));
    }

    fn end(self) {
        if !self.parts.config.on_exit.restores() {
            return;
        }
        let mut whole = true;
        // Also what an agent before this one has left and this one did not come to.
        for (rel, found) in self.book.all() {
            match tier::restore(&self.parts, rel, found) {
                Ok(()) => {}
                Err(error) if error.is_gone() => {}
                Err(error) => {
                    tracing::warn!(%error, cgroup = rel, "its limits are not what was found");
                    whole = false;
                }
            }
        }
        if whole {
            self.book.close();
        }
    }
}
