//! One task for each pod with something to do.
//!
//! Never two at once for a pod; the newest waiting update counts; a failed job
//! is tried again, each time later; and the deletion of a pod replaces its work. As
//! the kubelet's `podWorkers` (`pkg/kubelet/pod_workers.go`), without what belongs to starting pods.
//!
//! | module | purpose |
//! |---|---|
//! | `work_queue` | which pods are due and when; values only |
//! | this one | the tasks |

mod work_queue;

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::{Id, JoinSet},
};

pub use self::work_queue::Work;
pub(crate) use self::work_queue::WorkQueue;
use crate::base::{clock, worker::Task};

/// Why a job is to be done again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobError {
    /// One sentence.
    pub problem: String,
    /// Not before this time, by the server's Retry-After; `None` leaves that to the workers.
    pub wait: Option<Duration>,
}

impl JobError {
    /// To be tried again as the workers see fit.
    pub fn new(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            wait: None,
        }
    }
}

/// What is done for a pod. It is done again after a failure, so it must bear being repeated.
pub trait Job: Send + Sync + 'static {
    /// The newest state of the pod.
    type Update: Clone + Send + 'static;

    /// Does it for the pod `uid`.
    fn run(
        &self,
        uid: &str,
        work: Work<Self::Update>,
    ) -> impl Future<Output = Result<(), JobError>> + Send;

    /// It has failed in another way than the last time.
    fn failed(&self, uid: &str, problem: &str);
}

enum Message<U> {
    Offer(String, Work<U>),
    Hurry,
}

/// Takes work; never waits. Cheap to clone.
#[derive(Debug)]
pub struct Offers<U>(mpsc::UnboundedSender<Message<U>>);

impl<U> Clone for Offers<U> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<U> Offers<U> {
    /// There is something to do for a pod.
    pub fn offer(&self, uid: &str, work: Work<U>) {
        // An error says that the workers have ended, and the agent with them.
        let _ = self.0.send(Message::Offer(uid.to_owned(), work));
    }

    /// What made the last tries fail may be over: those that wait are tried within a second, except where
    /// the other side has named the time.
    pub fn hurry(&self) {
        let _ = self.0.send(Message::Hurry);
    }
}

/// The tasks; all of them end where they are when this goes away.
#[derive(Debug)]
pub struct PodWorkers {
    _running: Task,
}

impl PodWorkers {
    /// Starts, with nothing to do; at most `most` jobs run at a time.
    pub fn start<J: Job>(job: Arc<J>, most: usize) -> (Self, Offers<J::Update>) {
        let (sender, messages) = mpsc::unbounded_channel();
        let running = Running {
            job,
            queue: WorkQueue::new(most),
            tasks: JoinSet::new(),
            uids: HashMap::new(),
        };
        let _running = Task::spawn(running.run(messages));
        (Self { _running }, Offers(sender))
    }
}

struct Running<J: Job> {
    job: Arc<J>,
    queue: WorkQueue<J::Update>,
    tasks: JoinSet<Result<(), JobError>>,
    uids: HashMap<Id, String>,
}

impl<J: Job> Running<J> {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message<J::Update>>) {
        loop {
            while let Some((uid, work)) = self.queue.start(clock::of_timers()) {
                let (job, of) = (Arc::clone(&self.job), uid.clone());
                let task = self.tasks.spawn(async move { job.run(&of, work).await });
                self.uids.insert(task.id(), uid);
            }
            let due = self.queue.due();
            tokio::select! {
                message = messages.recv() => match message {
                    Some(Message::Offer(uid, work)) => self.queue.offer(&uid, work, clock::of_timers()),
                    Some(Message::Hurry) => self.queue.hurry(clock::of_timers(), fastrand::f64),
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = clock::until(due) => {}
            }
        }
    }

    fn ended(&mut self, ended: Result<(Id, Result<(), JobError>), tokio::task::JoinError>) {
        let (id, result) = match ended {
            Ok(ended) => ended,
            // Its panic has been printed; single tasks are never aborted.
            Err(error) => (
                error.id(),
                Err(JobError::new("the task ended by itself (a panic)")),
            ),
        };
        let Some(uid) = self.uids.remove(&id) else {
            return;
        };
        let news = self
            .queue
            .finished(&uid, result, clock::of_timers(), fastrand::f64());
        if let Some(problem) = news {
            self.job.failed(&uid, &problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Counts who is worked for; fails or panics at first.
    #[derive(Default)]
    struct Counting {
        running: Mutex<Vec<String>>,
        done: Mutex<Vec<(String, Work<u32>)>>,
        said: Mutex<Vec<String>>,
        tries: Mutex<HashMap<String, u32>>,
    }

    impl Job for Counting {
        type Update = u32;

        async fn run(&self, uid: &str, work: Work<u32>) -> Result<(), JobError> {
            {
                let mut running = self.running.lock().unwrap();
                assert!(!running.iter().any(|other| other == uid), "two at once");
                running.push(uid.to_owned());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.running.lock().unwrap().retain(|other| other != uid);
            let first = {
                let mut tries = self.tries.lock().unwrap();
                let tries = tries.entry(uid.to_owned()).or_default();
                *tries += 1;
                *tries == 1
            };
            match uid {
                "panics" if first => panic!("as it is meant to"),
                "fails" if first => Err(JobError::new("not yet")),
                _ => {
                    self.done.lock().unwrap().push((uid.to_owned(), work));
                    Ok(())
                }
            }
        }

        fn failed(&self, uid: &str, problem: &str) {
            self.said.lock().unwrap().push(format!("{uid}: {problem}"));
        }
    }

    #[tokio::test]
    async fn what_fails_or_panics_is_done_again_and_no_other_pod_waits_for_it() {
        let job = Arc::new(Counting::default());
        let (_workers, offers) = PodWorkers::start(Arc::clone(&job), 4);
        for number in 0..3 {
            for uid in ["panics", "fails", "a", "b", "c", "d"] {
                offers.offer(uid, Work::Update(number));
            }
        }
        offers.offer("d", Work::Delete(3));
        // The last update counts, or the one before it.
        let all = ["panics", "fails", "a", "b", "c"].map(|uid| (uid, Work::Update(2)));
        let all = all.into_iter().chain([("d", Work::Delete(3))]);
        for (uid, work) in all {
            while !job
                .done
                .lock()
                .unwrap()
                .contains(&(uid.to_owned(), work.clone()))
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
                offers.hurry();
            }
        }
        let said = job.said.lock().unwrap();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().any(|said| said == "fails: not yet"), "{said:?}");
    }
}
