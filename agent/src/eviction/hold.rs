//! Holds evicted pods dead until their kubelet has ended them.
//!
//! A kubelet starts a container again that has died, until it has seen the eviction status: without an API
//! server for as long as that is away. What appears in the cgroup of a held pod is killed, its sandbox excepted.
//! A cgroup that is made in it calls for a look (inotify(7)), and a slow look finds what no notice told of.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::{EfdFlags, EventFd},
};
use podwarden_cgroup::{KillHandle, Notice, WatchId, WriteWatch};

use crate::{kernel::realtime, reactor::plan::VictimFiles};

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
    Written(String),
    Contested(String),
    Release(String),
    End,
}

/// Says what is to be held. Never waits; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Holder {
    messages: Sender<Message>,
    /// Rung after a message.
    bell: Arc<EventFd>,
}

impl Holder {
    /// A pod was evicted: what appears in its cgroup dies from now on. With a time `until` its status counts for
    /// nothing: it is held until then.
    pub(crate) fn hold(&self, uid: &str, files: Arc<VictimFiles>, until: Option<Instant>) {
        self.send(Message::Hold(uid.to_owned(), files, until));
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
        let _ = self.messages.send(message);
        // Refused, it rings already.
        let _ = self.bell.write(1);
    }
}

/// The thread; held pods are let go when this goes away.
#[derive(Debug)]
pub(crate) struct Holding {
    holder: Holder,
    thread: Option<JoinHandle<()>>,
}

impl Holding {
    /// Starts it, with nothing to hold. `real_time`: it may be SCHED_FIFO.
    ///
    /// # Errors
    /// When there is no thread or eventfd to be had.
    pub(crate) fn start(real_time: bool) -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = Arc::new(EventFd::from_flags(flags)?);
        let (sender, messages) = channel();
        let holds = Thread {
            messages,
            bell: Arc::clone(&bell),
            pods: Pods(BTreeMap::new()),
            watch: Watch::new(),
        };
        let thread = std::thread::Builder::new()
            .name("hold".to_owned())
            .spawn(move || holds.run(real_time))?;
        Ok(Self {
            holder: Holder {
                messages: sender,
                bell,
            },
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

/// Sees cgroups that are made in those of held pods. Where the kernel refuses it, slow looks find them.
struct Watch {
    inotify: Option<WriteWatch>,
    /// The pods by what is watched of them.
    uids: HashMap<WatchId, String>,
}

impl Watch {
    fn new() -> Self {
        let inotify = WriteWatch::new();
        if let Err(error) = &inotify {
            tracing::info!(%error, "containers that start in evicted pods are found by slow looks");
        }
        Self {
            inotify: inotify.ok(),
            uids: HashMap::new(),
        }
    }

    fn add(&mut self, uid: &str, dir: &Path) {
        let watch = self.inotify.as_ref();
        // One that is gone, or was refused, is looked at all the same.
        let id = watch.and_then(|watch| watch.directory_and_children(dir).ok());
        if let Some(id) = id {
            self.uids.insert(id, uid.to_owned());
        }
    }

    /// Watches no others any more.
    fn keep(&mut self, is_held: impl Fn(&str) -> bool) {
        let Some(watch) = &self.inotify else { return };
        self.uids.retain(|id, uid| {
            let is_held = is_held(uid);
            if !is_held {
                watch.remove(*id);
            }
            is_held
        });
    }

    /// The pods in which a cgroup was made.
    fn stirred(&self) -> BTreeSet<&str> {
        let mut stirred = BTreeSet::new();
        let found = |id, notice, _: &str| {
            // A kill is a write.
            if notice == Notice::Made {
                stirred.extend(self.uids.get(&id).map(String::as_str));
            }
        };
        // What the kernel dropped, or does not tell, the slow look finds.
        let _ = self.inotify.as_ref().map(|watch| watch.read_all(found));
        stirred
    }
}

struct Thread {
    messages: Receiver<Message>,
    bell: Arc<EventFd>,
    pods: Pods<Arc<VictimFiles>>,
    watch: Watch,
}

impl Thread {
    /// Runs until it is told to end, or no one is left to tell it anything.
    fn run(mut self, real_time: bool) {
        if real_time && !realtime::make_fifo() {
            tracing::info!(
                "SCHED_FIFO was refused: on a busy node a container that starts in an evicted pod lives longer"
            );
        }
        loop {
            self.sleep();
            // Nothing to read is as good.
            let _ = self.bell.read();
            let now = Instant::now();
            if !self.take_messages(now) {
                return;
            }
            for uid in self.watch.stirred() {
                self.pods.stir(uid, now);
            }
            for (uid, processes) in self.pods.look(now, |files| look(&files.kill)) {
                tracing::info!(
                    uid,
                    processes,
                    "killed what was left or started in an evicted pod"
                );
            }
            self.watch.keep(|uid| self.pods.0.contains_key(uid));
        }
    }

    fn sleep(&self) {
        let due = self.pods.due();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Up to the next millisecond: it is due then.
            let left = due.saturating_duration_since(Instant::now());
            let left = left + Duration::from_micros(999);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)
        });
        let watch = self.watch.inotify.as_ref().map(|watch| watch.as_fd());
        let fds = [self.bell.as_fd()].into_iter().chain(watch);
        let mut ready: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // A signal is as good as a look.
        let _ = poll(&mut ready, timeout);
    }

    /// False once there is nothing more to do.
    fn take_messages(&mut self, now: Instant) -> bool {
        loop {
            match self.messages.try_recv() {
                Ok(Message::Hold(uid, files, until)) => {
                    // Watched before the look, so that nothing starts in between.
                    self.watch.add(&uid, files.kill.path());
                    self.pods.hold(uid, files, until, now);
                }
                Ok(Message::Written(uid)) => self.pods.until(&uid, Some(now + AFTER)),
                Ok(Message::Contested(uid)) => self.pods.until(&uid, None),
                Ok(Message::Release(uid)) => self.pods.release(&uid),
                Err(TryRecvError::Empty) => return true,
                Ok(Message::End) | Err(TryRecvError::Disconnected) => return false,
            }
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

    #[test]
    fn a_directory_that_is_made_in_a_held_pod_calls_for_a_look_and_a_write_does_not() {
        let (held, let_go) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut watch = Watch::new();
        watch.add("a", held.path());
        watch.add("b", let_go.path());
        std::fs::write(held.path().join("cgroup.kill"), "1").unwrap();
        assert_eq!(watch.stirred(), BTreeSet::new());
        for dir in [&held, &let_go] {
            std::fs::create_dir(dir.path().join("container")).unwrap();
        }
        assert_eq!(watch.stirred(), BTreeSet::from(["a", "b"]));
        watch.keep(|uid| uid == "a");
        for dir in [&held, &let_go] {
            std::fs::create_dir(dir.path().join("another")).unwrap();
        }
        assert_eq!(watch.stirred(), BTreeSet::from(["a"]));
    }
}
