//! The Node's condition `PodwardenReady`: the agent's state, for schedulers.
//!
//! Delivery by a strategic patch of that one condition, which leaves those of the kubelet alone as theirs leave
//! it, when it changes and as often as a kubelet says that nothing has (as node-problem-detector does it,
//! `pkg/exporters/k8sexporter/condition/manager.go`). Nothing waits for it, and nothing is kept on disk: only
//! what is so now counts.

use std::time::{Duration, Instant};

use tokio::{sync::oneshot, task::JoinHandle};

use super::{OnDegraded, say, server::Server, wording};
use crate::{
    base::{backoff::Backoff, clock},
    eviction::pod_workers::JobError,
    pods::Apiserver,
};

/// Between two looks at the agent.
const LOOK: Duration = Duration::from_secs(1);

/// Shortest time between two writes of the condition.
const LEAST: Duration = Duration::from_secs(10);

/// Heartbeat, as often as a kubelet's (`nodeStatusReportFrequency`).
const HEARTBEAT: Duration = Duration::from_secs(300);

/// An agent that ends waits so long for its last word.
const LAST: Duration = Duration::from_secs(2);

/// What the condition is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Why the agent does not do its work; `None` while it does.
    pub trouble: Option<&'static str>,
    /// What is missing before the agent is ready.
    pub ready: Result<(), String>,
    /// `observe` or `enforce`.
    pub mode: String,
    /// The profile that runs.
    pub profile: String,
    /// What this node cannot do, one sentence each.
    pub degradations: Vec<String>,
}

/// What the condition says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    /// `True` or `False`.
    pub(super) status: &'static str,
    /// One word for programs.
    pub(super) reason: &'static str,
    /// The same for people.
    pub(super) message: String,
}

impl State {
    /// Of a running agent.
    fn of(health: Health) -> Self {
        let state = |status, reason, message| Self {
            status,
            reason,
            message,
        };
        if let Some(trouble) = health.trouble {
            return state("False", "ReactorFailed", trouble.to_owned());
        }
        if let Err(why) = health.ready {
            return state("False", "NotReady", why);
        }
        let does = match health.mode.as_str() {
            "enforce" => "evicts",
            _ => "tells what it would evict, and evicts nothing",
        };
        let works = format!("podwarden {does}; profile {}", health.profile);
        if health.degradations.is_empty() {
            return state("True", "Ready", works);
        }
        let missing = health.degradations.join("; ");
        state("True", "Degraded", format!("{works}; {missing}"))
    }

    /// Of one that has ended.
    fn stopped() -> Self {
        Self {
            status: "False",
            reason: "Stopped",
            message: "podwarden was stopped: only the kubelet evicts".to_owned(),
        }
    }
}

/// When to say what. Values only.
#[derive(Debug)]
struct Pace {
    /// What was said last, and when.
    said: Option<(State, Instant)>,
    /// When `status` became what it is, RFC 3339.
    since: String,
    not_before: Instant,
    failures: Backoff,
}

impl Pace {
    /// A new agent is given a moment to become ready.
    fn new(now: Instant) -> Self {
        Self {
            said: None,
            since: String::new(),
            not_before: now + LEAST,
            failures: Backoff::default(),
        }
    }

    /// True where `state` is to be said now.
    fn is_due(&self, state: &State, now: Instant) -> bool {
        match &self.said {
            None => now >= self.not_before || (state.status == "True" && self.is_fresh()),
            Some((said, at)) => {
                let news = said != state;
                now >= self.not_before && (news || now >= *at + HEARTBEAT)
            }
        }
    }

    /// Nothing was tried yet.
    fn is_fresh(&self) -> bool {
        self.failures == Backoff::default()
    }

    /// Since when `state` has its status, should it be said at `time`.
    fn since(&self, state: &State, time: &str) -> String {
        match &self.said {
            Some((said, _)) if said.status == state.status => self.since.clone(),
            _ => time.to_owned(),
        }
    }

    fn said(&mut self, state: State, since: String, now: Instant) {
        self.said = Some((state, now));
        self.since = since;
        self.not_before = now + LEAST;
        self.failures = Backoff::default();
    }

    /// Not before `wait` where the server names a time.
    fn failed(&mut self, wait: Option<Duration>, now: Instant, spread: f64) {
        let pause = self.failures.next(spread);
        self.not_before = now + wait.unwrap_or_default().max(pause);
    }
}

/// See the module's text.
pub struct Condition {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Condition {
    /// Keeps the condition in the Node's status from now on; ends once `health` has gone.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        apiserver: Apiserver,
        node_name: &str,
        health: impl Fn() -> Option<Health> + Send + Sync + 'static,
        on_degraded: OnDegraded,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let teller = Teller {
            server: Server::new(apiserver),
            node_name: node_name.to_owned(),
            health: Box::new(health),
            on_degraded,
            pace: Pace::new(clock::of_timers()),
            problem: None,
        };
        Self {
            stop,
            task: tokio::spawn(teller.run(stopped)),
        }
    }

