//! Keeps the runtime's state: lists it at the start, and again when a container appears that the state lacks. There is
//! no timer: a node where nothing starts makes no calls.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use nix::sys::eventfd::EventFd;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    client::Client,
    cri::{PodSandbox, VersionResponse},
    error::RuntimeError,
    state::{Runtime, RuntimeState},
};
use crate::base::{backoff::Backoff, bell::ring, clock, error, worker::Task};

/// Between two questions at least.
const APART: Duration = Duration::from_millis(200);

/// The same for a container whose cgroup cannot get its values without its name.
const APART_URGENT: Duration = Duration::from_millis(10);

/// How many lists may lack a container before it counts as not the runtime's. A sandbox's cgroup exists before the
/// runtime lists it: the runtime makes its network first. The pauses double: 25 s in all; a sandbox whose network takes
/// longer comes with the list for its containers.
const TRIES: u32 = 7;

/// A container that the state lacks.
#[derive(Debug)]
struct Sought {
    id: String,
    urgent: bool,
}

/// What the runtime is known to have, and a way to ask for more; neither blocks. Clones share it.
#[derive(Debug, Clone)]
pub struct Names {
    known: watch::Receiver<Arc<Runtime>>,
    seek: mpsc::UnboundedSender<Sought>,
}

impl Names {
    /// A container appeared: lists again if the state lacks it, at once where it is urgent.
    pub fn seen(&self, id: &str, urgent: bool) {
        if !self.known.borrow().state.has(id) {
            let id = id.to_owned();
            // The task has ended at shutdown.
            let _ = self.seek.send(Sought { id, urgent });
        }
    }

    /// For tests of other modules: what is known, and how many containers were sought.
    #[cfg(test)]
    pub fn of(known: watch::Receiver<Arc<Runtime>>) -> (Self, impl FnMut() -> usize) {
        let (seek, mut sought) = mpsc::unbounded_channel();
        let count = move || std::iter::from_fn(|| sought.try_recv().ok()).count();
        (Self { known, seek }, count)
    }

    /// What is known now.
    pub fn known(&self) -> Arc<Runtime> {
        Arc::clone(&self.known.borrow())
    }

    /// Rings `bell` whenever more is known, until the [`Follower`] is dropped. Call it inside a tokio runtime.
    pub fn ring(&self, bell: Arc<EventFd>) {
        let mut known = self.known.clone();
        tokio::spawn(async move {
            while known.changed().await.is_ok() {
                ring(&bell);
            }
        });
    }
}

/// The runtime as the reconciler has it.
#[derive(Debug)]
pub struct Follower {
    client: Client,
    names: Names,
    _task: Task,
}

impl Follower {
    /// Begins to list.
    pub fn start(client: Client) -> Self {
        let (publish, known) = watch::channel(Arc::default());
        let (seek, sought) = mpsc::unbounded_channel();
        let task = Task::spawn(follow(client.clone(), sought, publish));
        Self {
            client,
            names: Names { known, seek },
            _task: task,
        }
    }

    /// For other threads.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Completes when more is known than when this completed last.
    pub async fn changed(&mut self) {
        if self.names.known.changed().await.is_err() {
            // Its task has ended.
            std::future::pending::<()>().await;
        }
    }

    /// For other calls.
    pub fn client(&self) -> &Client {
        &self.client
    }
}

/// When to list again. Times are arguments.
#[derive(Debug, Default)]
struct Schedule {
    /// Ids that no list has, and how many lists lacked them.
    missing: BTreeMap<String, u32>,
    /// One of them is urgent and has not been looked for yet.
    urgent: bool,
    backoff: Backoff,
    asked: Option<Instant>,
    /// After a failure: when it is tried again.
    again: Option<Instant>,
}

impl Schedule {
    fn seek(&mut self, id: String, urgent: bool) {
        self.missing.entry(id).or_default();
        self.urgent |= urgent;
    }

    /// When to list next; `None` without a missing id.
    fn due(&self) -> Option<Instant> {
        let Some(asked) = self.asked else {
            return Some(Instant::now());
        };
        if self.again.is_some() {
            return self.again;
        }
        let least = self.missing.values().min()?;
        if self.urgent {
            return Some(asked + APART_URGENT);
        }
        Some(asked + APART.saturating_mul(2_u32.saturating_pow(*least)))
    }

    fn answered(&mut self, state: &RuntimeState, now: Instant) {
        self.asked = Some(now);
        self.urgent = false;
        self.again = None;
        self.backoff = Backoff::default();
        self.missing.retain(|id, tries| {
            *tries += 1;
            !state.has(id) && *tries < TRIES
        });
    }

    fn failed(&mut self, now: Instant, spread: f64) {
        self.asked = Some(now);
        self.again = Some(now + self.backoff.next(spread));
    }
}

