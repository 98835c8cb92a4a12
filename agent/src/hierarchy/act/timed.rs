//! Calls that end in time, whatever holds them inside the kernel: memory that is not reclaimed, a lock that is not given
//! back, a disk that does not answer.
//!
//! A thread of its own makes those of a pass, one after the other. One that has not come back within the backend's limit
//! is left to its thread, and the pass ends; another thread makes the calls of the next. Until it comes back its cgroup is
//! written no more.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Created, Error, Tree};
use podwarden_policy::settings::Setting;
use tokio::sync::Notify;

use super::{Backend, Operation};
use crate::hierarchy::starting::holds_back;

/// Calls that are left to their threads, at most; with so many no further one is made.
const MOST_LEFT: usize = 8;

/// What a thread is called that makes calls.
const THREAD: &str = "cgroup-writes";

/// What the operator can do about a call that does not come back.
pub(super) const REMEDY: &str = "it is tried again once the kernel comes back; see what the agent's thread cgroup-writes \
     waits for (/proc/PID/task/*/wchan)";

type Job = Box<dyn FnOnce() + Send>;

/// What is to be done with a cgroup.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub(super) path: CgroupPath,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    /// See [`Backend::create`].
    Create(Vec<Setting>),
    /// See [`Backend::write`].
    Write(Setting),
    /// See [`Backend::remove`].
    Remove(Created),
    /// See [`Backend::remove_unused`].
    RemoveUnused(Vec<PathBuf>),
}

/// What came of a call.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<Done, Error>,
    pub(super) took: Duration,
}

impl Answer {
    /// See [`Error::is_silence`].
    pub(super) fn is_silence(&self) -> bool {
        self.result.as_ref().is_err_and(Error::is_silence)
    }
}

#[derive(Debug)]
pub(super) enum Done {
    /// Nothing, if all was there.
    Created(Created),
    Written,
    /// A container's start would fail by it.
    HeldBack,
    Removed,
    /// It stays: there are processes in it.
    InUse,
}

impl What {
    pub(super) fn operation(&self) -> Operation {
        match self {
            Self::Create(_) => Operation::Create,
            Self::Write(_) => Operation::Update,
            Self::Remove(_) | Self::RemoveUnused(_) => Operation::Delete,
        }
    }

    /// As a verb, for messages.
    fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "make",
            Self::Write(_) => "write to",
            Self::Remove(_) | Self::RemoveUnused(_) => "remove",
        }
    }
}

impl Call {
    fn make(&self, backend: &dyn Backend, tree: &Tree) -> Result<Done, Error> {
        let path = &self.path;
        match &self.what {
            What::Create(first) => backend.create(tree, path, first).map(Done::Created),
            What::Write(setting) if holds_back(tree, path, setting) => Ok(Done::HeldBack),
            What::Write(setting) => backend.write(tree, path, setting).map(|()| Done::Written),
            What::Remove(_) if tree.is_in_use(path)? => Ok(Done::InUse),
            // A runtime gives up on a cgroup whose processes take their time to end. The kubelet removes what it left.
            What::Remove(made) => tree
                .remove_children(path)
                .and_then(|()| backend.remove(tree, path, made))
                .map(|()| Done::Removed),
            What::RemoveUnused(made) => {
                backend.remove_unused(tree, made.clone());
                Ok(Done::Removed)
            }
        }
    }

    fn still_waiting(&self) -> Error {
        Error::StillWaiting {
            operation: self.what.verb(),
            path: Path::new(self.path.as_str()).into(),
        }
    }
}

/// A backend of which each call ends.
#[derive(Debug)]
pub(super) struct Timed {
    backend: Arc<dyn Backend>,
    /// `None` before the first call, and after one that did not come back.
    thread: Option<Sender<Job>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    left: Mutex<Left>,
    /// One that was left came back.
    came_back: Notify,
}

/// Calls that were left to their threads.
#[derive(Debug, Default)]
struct Left {
    /// What they are to do.
    waiting: BTreeMap<CgroupPath, &'static str>,
    /// What those made that came back since.
    made: BTreeMap<CgroupPath, Created>,
}

