//! Holds evicted pods dead until their kubelet has ended them.
//!
//! A kubelet starts a container again that has died, until it has seen the eviction status: without an API
//! server for as long as that is away. What appears in the cgroup of a held pod is killed, its sandbox excepted.
//! The kernel's record of a new cgroup calls for a look, and a slow look finds what no record told of.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use podwarden_cgroup::KillHandle;

use crate::reactor::plan::VictimFiles;

/// Between two looks at a pod in which a container was made, or killed, of late.
const SOON: Duration = Duration::from_millis(5);
/// A runtime takes this long at most between a container's cgroup and its process.
const LATELY: Duration = Duration::from_secs(5);
/// Between two looks otherwise.
const SLOW: Duration = Duration::from_millis(100);
/// A pod is held for so long after its status was written: a kubelet looks at every pod within a minute
/// (`syncFrequency`).
const AFTER: Duration = Duration::from_secs(90);

enum Message {
    Hold(String, Arc<VictimFiles>, Option<Instant>),
    Stir(String),
    Written(String),
    Contested(String),
    Release(String),
    End,
}

/// Says what is to be held. Never waits; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Holder(Sender<Message>);

impl Holder {
    /// A pod was evicted: what appears in its cgroup dies from now on. With a time `until` its status counts for
    /// nothing: it is held until then.
    pub(crate) fn hold(&self, uid: &str, files: Arc<VictimFiles>, until: Option<Instant>) {
        self.send(Message::Hold(uid.to_owned(), files, until));
    }

    /// A container was made in a pod, which may be a held one.
    pub(crate) fn stir(&self, uid: &str) {
        self.send(Message::Stir(uid.to_owned()));
    }

    /// The pod's status was written.
    pub(crate) fn written(&self, uid: &str) {
        self.send(Message::Written(uid.to_owned()));
    }

    /// Its status was overwritten.
    pub(crate) fn contested(&self, uid: &str) {
        self.send(Message::Contested(uid.to_owned()));
    }

    /// Its status will not be written: the pod may run.
    pub(crate) fn release(&self, uid: &str) {
        self.send(Message::Release(uid.to_owned()));
    }

    /// An error says that the thread has ended, and the agent with it.
    fn send(&self, message: Message) {
        let _ = self.0.send(message);
    }
}

/// The thread; held pods are let go when this goes away.
#[derive(Debug)]
pub(crate) struct Holding {
    holder: Holder,
    thread: Option<JoinHandle<()>>,
}

