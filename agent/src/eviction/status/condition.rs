//! The Node's condition `PodwardenReady`: the agent's state, for schedulers.
//!
//! Delivery by a strategic patch of that one condition, which leaves those of the kubelet alone as theirs leave
//! it, when it changes and as often as a kubelet says that nothing has (as node-problem-detector does it,
//! `pkg/exporters/k8sexporter/condition/manager.go`).

use std::time::{Duration, Instant};

use super::{
    node_part::{NodePart, Pace},
    server::{PATCH_NODE, Server},
    wording,
};
use crate::{base::clock, eviction::pod_workers::JobError};

/// A new agent has so long to become ready.
const FIRST: Duration = Duration::from_secs(10);

/// Heartbeat, as often as a kubelet's (`nodeStatusReportFrequency`).
const HEARTBEAT: Duration = Duration::from_secs(300);

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
pub(crate) struct State {
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

pub(crate) struct Condition {
    health: Box<dyn Fn() -> Option<Health> + Send + Sync>,
    started: Instant,
    /// The status that was written last, and since when it is that, RFC 3339.
    since: Option<(&'static str, String)>,
}

impl Condition {
    /// Of what `health` finds; the outer `None` ends it.
    pub(crate) fn new(health: impl Fn() -> Option<Health> + Send + Sync + 'static) -> Self {
        Self {
            health: Box::new(health),
            started: clock::of_timers(),
            since: None,
        }
    }

    /// Since when `state` has its status, should it be written at `time`.
    fn since(&self, state: &State, time: &str) -> String {
        match &self.since {
            Some((status, since)) if *status == state.status => since.clone(),
            _ => time.to_owned(),
        }
    }
}

impl NodePart for Condition {
    type Value = State;

    const LEAST: Duration = Duration::from_secs(10);
    const FAILURE: &'static str = "the Node's condition PodwardenReady is not written";

    fn value(&self) -> Option<State> {
        (self.health)().map(State::of)
    }

    fn is_due(&self, state: &State, pace: &Pace<State>, now: Instant) -> bool {
        match pace.written() {
            None => state.status == "True" || now >= self.started + FIRST,
            Some((written, at)) => written != state || now >= *at + HEARTBEAT,
        }
    }

    async fn write(&mut self, server: &Server, node: &str, state: &State) -> Result<(), JobError> {
        let time = clock::now_text();
        let since = self.since(state, &time);
        let patch = wording::condition(state, &time, &since);
        let answer = server.patch_node_status(node, &patch).await?;
        answer.map_err(|refusal| refusal.failure(PATCH_NODE))?;
        self.since = Some((state.status, since));
        Ok(())
    }

    /// A server that was not there just now will not be at once.
    fn last(&self, _written: &State, reachable: bool) -> Option<State> {
        reachable.then(State::stopped)
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
        let mut condition = Condition::new(|| None);
        let start = condition.started;
        let mut pace = Pace::new(Condition::LEAST);
        let due = |condition: &Condition, pace: &Pace<State>, state: &State, at| {
            pace.allows(at) && condition.is_due(state, pace, at)
        };
        let (well, ill) = (of("enforce", &[]), State::stopped());
        assert!(!due(&condition, &pace, &ill, start), "it may become ready");
        assert!(due(&condition, &pace, &well, start));
        assert!(due(&condition, &pace, &ill, start + FIRST));
        pace.wrote(well.clone(), start);
        condition.since = Some((well.status, "then".to_owned()));
        let look = super::super::node_part::LOOK;
        assert!(!due(&condition, &pace, &well, start + HEARTBEAT - look));
        assert!(due(&condition, &pace, &well, start + HEARTBEAT));
        let least = Condition::LEAST;
        assert!(!due(&condition, &pace, &ill, start + least - look));
        assert!(due(&condition, &pace, &ill, start + least));
        assert_eq!(condition.since(&of("enforce", &["less"]), "now"), "then");
        assert_eq!(condition.since(&ill, "now"), "now");
    }

    #[test]
    fn what_fails_is_tried_again_and_not_before_the_time_that_is_named() {
        let condition = Condition::new(|| None);
        let start = condition.started;
        let mut pace = Pace::new(Condition::LEAST);
        let well = of("enforce", &[]);
        pace.failed(Some(Duration::from_secs(60)), start, 0.0);
        let due = |at| pace.allows(at) && condition.is_due(&well, &pace, at);
        assert!(!due(start + Duration::from_secs(59)));
        assert!(due(start + Duration::from_secs(60)));
    }

    #[test]
    fn the_end_is_told_where_the_server_is_there() {
        let condition = Condition::new(|| None);
        let well = of("enforce", &[]);
        assert_eq!(condition.last(&well, true), Some(State::stopped()));
        assert_eq!(condition.last(&well, false), None);
    }
}