impl Shared {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes calls until one was left, or says that the next would wait as long.
    fn make(&self, backend: &dyn Backend, tree: &Tree, calls: &[Call], answers: &Sender<Answer>) {
        for call in calls {
            // Left before it began.
            if self.left().waiting.remove(&call.path).is_some() {
                self.came_back.notify_one();
                return;
            }
            let start = Instant::now();
            let answer = Answer {
                result: call.make(backend, tree),
                took: start.elapsed(),
            };
            let silence = answer.is_silence();
            let mut left = self.left();
            if left.waiting.remove(&call.path).is_some() {
                if let Ok(Done::Created(created)) = answer.result {
                    left.made.insert(call.path.clone(), created);
                }
                drop(left);
                let cgroup = &call.path;
                tracing::info!(%cgroup, "the kernel came back from the call to {} it", call.what.verb());
                self.came_back.notify_one();
                return;
            }
            // Under the lock: what was not sent by now may be left.
            let sent = answers.send(answer);
            if silence || sent.is_err() {
                return;
            }
        }
    }
}

impl Timed {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            thread: None,
            shared: Arc::default(),
        }
    }

    /// For what creates, writes and removes nothing.
    pub(super) fn reading(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Completes when a call has come back that was left.
    pub(super) async fn came_back(&self) {
        self.shared.came_back.notified().await;
    }

    /// The calls that have not come back, one sentence each.
    pub(super) fn unanswered(&self) -> Vec<String> {
        let left = self.shared.left();
        let said = left.waiting.iter().map(|(path, verb)| {
            format!(
                "{path} is not brought up to date: the kernel has not come back from a call to {verb} it; {REMEDY}"
            )
        });
        said.collect()
    }

    /// Makes `calls` in order. There is an answer to each, but that one which is not answered in time ends them.
    pub(super) fn make(&mut self, tree: &Tree, calls: &[Call]) -> Vec<Answer> {
        let is_waiting: Vec<_> = {
            let left = self.shared.left();
            let no_more = left.waiting.len() >= MOST_LEFT;
            let waits = |call: &Call| no_more || left.waiting.contains_key(&call.path);
            calls.iter().map(waits).collect()
        };
        let free = calls.iter().zip(&is_waiting).filter(|(_, waits)| !**waits);
        let made: Vec<_> = free.map(|(call, _)| call.clone()).collect();
        let answered = (!made.is_empty()).then(|| self.hand_over(tree, made));
        let mut answers = Vec::with_capacity(calls.len());
        for (call, waits) in calls.iter().zip(is_waiting) {
            let answer = match &answered {
                Some(answered) if !waits => self.answer(call, answered),
                _ => Answer {
                    result: Err(call.still_waiting()),
                    took: Duration::ZERO,
                },
            };
            let silence = answer.is_silence();
            answers.push(answer);
            if silence {
                break;
            }
        }
        answers
    }

    /// Waits for what comes of a call within the limit.
    fn answer(&mut self, call: &Call, answered: &Receiver<Answer>) -> Answer {
        let limit = self.backend.limit();
        let answer = match answered.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => {
                let mut left = self.shared.left();
                let late = answered.try_recv().ok();
                if late.is_none() {
                    left.waiting.insert(call.path.clone(), call.what.verb());
                }
                late
            }
            // Its thread has panicked.
            Err(RecvTimeoutError::Disconnected) => None,
            Ok(answer) => Some(answer),
        };
        if answer.is_none() {
            self.thread = None;
        }
        let mut answer = answer.unwrap_or_else(|| Answer {
            result: Err(Error::Unanswered {
                operation: call.what.verb(),
                path: Path::new(call.path.as_str()).into(),
                limit,
            }),
            took: limit,
        });
        if let Ok(Done::Created(created)) = &mut answer.result
            && let Some(late) = self.shared.left().made.remove(&call.path)
        {
            created.extend(late);
        }
        answer
    }

    /// Hands calls to the thread; without a thread they are made here.
    fn hand_over(&mut self, tree: &Tree, calls: Vec<Call>) -> Receiver<Answer> {
        let (answers, answered) = mpsc::channel();
        let (backend, shared) = (Arc::clone(&self.backend), Arc::clone(&self.shared));
        let tree = tree.clone();
        let job: Job = Box::new(move || shared.make(&*backend, &tree, &calls, &answers));
        if self.thread.is_none() {
            let (jobs, taken) = mpsc::channel::<Job>();
            let thread = thread::Builder::new().name(THREAD.to_owned());
            match thread.spawn(move || taken.into_iter().for_each(|job| job())) {
                Ok(_) => self.thread = Some(jobs),
                Err(error) => tracing::warn!(%error, "no thread: a call may hold the reconciler"),
            }
        }
        match &self.thread {
            Some(jobs) => {
                if let Err(mpsc::SendError(job)) = jobs.send(job) {
                    job();
                }
            }
            None => job(),
        }
        answered
    }
}

#[cfg(test)]
mod tests;
