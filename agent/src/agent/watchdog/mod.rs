//! Judges the loops from outside: a thread that looks at each heartbeat, and at nothing that a loop could hold.
//!
//! | what | then |
//! |---|---|
//! | a loop stands still | `/healthz` fails, a degradation says what is lost, the service manager hears no more |
//! | the reactor's thread has ended | the agent ends, so that it is started anew |

mod health;
mod notify;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use arc_swap::ArcSwapOption;
use tokio::sync::oneshot;

use self::{
    health::{Health, LOOK, News, REACTOR_PATIENCE},
    notify::Notify,
};
use crate::{api::published::Published, base::heartbeat, reactor::Pulse};

/// A loop may wait for systemd's answers (25 s) and jobs (30 s), once in a pass.
const PATIENCE: Duration = Duration::from_secs(90);
/// Another patience than [`PATIENCE`], seconds: for tests.
const PATIENCE_VARIABLE: &str = "PODWARDEN_LOOP_PATIENCE";

/// An agent that is to end because its reactor has ended has so long for it.
const LAST: Duration = Duration::from_secs(20);

/// The exit code of an agent that has not ended in time.
const FAILED: i32 = 3;

/// The thread; dropping it ends it.
pub(super) struct Watchdog {
    shared: Arc<Shared>,
    ended: oneshot::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    pulse: ArcSwapOption<Pulse>,
    stop: AtomicBool,
}

impl Watchdog {
    /// Starts to judge the loops that have a heartbeat.
    pub(super) fn start(published: Arc<Published>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (tell, ended) = oneshot::channel();
        let judge = Judge {
            shared: Arc::clone(&shared),
            published,
            notify: Notify::find(),
            reactor: Health::new(Instant::now(), REACTOR_PATIENCE),
            loops: BTreeMap::new(),
            patience: patience(),
            told_ready: false,
            tell: Some(tell),
        };
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || judge.run())?;
        Ok(Self {
            shared,
            ended,
            thread: Some(thread),
        })
    }

    /// Judges the reactor, too, from now on.
    pub(super) fn watch(&self, pulse: Pulse) {
        self.shared.pulse.store(Some(Arc::new(pulse)));
    }

    /// Completes when the reactor's thread has ended.
    pub(super) async fn reactor_ended(&mut self) {
        if (&mut self.ended).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn patience() -> Duration {
    let seconds = std::env::var(PATIENCE_VARIABLE).ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    seconds.map_or(PATIENCE, Duration::from_secs)
}

struct Judge {
    shared: Arc<Shared>,
    published: Arc<Published>,
    notify: Notify,
    reactor: Health,
    loops: BTreeMap<&'static str, Health>,
    patience: Duration,
    told_ready: bool,
    tell: Option<oneshot::Sender<()>>,
}

impl Judge {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.look(Instant::now());
            std::thread::park_timeout(LOOK);
        }
        self.notify.tell("STOPPING=1");
    }

    fn look(&mut self, now: Instant) {
        let reactor = self.look_at_the_reactor(now);
        let stuck = self.look_at_the_loops(now);
        let trouble = reactor.or(stuck);
        self.published.set_reactor_up(reactor.is_none());
        self.published.set_trouble(trouble);
        if self.published.has_figures() && !self.told_ready {
            self.told_ready = true;
            self.notify.tell("READY=1");
        }
        if trouble.is_none() {
            self.notify.tell("WATCHDOG=1");
        }
    }

    fn look_at_the_reactor(&mut self, now: Instant) -> Option<&'static str> {
        let pulse = self.shared.pulse.load_full()?;
        let news = self.reactor.look(pulse.take(), now);
        match news {
            News::Ended => {
                self.say(health::ENDED, "the reactor");
                self.end();
            }
            News::Stuck(stood) => {
                tracing::error!(?stood, "the reactor does not go round");
                self.say(health::STUCK, "the reactor");
            }
            News::Recovered => tracing::warn!("the reactor works again"),
            News::None => {}
        }
        self.reactor.trouble(health::STUCK)
    }

    fn look_at_the_loops(&mut self, now: Instant) -> Option<&'static str> {
        let loops = heartbeat::loops();
        self.loops
            .retain(|name, _| loops.iter().any(|one| one.stuck == *name));
        let mut said = Vec::new();
        let mut trouble = None;
        for one in loops {
            let health = self
                .loops
                .entry(one.stuck)
                .or_insert_with(|| Health::new(now, self.patience));
            let news = match one.beat() {
                Some(beat) => health.look(Some(beat), now),
                None => health.rests(now),
            };
            match news {
                News::Stuck(_) => said.push(one.stuck),
                News::Recovered => tracing::warn!("no longer so: {}", one.stuck),
                News::Ended | News::None => {}
            }
            trouble = trouble.or(health.trouble(one.stuck));
        }
        for stuck in said {
            self.say(stuck, "a loop");
        }
        trouble
    }

    fn say(&self, message: &'static str, what: &'static str) {
        tracing::error!(what, "{message}");
        self.published.degraded(message.to_owned());
    }

    /// The agent ends; by force where it does not.
    fn end(&mut self) {
        let Some(tell) = self.tell.take() else {
            return;
        };
        let _ = tell.send(());
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            std::thread::sleep(LAST);
            if !shared.stop.load(Ordering::Acquire) {
                // The guard leaves the node as it was.
                std::process::exit(FAILED);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent waits for this beside its work, and ends.
    #[tokio::test]
    async fn an_agent_hears_that_its_reactor_has_ended() {
        for by_panic in [false, true] {
            let published = Arc::new(Published::default());
            let mut watchdog = Watchdog::start(Arc::clone(&published)).unwrap();
            let soon = Duration::from_millis(100);
            let early = tokio::time::timeout(soon, watchdog.reactor_ended()).await;
            assert!(early.is_err(), "no reactor runs yet");
            watchdog.watch(Pulse::of_a_thread_that_ends(by_panic));
            watchdog.reactor_ended().await;
            // The same look goes on to say it to probes.
            drop(watchdog);
            let trouble = published.health().trouble;
            assert_eq!(trouble, Some(health::ENDED));
        }
    }
}
