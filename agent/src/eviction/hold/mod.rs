//! Holds evicted pods dead until their kubelet has ended them.
//!
//! A kubelet starts a container again that has died, until it has seen the eviction status: without an API
//! server for as long as that is away. What appears in the cgroup of a held pod is killed, its sandbox excepted.
//! A cgroup that is made in it calls for a look (inotify(7)), and a slow look finds what no notice told of.

mod pods;
mod watch;

use std::{
    collections::BTreeSet,
    io,
    os::fd::AsFd as _,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use podwarden_cgroup::KillHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use self::{
    pods::{Looked, Pods},
    watch::Watch,
};
use crate::{
    base::{
        bell::{bell, ring, silence, wait},
        worker::Joined,
    },
    kernel::realtime,
    reactor::plan::VictimFiles,
};

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
        ring(&self.bell);
    }
}

/// The thread; held pods are let go when this goes away.
#[derive(Debug)]
pub(crate) struct Holding {
    holder: Holder,
    let_go: UnboundedReceiver<String>,
    _thread: Joined,
}

impl Holding {
    /// Starts it, with nothing to hold. `real_time`: it may be SCHED_FIFO.
    pub(crate) fn start(real_time: bool) -> io::Result<Self> {
        let bell = Arc::new(bell()?);
        let (sender, messages) = channel();
        let (goes, let_go) = unbounded_channel();
        let holds = Thread {
            messages,
            let_go: goes,
            bell: Arc::clone(&bell),
            pods: Pods::default(),
            watch: Watch::new(),
        };
        Ok(Self {
            holder: Holder {
                messages: sender,
                bell,
            },
            let_go,
            _thread: Joined::spawn("hold", move || holds.run(real_time))?,
        })
    }

    /// The pods that may run again since the last call.
    pub(crate) fn let_go(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.let_go.try_recv().ok()).collect()
    }

    /// The same, waiting for one for up to 20 s.
    #[cfg(test)]
    pub(crate) fn let_go_at_last(&mut self) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let gone = self.let_go();
            if !gone.is_empty() || Instant::now() >= until {
                return gone;
            }
            std::thread::yield_now();
        }
    }

    /// How it is told.
    pub(crate) fn holder(&self) -> Holder {
        self.holder.clone()
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.holder.send(Message::End);
    }
}

struct Thread {
    messages: Receiver<Message>,
    /// Takes the pods that may run again.
    let_go: UnboundedSender<String>,
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
            silence(&self.bell);
            let now = Instant::now();
            if !self.take_messages(now) {
                return;
            }
            for uid in self.pods.expire(now) {
                self.goes(uid);
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
            self.watch.keep(|uid| self.pods.is_held(uid));
        }
    }

    /// An error says that the agent ends.
    fn goes(&self, uid: String) {
        let _ = self.let_go.send(uid);
    }

    fn sleep(&self) {
        let left = self.pods.due().map(|due| {
            // Up to the next millisecond: it is due then.
            due.saturating_duration_since(Instant::now()) + Duration::from_micros(999)
        });
        wait(
            self.watch.as_fd().into_iter().chain([self.bell.as_fd()]),
            left,
        );
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
                Ok(Message::Release(uid)) => {
                    if self.pods.release(&uid) {
                        self.goes(uid);
                    }
                }
                Err(TryRecvError::Empty) => return true,
                Ok(Message::End) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_is_let_go_may_run_also_where_it_was_not_held_yet() {
        let mut holding = Holding::start(false).unwrap();
        holding.holder().written("b");
        holding.holder().release("a");
        assert_eq!(holding.let_go_at_last(), ["a"]);
        assert_eq!(holding.let_go(), Vec::<String>::new(), "told once");
    }
}