    /// The agent ends: says so, if that can be said at once.
    pub async fn end(self) {
        // An error says that it has ended.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Teller {
    server: Server,
    node_name: String,
    health: Box<dyn Fn() -> Option<Health> + Send + Sync>,
    on_degraded: OnDegraded,
    pace: Pace,
    /// What kept it from being said, so that this is said once.
    problem: Option<String>,
}

impl Teller {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            let Some(health) = (self.health)() else {
                return;
            };
            let state = State::of(health);
            if self.pace.is_due(&state, clock::of_timers()) {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = self.tell(state) => {}
                }
            }
        }
        // A server that was not there just now will not be at once.
        if self.pace.said.is_some() && self.problem.is_none() {
            let last = self.tell(State::stopped());
            let _ = tokio::time::timeout(LAST, last).await;
        }
    }

    async fn tell(&mut self, state: State) {
        let time = clock::now_text();
        let since = self.pace.since(&state, &time);
        let patch = wording::condition(&state, &time, &since);
        let answer = self.server.patch_node_status(&self.node_name, &patch).await;
        let now = clock::of_timers();
        let failure = match answer {
            Ok(Ok(_)) => {
                if self.problem.take().is_some() {
                    tracing::info!("the Node's condition is told again");
                }
                self.pace.said(state, since, now);
                return;
            }
            Ok(Err(refusal)) => refusal.failure(super::server::PATCH_NODE),
            Err(failure) => failure,
        };
        let JobError { problem, wait } = failure;
        self.pace.failed(wait, now, fastrand::f64());
        if self.problem.as_ref() != Some(&problem) {
            let message = format!("the Node's condition PodwardenReady is not told: {problem}");
            say(&self.on_degraded, message);
            self.problem = Some(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(mode: &str, degradations: &[&str]) -> Health {
        Health {
            trouble: None,
            ready: Ok(()),
            mode: mode.to_owned(),
            profile: "full".to_owned(),
            degradations: degradations.iter().map(|&d| d.to_owned()).collect(),
        }
    }

    fn of(mode: &str, degradations: &[&str]) -> State {
        State::of(health(mode, degradations))
    }

    #[test]
    fn the_condition_says_what_the_agent_does_and_what_is_missing() {
        let state = of("enforce", &[]);
        assert_eq!((state.status, state.reason), ("True", "Ready"));
        assert_eq!(state.message, "podwarden evicts; profile full");
        let state = of("observe", &["no levels", "no stalls"]);
        assert_eq!((state.status, state.reason), ("True", "Degraded"));
        assert!(state.message.contains("evicts nothing"), "{state:?}");
        assert!(
            state.message.ends_with("; no levels; no stalls"),
            "{state:?}"
        );
        let mut ill = health("enforce", &[]);
        ill.ready = Err("no figures".to_owned());
        let state = State::of(ill.clone());
        assert_eq!((state.status, state.reason), ("False", "NotReady"));
        ill.trouble = Some("stuck");
        let state = State::of(ill);
        assert_eq!((state.status, state.reason), ("False", "ReactorFailed"));
    }

    #[test]
    fn changes_are_told_soon_and_nothing_else_before_the_heartbeat() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let (well, ill) = (of("enforce", &[]), State::stopped());
        assert!(!pace.is_due(&ill, start), "it may become ready");
        assert!(pace.is_due(&well, start));
        assert!(pace.is_due(&ill, start + LEAST));
        pace.said(well.clone(), "then".to_owned(), start);
        assert!(!pace.is_due(&well, start + HEARTBEAT - LOOK));
        assert!(pace.is_due(&well, start + HEARTBEAT));
        assert!(!pace.is_due(&ill, start + LEAST - LOOK));
        assert!(pace.is_due(&ill, start + LEAST));
        assert_eq!(pace.since(&of("enforce", &["less"]), "now"), "then");
        assert_eq!(pace.since(&ill, "now"), "now");
    }

    #[test]
    fn what_fails_is_tried_again_ever_later_and_not_before_the_time_that_is_named() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let well = of("enforce", &[]);
        pace.failed(None, start, 0.0);
        assert!(!pace.is_due(&well, start));
        let first = pace.not_before;
        assert!(pace.is_due(&well, first));
        pace.failed(None, first, 0.0);
        assert!(pace.not_before - first > first - start);
        pace.failed(Some(Duration::from_secs(60)), start, 0.0);
        assert!(!pace.is_due(&well, start + Duration::from_secs(59)));
    }
}
