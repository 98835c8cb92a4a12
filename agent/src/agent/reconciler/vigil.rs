//! What the loop looks at by itself from time to time: the reactor's health, the soft threshold, and whether
//! pressure is over.

use std::time::{Duration, Instant};

use super::SlowLoop;
use crate::{agent::watchdog::News, api::types::TierStats};

/// What is said of a reactor that does not work; `/healthz` fails with it.
const ENDED: &str = "the reactor has ended: nothing is evicted any more; restart the agent";
const STUCK: &str = "the reactor is stuck: nothing is evicted until it goes on; see what its thread waits for \
     (/proc/PID/task/*/wchan), and restart the agent";

impl SlowLoop {
    /// How long until something here is to be looked at.
    pub(super) fn vigil_due(&self, now: Instant) -> Duration {
        let soft = self.soft.as_ref().map(|soft| soft.due(now));
        let marks = self.parts.marks.as_ref().and_then(|marks| marks.due(now));
        let others = soft.into_iter().chain(marks);
        others.fold(self.watchdog.due(now), Duration::min)
    }

    /// Looks at what is due.
    pub(super) fn vigil(&mut self, now: Instant) {
        if self.watchdog.due(now).is_zero() {
            self.watch_reactor(now);
        }
        if let Some(soft) = &mut self.soft
            && soft.due(now).is_zero()
        {
            let naming = &self.parts.naming;
            let kubepods = naming.rel(&naming.kubepods);
            self.stale |= soft.look(&self.parts.tree, &kubepods, now);
        }
        if let Some(marks) = &mut self.parts.marks
            && marks.due(now).is_some_and(|due| due.is_zero())
        {
            // Nothing is said of pressure that goes on and that nobody can be evicted for.
            if self
                .parts
                .published
                .latest()
                .node
                .tiers
                .iter()
                .any(is_at_level)
            {
                marks.pressed(now);
            }
            marks.look(now);
        }
    }

    /// A reactor that does not work is an error of ours or of the kernel's; the node must not go on
    /// believing in it.
    fn watch_reactor(&mut self, now: Instant) {
        if self.reactor_ended {
            return;
        }
        if !self.parts.reactor.is_running() {
            self.reactor_ended = true;
            self.reactor_trouble(ENDED);
            return;
        }
        let news = self.watchdog.look(self.parts.reactor.beat(), now);
        self.parts.reactor.nudge();
        match news {
            News::None => {}
            News::Stuck(stood) => {
                tracing::error!(?stood, "the reactor does not go round");
                self.reactor_trouble(STUCK);
            }
            News::Recovered => {
                tracing::warn!("the reactor works again");
                self.parts.stats.degradations.retain(|d| d != STUCK);
                self.parts.published.set_trouble(None);
            }
        }
    }

    fn reactor_trouble(&mut self, message: &'static str) {
        tracing::error!("{message}");
        self.parts.stats.degradations.push(message.to_owned());
        self.parts.published.set_trouble(Some(message));
        self.parts.published.degraded(message.to_owned());
    }
}

fn is_at_level(tier: &TierStats) -> bool {
    let used = tier.memory.as_ref().map(|memory| memory.working_set_bytes);
    used.zip(tier.armed_level_bytes)
        .is_some_and(|(used, level)| used >= level)
}
