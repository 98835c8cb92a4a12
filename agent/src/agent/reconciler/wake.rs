//! What the loop waits for, and when it reads figures by itself.

use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use tokio::io::unix::AsyncFd;

use super::{Parts, SlowLoop, runtime};
use crate::hierarchy::converge::Report;

/// Time between two sampling passes while nobody looks.
const IDLE_SAMPLING: Duration = Duration::from_secs(10);

/// Somebody who has not asked for this long is not looking any more.
const LOOKING: Duration = Duration::from_secs(10);

/// Why the loop woke.
pub(super) enum Woke {
    Records,
    Reports,
    Notices,
    Convergence(Report),
    Pods,
    Runtime,
    Time,
}

impl SlowLoop {
    /// Completes when there is something to do, the reactor's reports before all else.
    pub(super) async fn wait(&mut self, bell: Option<&AsyncFd<OwnedFd>>) -> Woke {
        let due = self.sampling_due();
        let now = Instant::now();
        let other = self.pace.due(now).min(self.vigil_due(now));
        // Asking ends an idle pause; once sampling is at its full pace it changes nothing.
        let idle = due > self.parts.config.sampling_interval;
        let reports = async {
            match bell {
                Some(bell) => {
                    if let Ok(mut guard) = bell.readable().await {
                        guard.clear_ready();
                    }
                }
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let notices = async {
            match &self.drift {
                Some(drift) => drift.ready().await,
                None => std::future::pending().await,
            }
        };
        let converger = &mut self.converger;
        let convergence = async {
            match converger {
                Some(converger) => match converger.report().await {
                    Some(report) => report,
                    // Its thread has ended.
                    None => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        let Parts {
            accounting,
            pods,
            published,
            runtime,
            ..
        } = &mut self.parts;
        tokio::select! {
            biased;
            () = reports => Woke::Reports,
            () = accounting.ready() => Woke::Records,
            report = convergence => Woke::Convergence(report),
            () = notices => Woke::Notices,
            changed = pods.changed(), if self.pods_open => {
                // The source is gone: its last word stays in force.
                self.pods_open = changed.is_ok();
                Woke::Pods
            }
            () = runtime::changed(runtime.as_mut()) => Woke::Runtime,
            () = published.demanded(), if idle => Woke::Time,
            () = tokio::time::sleep(due.min(other)) => Woke::Time,
        }
    }

    /// How long until figures are to be read again.
    pub(super) fn sampling_due(&self) -> Duration {
        let Some(sampled) = self.sampled else {
            return Duration::ZERO;
        };
        let looking = self
            .parts
            .published
            .since_demand()
            .is_some_and(|since| since < LOOKING);
        let interval = if looking {
            self.parts.config.sampling_interval
        } else {
            IDLE_SAMPLING
        };
        interval.saturating_sub(sampled.elapsed())
    }
}
