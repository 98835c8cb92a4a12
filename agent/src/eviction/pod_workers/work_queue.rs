//! The work queue: which pods are due, and when. Values only: no IO, no clock.
//!
//! Properties, each with a test:
//!
//! - Never two at once: a pod whose job runs is not given out.
//! - The last update counts: without further failures, the last finished job of a pod has the newest update
//!   that was offered, or its deletion.
//! - Deletion wins: from the moment it is offered until it is done, no update of the pod is given out. One
//!   that came after it is given out then: a static pod that is put back has the uid that it had.
//! - No work is lost: a failed job is given out again, unless a newer update replaces it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::JobError;
use crate::base::backoff::Backoff;

/// How far those that were waiting together are spread.
const SPREAD: Duration = Duration::from_secs(1);

/// The longest that the other side is believed, when it names a time.
const LONGEST: Duration = Duration::from_secs(600);

/// What is to be done for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work<U> {
    /// It is as it says here now.
    Update(U),
    /// It is gone, and was this: what is left to do for it, and then nothing more.
    Delete(U),
}

#[derive(Debug)]
struct Pod<U> {
    waiting: Option<Work<U>>,
    /// After what waits, which is a deletion then.
    later: Option<U>,
    running: Option<Work<U>>,
    failures: Backoff,
    problem: Option<String>,
    /// Not before this.
    due: Instant,
    /// The other side has named that time.
    named: bool,
}

#[derive(Debug)]
pub(crate) struct WorkQueue<U> {
    pods: BTreeMap<String, Pod<U>>,
    most: usize,
}

impl<U: Clone> WorkQueue<U> {
    /// For at most so many at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            pods: BTreeMap::new(),
            most,
        }
    }

    /// There is something to do. It takes the place of what waits, unless that is a deletion, which is done
    /// first; a pause after a failure ends only for a deletion.
    pub(crate) fn offer(&mut self, uid: &str, work: Work<U>, now: Instant) {
        let pod = self.pods.entry(uid.to_owned()).or_insert_with(|| Pod {
            waiting: None,
            later: None,
            running: None,
            failures: Backoff::default(),
            problem: None,
            due: now,
            named: false,
        });
        match (&pod.waiting, work) {
            (Some(Work::Delete(_)), Work::Update(update)) => pod.later = Some(update),
            (_, work @ Work::Update(_)) => pod.waiting = Some(work),
            (Some(Work::Delete(_)), work) => (pod.waiting, pod.later) = (Some(work), None),
            (_, work @ Work::Delete(_)) => {
                (pod.due, pod.named) = (now, false);
                pod.waiting = Some(work);
            }
        }
    }

    /// The next that is due, which counts as being worked for until [`WorkQueue::finished`].
    pub(crate) fn start(&mut self, now: Instant) -> Option<(String, Work<U>)> {
        let (uid, pod) = self.next().filter(|(_, pod)| pod.due <= now)?;
        pod.running = pod.waiting.take();
        pod.waiting = pod.later.take().map(Work::Update);
        Some((uid, pod.running.clone()?))
    }

    /// When the next pod is due; `None` without a waiting pod or a free task.
    pub(crate) fn due(&mut self) -> Option<Instant> {
        Some(self.next()?.1.due)
    }

    /// Of those that wait, the first.
    fn next(&mut self) -> Option<(String, &mut Pod<U>)> {
        let running = self.pods.values().filter(|p| p.running.is_some()).count();
        if running >= self.most {
            return None;
        }
        let waiting = self
            .pods
            .iter_mut()
            .filter(|(_, pod)| pod.running.is_none() && pod.waiting.is_some());
        let first = waiting.min_by_key(|(_, pod)| pod.due);
        first.map(|(uid, pod)| (uid.clone(), pod))
    }

    /// It has ended. Gives the problem back when that is another than the last; `spread` is a random number
    /// from 0 to 1.
    pub(crate) fn finished(
        &mut self,
        uid: &str,
        result: Result<(), JobError>,
        now: Instant,
        spread: f64,
    ) -> Option<String> {
        let pod = self.pods.get_mut(uid)?;
        let done = pod.running.take()?;
        let Err(failure) = result else {
            (pod.failures, pod.problem) = (Backoff::default(), None);
            (pod.due, pod.named) = (now, false);
            if pod.waiting.is_none() {
                self.pods.remove(uid);
            }
            return None;
        };
        pod.named = failure.wait.is_some();
        let pause = pod.failures.next(spread);
        // Others may be due at the same time.
        let named = |wait: Duration| wait.min(LONGEST) + SPREAD.mul_f64(spread.clamp(0.0, 1.0));
        pod.due = now + failure.wait.map_or(pause, named);
        match (pod.waiting.take(), done) {
            (None, done) => pod.waiting = Some(done),
            // What failed may have been in the way of the end alone.
            (waiting @ Some(Work::Delete(_)), _) => (pod.waiting, pod.due) = (waiting, now),
            (Some(Work::Update(update)), done @ Work::Delete(_)) => {
                (pod.waiting, pod.later) = (Some(done), Some(update));
            }
            (waiting @ Some(Work::Update(_)), Work::Update(_)) => pod.waiting = waiting,
        }
        let news = pod.problem.as_ref() != Some(&failure.problem);
        pod.problem = Some(failure.problem.clone());
        news.then_some(failure.problem)
    }

    /// Ends the pauses after failures, but for those that the other side has asked for. What fails again waits
    /// longer all the same: the caller may be wrong repeatedly.
    pub(crate) fn hurry(&mut self, now: Instant, mut spread: impl FnMut() -> f64) {
        for pod in self.pods.values_mut().filter(|pod| !pod.named) {
            pod.due = pod.due.min(now + SPREAD.mul_f64(spread()));
        }
    }
}

#[cfg(test)]
mod tests;