async fn follow(
    client: Client,
    mut sought: mpsc::UnboundedReceiver<Sought>,
    publish: watch::Sender<Arc<Runtime>>,
) {
    let mut schedule = Schedule::default();
    let mut sandboxes = Vec::new();
    let show = |known: Runtime| {
        publish.send_if_modified(|current| {
            let changed = **current != known;
            if changed {
                *current = Arc::new(known);
            }
            changed
        });
    };
    loop {
        let due = schedule.due();
        tokio::select! {
            biased;
            sought = sought.recv() => {
                let Some(Sought { id, urgent }) = sought else { return };
                // A list may have come meanwhile.
                if !publish.borrow().state.has(&id) {
                    schedule.seek(id, urgent);
                }
                continue;
            }
            () = clock::until(due.map(Instant::into_std)) => {}
        }
        let before = Arc::clone(&publish.borrow());
        let early = |state| {
            if schedule.urgent && before.version.is_some() && before.problem.is_none() {
                show(Runtime {
                    state,
                    ..(*before).clone()
                });
            }
        };
        let answer = ask(&client, &before, &mut sandboxes, early).await;
        let now = Instant::now();
        let known = match answer {
            Ok((version, state)) => {
                schedule.answered(&state, now);
                if before.version.is_none() || before.problem.is_some() {
                    tracing::info!(
                        runtime = version.runtime_name,
                        version = version.runtime_version,
                        socket = %client.socket().display(),
                        "the container runtime answers"
                    );
                }
                Runtime {
                    state,
                    version: Some(version),
                    problem: None,
                }
            }
            Err(error) => {
                schedule.failed(now, fastrand::f64());
                Runtime {
                    problem: Some(error::chain(&error)),
                    ..(*before).clone()
                }
            }
        };
        show(known);
    }
}

/// Lists once. After a failure it also asks for the version: another runtime may answer. `early` gets the containers
/// with the sandboxes of the list before, half the time sooner.
async fn ask(
    client: &Client,
    known: &Runtime,
    sandboxes: &mut Vec<PodSandbox>,
    early: impl FnOnce(RuntimeState),
) -> Result<(VersionResponse, RuntimeState), RuntimeError> {
    let version = match (&known.version, &known.problem) {
        (Some(version), None) => version.clone(),
        _ => client.version().await?,
    };
    // The containers first: the sandbox of each of them is in the later list.
    let containers = client.containers().await?;
    early(RuntimeState::new(sandboxes, &containers));
    *sandboxes = client.sandboxes().await?;
    Ok((version, RuntimeState::new(sandboxes, &containers)))
}

#[cfg(test)]
mod tests {
    use super::super::cri::Container;
    use super::*;

    #[test]
    fn lists_come_at_the_start_and_then_for_missing_containers_alone() {
        let mut schedule = Schedule::default();
        assert!(schedule.due().is_some());
        let now = Instant::now();
        schedule.answered(&RuntimeState::default(), now);
        assert_eq!(schedule.due(), None);
        schedule.seek("a".to_owned(), false);
        assert_eq!(schedule.due(), Some(now + APART));
        // The pauses double, and end.
        let mut pauses = Vec::new();
        for _ in 0..TRIES {
            pauses.push(schedule.due().unwrap() - now);
            schedule.answered(&RuntimeState::default(), now);
        }
        assert!(
            pauses.windows(2).all(|pair| pair[1] == 2 * pair[0]),
            "{pauses:?}"
        );
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn a_new_container_does_not_wait_for_an_unknown_one() {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.seek("unknown".to_owned(), false);
        for _ in 0..TRIES - 1 {
            schedule.answered(&RuntimeState::default(), now);
        }
        assert!(schedule.due().unwrap() > now + 10 * APART);
        schedule.seek("new".to_owned(), false);
        assert_eq!(schedule.due(), Some(now + APART));
    }

    #[test]
    fn an_urgent_container_is_looked_for_at_once_and_then_as_any_other() {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.answered(&RuntimeState::default(), now);
        schedule.seek("a".to_owned(), true);
        assert_eq!(schedule.due(), Some(now + APART_URGENT));
        schedule.answered(&RuntimeState::default(), now);
        assert_eq!(schedule.due(), Some(now + 2 * APART));
        // A runtime that does not answer is not asked more often.
        schedule.seek("b".to_owned(), true);
        schedule.failed(now, 0.0);
        assert!(schedule.due() > Some(now + APART_URGENT));
    }

    #[test]
    fn a_listed_container_needs_no_further_list() {
        let mut schedule = Schedule::default();
        schedule.seek("c".to_owned(), false);
        let labels = [("io.kubernetes.pod.uid".to_owned(), "a".to_owned())];
        let container = Container {
            id: "c".to_owned(),
            labels: labels.into(),
            ..Container::default()
        };
        schedule.answered(&RuntimeState::new(&[], &[container]), Instant::now());
        assert_eq!(schedule.due(), None);
    }

    #[test]
    fn pauses_after_failures_grow_also_with_missing_containers() {
        let mut schedule = Schedule::default();
        let now = Instant::now();
        schedule.failed(now, 0.0);
        let first = schedule.due().unwrap();
        schedule.failed(now, 0.0);
        schedule.seek("c".to_owned(), false);
        assert!(schedule.due().unwrap() > first && first > now);
    }
}