impl Holding {
    /// Starts it, with nothing to hold.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(crate) fn start() -> io::Result<Self> {
        let (sender, messages) = channel();
        let thread = std::thread::Builder::new()
            .name("hold".to_owned())
            .spawn(move || run(&messages))?;
        Ok(Self {
            holder: Holder(sender),
            thread: Some(thread),
        })
    }

    /// How it is told.
    pub(crate) fn holder(&self) -> Holder {
        self.holder.clone()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.holder.send(Message::End);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

/// A pod whose processes die.
struct Held<K> {
    kill: K,
    /// When to look next.
    look: Instant,
    /// Until then each look is followed by another soon.
    lately: Instant,
    /// `None` until its status is written.
    until: Option<Instant>,
    /// Its status moves that.
    follows_status: bool,
    /// Who was killed before: the dying are found again and again.
    killed: BTreeSet<u32>,
}

/// What a look at a pod did: the processes that it killed, or that the cgroup is gone.
enum Looked {
    Killed(BTreeSet<u32>),
    Gone,
}

fn look(handle: &KillHandle) -> Looked {
    let mut killed = BTreeSet::new();
    let mut found = |pid| {
        killed.insert(pid);
    };
    match handle.kill_workload(&mut found) {
        Err(error) if error.is_gone() => Looked::Gone,
        // What is refused now is tried again at the next look.
        Ok(_) | Err(_) => Looked::Killed(killed),
    }
}

/// The held pods. Values only: no clock.
struct Pods<K>(BTreeMap<String, Held<K>>);

impl<K> Pods<K> {
    fn hold(&mut self, uid: String, kill: K, until: Option<Instant>, now: Instant) {
        let held = Held {
            kill,
            look: now,
            lately: now + LATELY,
            until,
            follows_status: until.is_none(),
            killed: BTreeSet::new(),
        };
        self.0.insert(uid, held);
    }

    fn stir(&mut self, uid: &str, now: Instant) {
        if let Some(held) = self.0.get_mut(uid) {
            (held.look, held.lately) = (now, now + LATELY);
        }
    }

    fn until(&mut self, uid: &str, until: Option<Instant>) {
        if let Some(held) = self.0.get_mut(uid).filter(|held| held.follows_status) {
            held.until = until;
        }
    }

    fn release(&mut self, uid: &str) {
        self.0
            .retain(|held, pod| held != uid || !pod.follows_status);
    }

    /// When the next look is due.
    fn due(&self) -> Option<Instant> {
        self.0.values().map(|held| held.look).min()
    }

    /// Looks at those that are due; gives back those in which something new was killed, each with how many.
    fn look(&mut self, now: Instant, mut look: impl FnMut(&K) -> Looked) -> Vec<(String, usize)> {
        let mut again = Vec::new();
        self.0.retain(|uid, held| {
            if held.until.is_some_and(|until| until <= now) {
                return false;
            }
            if held.look > now {
                return true;
            }
            let Looked::Killed(killed) = look(&held.kill) else {
                return false;
            };
            let fresh = killed.difference(&held.killed).count();
            if fresh > 0 {
                held.lately = now + LATELY;
                again.push((uid.clone(), fresh));
            }
            held.killed = killed;
            held.look = now + if now < held.lately { SOON } else { SLOW };
            true
        });
        again
    }
}

fn run(messages: &Receiver<Message>) {
    let mut pods = Pods(BTreeMap::new());
    loop {
        let message = match pods.due() {
            None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let now = Instant::now();
        match message {
            Ok(Message::Hold(uid, files, until)) => pods.hold(uid, files, until, now),
            Ok(Message::Stir(uid)) => pods.stir(&uid, now),
            Ok(Message::Written(uid)) => pods.until(&uid, Some(now + AFTER)),
            Ok(Message::Contested(uid)) => pods.until(&uid, None),
            Ok(Message::Release(uid)) => pods.release(&uid),
            Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        for (uid, processes) in pods.look(now, |files: &Arc<VictimFiles>| look(&files.kill)) {
            tracing::info!(
                uid,
                processes,
                "killed what was left or started in an evicted pod"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(pids: &[u32]) -> Looked {
        Looked::Killed(pids.iter().copied().collect())
    }

    fn holding(now: Instant) -> Pods<()> {
        let mut pods = Pods(BTreeMap::new());
        pods.hold("a".to_owned(), (), None, now);
        pods
    }

    #[test]
    fn the_dying_are_found_again_and_what_is_new_is_told_once() {
        let start = Instant::now();
        let mut pods = holding(start);
        assert_eq!(pods.look(start, |()| killed(&[7])), [("a".to_owned(), 1)]);
        assert_eq!(pods.look(start, |()| unreachable!("it is not due")), []);
        assert_eq!(pods.look(start + SOON, |()| killed(&[7])), []);
        let later = start + 2 * SOON;
        assert_eq!(
            pods.look(later, |()| killed(&[7, 8, 9])),
            [("a".to_owned(), 2)]
        );
        assert_eq!(pods.due(), Some(later + SOON));
    }

    #[test]
    fn looks_become_slow_and_a_new_container_calls_for_one_at_once() {
        let start = Instant::now();
        let mut pods = holding(start);
        let late = start + LATELY;
        assert_eq!(pods.look(late, |()| killed(&[])), []);
        assert_eq!(pods.due(), Some(late + SLOW));
        pods.stir("a", late);
        pods.stir("another", late);
        assert_eq!(pods.due(), Some(late));
        assert_eq!(pods.look(late, |()| killed(&[])), []);
        assert_eq!(pods.due(), Some(late + SOON));
    }

    #[test]
    fn a_pod_is_held_for_a_while_after_its_status_and_again_when_that_is_contested() {
        let start = Instant::now();
        let mut pods = holding(start);
        pods.until("a", Some(start + AFTER));
        pods.until("a", None);
        let late = start + 2 * AFTER;
        assert_eq!(pods.look(late, |()| killed(&[3])), [("a".to_owned(), 1)]);
        pods.until("a", Some(late + AFTER));
        assert_eq!(pods.look(late + AFTER, |()| unreachable!("it is over")), []);
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_pod_with_a_time_is_held_until_then_whatever_becomes_of_its_status() {
        let start = Instant::now();
        let mut pods = holding(start);
        let until = start + 2 * AFTER;
        pods.hold("static".to_owned(), (), Some(until), start);
        for uid in ["a", "static"] {
            pods.until(uid, Some(start));
            pods.until(uid, None);
            pods.release(uid);
        }
        assert_eq!(pods.0.keys().collect::<Vec<_>>(), ["static"]);
        let late = until - SLOW;
        assert_eq!(
            pods.look(late, |()| killed(&[3])),
            [("static".to_owned(), 1)]
        );
        assert_eq!(pods.look(until, |()| unreachable!("it is over")), []);
        assert_eq!(pods.due(), None);
    }

    #[test]
    fn a_pod_whose_cgroup_is_gone_is_let_go() {
        let start = Instant::now();
        let mut pods = holding(start);
        assert_eq!(pods.look(start, |()| Looked::Gone), []);
        assert_eq!(pods.due(), None);
    }
}
