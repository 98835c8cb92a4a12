//! Keeps a part of the Node object up to date: when it is written, what follows a refusal, and what is left there
//! when the agent ends. What the part is, and how it is written, is its own affair.
//!
//! Nothing waits for it, and nothing is kept on disk: only what is so now counts.

use std::{
    fmt::Debug,
    future::Future,
    marker::PhantomData,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};

use super::{OnDegraded, say, server::Server};
use crate::{
    base::{backoff::Backoff, clock},
    eviction::pod_workers::JobError,
    pods::Apiserver,
};

/// Between two looks at what it should be.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The longest pause after a failure: what is so now is there within a minute after the server is back, see [`LOOK`].
const LONGEST_PAUSE: Duration = Duration::from_secs(45);

/// An agent that ends waits so long for the last write.
const LAST: Duration = Duration::from_secs(2);

/// A part of the Node object.
pub(crate) trait NodePart: Send + 'static {
    /// What is written of it.
    type Value: Clone + Debug + Send + Sync;

    /// Shortest time between two writes.
    const LEAST: Duration;

    /// The beginning of a sentence about a failure, as in "the Node's condition is not written".
    const FAILURE: &'static str;

    /// What it should be now; `None` once its source has gone.
    fn value(&self) -> Option<Self::Value>;

    /// Completes when [`NodePart::value`] is to be looked at. Cancel-safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(LOOK)
    }

    /// Whether `value` is to be written at `now`, which `pace` allows.
    fn is_due(&self, value: &Self::Value, pace: &Pace<Self::Value>, now: Instant) -> bool;

    fn write(
        &mut self,
        server: &Server,
        node: &str,
        value: &Self::Value,
    ) -> impl Future<Output = Result<(), JobError>> + Send;

    /// What the agent leaves there; `None` for what is there. `reachable` is false where the last write failed.
    fn last(&self, written: &Self::Value, reachable: bool) -> Option<Self::Value>;
}

/// What an agent before this one may have left in the Node object, where this one does not keep it.
pub(crate) trait Former: Send + 'static {
    /// The beginning of a sentence about a failure.
    const FAILURE: &'static str;

    /// Takes it from the Node `name`, which was read just now, if it is there.
    fn take_back(
        server: &Server,
        name: &str,
        node: Value,
    ) -> impl Future<Output = Result<(), JobError>> + Send;
}

/// A part that is taken back, once. A Node that is not there, or that may not be read, has nothing of it.
pub(crate) struct TakeBack<F> {
    done: bool,
    of: PhantomData<fn() -> F>,
}

impl<F> Default for TakeBack<F> {
    fn default() -> Self {
        Self {
            done: false,
            of: PhantomData,
        }
    }
}

impl<F: Former> NodePart for TakeBack<F> {
    type Value = ();

    const LEAST: Duration = Duration::ZERO;
    const FAILURE: &'static str = F::FAILURE;

    /// The task ends with it.
    fn value(&self) -> Option<()> {
        (!self.done).then_some(())
    }

    fn is_due(&self, (): &(), _pace: &Pace<()>, _now: Instant) -> bool {
        true
    }

    async fn write(&mut self, server: &Server, name: &str, (): &()) -> Result<(), JobError> {
        if let Some(node) = server.node_if_readable(name).await? {
            F::take_back(server, name, node).await?;
        }
        self.done = true;
        Ok(())
    }

    fn last(&self, (): &(), _reachable: bool) -> Option<()> {
        None
    }
}

/// What was written, and when the next write may be. Values only.
#[derive(Debug)]
pub(crate) struct Pace<V> {
    written: Option<(V, Instant)>,
    not_before: Option<Instant>,
    failures: Backoff,
    least: Duration,
}

impl<V> Pace<V> {
    /// At least `least` lies between two writes.
    pub(crate) fn new(least: Duration) -> Self {
        Self {
            written: None,
            not_before: None,
            failures: Backoff::default(),
            least,
        }
    }

    /// What was written last, and when.
    pub(crate) fn written(&self) -> Option<&(V, Instant)> {
        self.written.as_ref()
    }

