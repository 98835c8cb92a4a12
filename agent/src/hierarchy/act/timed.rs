//! Calls that end in time, whatever holds them inside the kernel: memory that is not reclaimed, a lock that is not given
//! back, a disk that does not answer.
//!
//! A thread of its own makes them, one after the other. A call that has not come back within the backend's limit is left
//! to its thread, and another thread makes the next ones. Until it comes back its cgroup is written no more.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{self, Sender},
    },
    thread,
};

use podwarden_cgroup::{CgroupPath, Created, Error, Tree};
use podwarden_policy::settings::Setting;
use tokio::sync::Notify;

use super::Backend;

/// Calls that are left to their threads, at most; with so many no further one is made.
const MOST_LEFT: usize = 8;

/// What a thread is called that makes calls.
const THREAD: &str = "cgroup-writes";

type Call = Box<dyn FnOnce() + Send>;

/// A backend of which each call ends.
#[derive(Debug)]
pub(super) struct Timed {
    backend: Arc<dyn Backend>,
    /// `None` before the first call, and after one that did not come back.
    thread: Option<Sender<Call>>,
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
}

impl Timed {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            thread: None,
            shared: Arc::default(),
        }
    }

    /// Completes when a call has come back that was left.
    pub(super) async fn came_back(&self) {
        self.shared.came_back.notified().await;
    }

    /// The calls that have not come back, one sentence each.
    pub(super) fn unanswered(&self) -> Vec<String> {
        let left = self.shared.left();
        let said = left.waiting.iter().map(|(path, operation)| {
            format!(
                "{path} is not brought up to date: the kernel has not come back from a call to {operation} it; see what \
                 the agent's thread {THREAD} waits for (/proc/PID/task/*/wchan)"
            )
        });
        said.collect()
    }

    /// See [`Backend::create`].
    pub(super) fn create(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        first: &[Setting],
    ) -> Result<Created, Error> {
        let (on, wanted, first) = (tree.clone(), path.clone(), first.to_vec());
        let call = move |backend: &dyn Backend| backend.create(&on, &wanted, &first);
        let made_late = {
            let path = path.clone();
            move |created, left: &mut Left| {
                if let Ok(created) = created {
                    left.made.insert(path, created);
                }
            }
        };
        let mut created = self.ask("make", path, call, made_late)??;
        if let Some(late) = self.shared.left().made.remove(path) {
            created.extend(late);
        }
        Ok(created)
    }

    /// See [`Backend::write`].
    pub(super) fn write(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        setting: &Setting,
    ) -> Result<(), Error> {
        let (on, wanted, setting) = (tree.clone(), path.clone(), *setting);
        let call = move |backend: &dyn Backend| backend.write(&on, &wanted, &setting);
        self.ask("write to", path, call, |_, _| ())?
    }

    /// See [`Backend::remove`].
    pub(super) fn remove(
        &mut self,
        tree: &Tree,
        path: &CgroupPath,
        made: &Created,
    ) -> Result<(), Error> {
        let (on, wanted, made) = (tree.clone(), path.clone(), made.clone());
        let call = move |backend: &dyn Backend| backend.remove(&on, &wanted, &made);
        self.ask("remove", path, call, |_, _| ())?
    }

    /// See [`Backend::made_before`].
    pub(super) fn made_before(&mut self, tree: &Tree, path: &CgroupPath) -> Result<Created, Error> {
        let (on, wanted) = (tree.clone(), path.clone());
        let call = move |backend: &dyn Backend| backend.made_before(&on, &wanted);
        self.ask("look at", path, call, |_, _| ())?
    }

    /// See [`Backend::remove_unused`].
    ///
    /// # Errors
    /// It does not come back.
    pub(super) fn remove_unused(&mut self, tree: &Tree, made: Vec<PathBuf>) -> Result<(), Error> {
        let on = tree.clone();
        let call = move |backend: &dyn Backend| backend.remove_unused(&on, made);
        self.ask("remove", &CgroupPath::ROOT, call, |(), _| ())
    }

    /// Has `call` made, and waits for what comes of it within the limit; `late` takes what comes later.
    fn ask<T: Send + 'static>(
        &mut self,
        operation: &'static str,
        path: &CgroupPath,
        call: impl FnOnce(&dyn Backend) -> T + Send + 'static,
        late: impl FnOnce(T, &mut Left) + Send + 'static,
    ) -> Result<T, Error> {
        let waiting = || Error::StillWaiting {
            operation,
            path: Path::new(path.as_str()).into(),
        };
        {
            let left = self.shared.left();
            if left.waiting.contains_key(path) || left.waiting.len() >= MOST_LEFT {
                return Err(waiting());
            }
        }
        let (answer, answered) = mpsc::sync_channel(1);
        let (backend, shared) = (Arc::clone(&self.backend), Arc::clone(&self.shared));
        let wanted = path.clone();
        self.have_made(Box::new(move || {
            let outcome = call(&*backend);
            let mut left = shared.left();
            if left.waiting.remove(&wanted).is_none() {
                let _ = answer.send(outcome);
                return;
            }
            late(outcome, &mut left);
            drop(left);
            tracing::info!(cgroup = %wanted, "the kernel came back from the call to {operation} it");
            shared.came_back.notify_one();
        }));
        let limit = self.backend.limit();
        if let Ok(outcome) = answered.recv_timeout(limit) {
            return Ok(outcome);
        }
        let mut left = self.shared.left();
        // It came back after all, before this one took the lock.
        if let Ok(outcome) = answered.try_recv() {
            return Ok(outcome);
        }
        left.waiting.insert(path.clone(), operation);
        drop(left);
        self.thread = None;
        Err(Error::Unanswered {
            operation,
            path: Path::new(path.as_str()).into(),
            limit,
        })
    }

    /// Hands a call to the thread; without a thread it is made here.
    fn have_made(&mut self, call: Call) {
        if self.thread.is_none() {
            let (calls, taken) = mpsc::channel::<Call>();
            let thread = thread::Builder::new().name(THREAD.to_owned());
            match thread.spawn(move || taken.into_iter().for_each(|call| call())) {
                Ok(_) => self.thread = Some(calls),
                Err(error) => tracing::warn!(%error, "no thread: a call may hold the reconciler"),
            }
        }
        match &self.thread {
            Some(calls) => {
                if let Err(mpsc::SendError(call)) = calls.send(call) {
                    call();
                }
            }
            None => call(),
        }
    }
}

#[cfg(test)]
mod tests;