    /// Whether a write is allowed.
    pub(crate) fn allows(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    /// `value` was written.
    pub(crate) fn wrote(&mut self, value: V, now: Instant) {
        self.written = Some((value, now));
        self.not_before = Some(now + self.least);
        self.failures = Backoff::default();
    }

    /// A write failed: the next one comes after a pause that grows, and not before `wait` where the server names a
    /// time.
    pub(crate) fn failed(&mut self, wait: Option<Duration>, now: Instant, spread: f64) {
        let pause = self.failures.next(spread).min(LONGEST_PAUSE);
        self.not_before = Some(now + wait.unwrap_or_default().max(pause));
    }
}

/// The task that keeps a part; see the module's text.
pub(crate) struct NodePartTask {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl NodePartTask {
    /// Keeps `part` up to date from now on; ends once its source has gone.
    pub(crate) fn start<P: NodePart>(
        apiserver: Apiserver,
        node_name: &str,
        part: P,
        on_degraded: OnDegraded,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let keeper = Keeper {
            server: Server::new(apiserver),
            node_name: node_name.to_owned(),
            part,
            on_degraded,
            pace: Pace::new(P::LEAST),
            problem: None,
        };
        Self {
            stop,
            task: tokio::spawn(keeper.run(stopped)),
        }
    }

    /// Ends it, and leaves what it has written to the next agent.
    pub(crate) fn leave(self) {
        self.task.abort();
    }

    /// The agent ends: writes what it leaves there, if that can be done at once.
    pub(crate) async fn end(self) {
        // An error says that it has ended.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Keeper<P: NodePart> {
    server: Server,
    node_name: String,
    part: P,
    on_degraded: OnDegraded,
    pace: Pace<P::Value>,
    /// What kept it from being written, so that this is said once.
    problem: Option<String>,
}

impl<P: NodePart> Keeper<P> {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let Some(value) = self.part.value() else {
                return;
            };
            let now = clock::of_timers();
            if self.pace.allows(now) && self.part.is_due(&value, &self.pace, now) {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = self.write(value) => {}
                }
            }
            tokio::select! {
                _ = &mut stopped => break,
                () = self.part.changed() => {}
            }
        }
        let written = self.pace.written().map(|(value, _)| value);
        let last = written.and_then(|value| self.part.last(value, self.problem.is_none()));
        if let Some(value) = last {
            let _ = tokio::time::timeout(LAST, self.write(value)).await;
        }
    }

    async fn write(&mut self, value: P::Value) {
        let Self {
            server,
            node_name,
            part,
            ..
        } = self;
        let result = part.write(server, node_name, &value).await;
        let now = clock::of_timers();
        let Err(JobError { problem, wait }) = result else {
            if self.problem.take().is_some() {
                tracing::info!("no longer: {}", P::FAILURE);
            }
            tracing::debug!(?value, "wrote a part of the Node object");
            self.pace.wrote(value, now);
            return;
        };
        self.pace.failed(wait, now, fastrand::f64());
        if self.problem.as_ref() != Some(&problem) {
            say(&self.on_degraded, format!("{}: {problem}", P::FAILURE));
            self.problem = Some(problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_ever_later_and_not_before_the_time_that_is_named() {
        let start = Instant::now();
        let least = Duration::from_secs(10);
        let mut pace = Pace::new(least);
        assert!(pace.allows(start));
        pace.failed(None, start, 0.0);
        assert!(!pace.allows(start));
        let first = pace.not_before.unwrap();
        assert!(pace.allows(first));
        pace.failed(None, first, 0.0);
        assert!(pace.not_before.unwrap() - first > first - start);
        for _ in 0..20 {
            pace.failed(None, start, 1.0);
        }
        assert!(
            pace.allows(start + Duration::from_secs(60) - LOOK),
            "the server may be back"
        );
        pace.failed(Some(Duration::from_secs(60)), start, 0.0);
        assert!(!pace.allows(start + Duration::from_secs(59)));
        assert!(pace.allows(start + Duration::from_secs(60)));
        pace.wrote((), start);
        assert!(!pace.allows(start + least - LOOK) && pace.allows(start + least));
        pace.failed(None, start, 0.0);
        assert_eq!(pace.not_before.unwrap() - start, first - start, "afresh");
    }
}
