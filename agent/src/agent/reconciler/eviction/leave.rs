//! The leave of PodDisruptionBudgets for evictions that are not urgent: asked by a task, taken at a later look.

use std::time::{Duration, Instant};

use podwarden_policy::PodUid;
use tokio::sync::oneshot::{Receiver, error::TryRecvError};

use crate::eviction::status::{Asked, Budgets, Verdict};

/// After a round without leave none is asked for so long.
const PAUSE: Duration = Duration::from_secs(10);
/// Leave is good for so long: the next look but a few.
const GOOD: Duration = Duration::from_secs(5);
/// A pod that may go and cannot be killed is asked for again after so long.
const PASSED_OVER: Duration = Duration::from_secs(60);

/// What is known at a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leave {
    /// Nothing yet.
    Pending,
    /// This pod may go.
    Granted(PodUid),
    /// None may.
    Refused(Refused),
}

/// Why no pod may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is none to ask for.
    NoCandidate,
    /// By budgets: so many pods, and why the first of them.
    ByBudget { pods: usize, why: String },
    /// The API server did not say.
    Unanswered(String),
}

impl Refused {
    /// Follows "and no pod may be evicted".
    pub(super) fn because(&self) -> String {
        match self {
            Self::NoCandidate => String::new(),
            Self::ByBudget { pods, why } => {
                format!("; PodDisruptionBudgets refuse {pods} (of the first: {why})")
            }
            Self::Unanswered(problem) => format!(
                ": whether PodDisruptionBudgets allow it is not known ({problem}); the API server is asked again until \
                 it answers, or set evictionStatus.how to status to evict without its leave"
            ),
        }
    }
}

/// What asks; a test has another.
pub(super) trait Ask {
    /// See [`Budgets::ask`].
    fn ask(&self, pods: Vec<Asked>, before: Option<PodUid>) -> Receiver<(Instant, Verdict)>;
}

impl Ask for Budgets {
    fn ask(&self, pods: Vec<Asked>, before: Option<PodUid>) -> Receiver<(Instant, Verdict)> {
        Budgets::ask(self, pods, before)
    }
}

/// See the module's text. At most one question is under way.
#[derive(Debug)]
pub(super) struct Leaves<A> {
    ask: A,
    question: Option<Receiver<(Instant, Verdict)>>,
    /// None is asked before.
    next: Option<Instant>,
    /// The pod that was killed last.
    killed: Option<PodUid>,
    not_killed: Option<(PodUid, Instant)>,
}

impl<A: Ask> Leaves<A> {
    pub(super) fn new(ask: A) -> Self {
        Self {
            ask,
            question: None,
            next: None,
            killed: None,
            not_killed: None,
        }
    }

    /// The leave that is there; asks for `pods` where none is and none is on its way.
    pub(super) fn look(&mut self, pods: impl FnOnce() -> Vec<Asked>, now: Instant) -> Leave {
        if let Some(question) = &mut self.question {
            let heard = match question.try_recv() {
                Ok(heard) => heard,
                Err(TryRecvError::Empty) => return Leave::Pending,
                Err(TryRecvError::Closed) => {
                    let problem = "the task that asks ended by itself (a panic)".to_owned();
                    (now, Verdict::Unanswered(problem))
                }
            };
            self.question = None;
            if let Some(leave) = self.heard(heard, now) {
                return leave;
            }
        }
        if self.next.is_some_and(|next| now < next) {
            return Leave::Pending;
        }
        let mut pods = pods();
        self.not_killed
            .take_if(|(_, at)| now.saturating_duration_since(*at) >= PASSED_OVER);
        if let Some((uid, _)) = &self.not_killed {
            pods.retain(|asked| asked.pod.uid != *uid);
        }
        if pods.is_empty() {
            return Leave::Refused(Refused::NoCandidate);
        }
        self.question = Some(self.ask.ask(pods, self.killed.clone()));
        Leave::Pending
    }

    /// `None` for what is of no use any more.
    fn heard(&mut self, (at, verdict): (Instant, Verdict), now: Instant) -> Option<Leave> {
        if now.saturating_duration_since(at) > GOOD {
            return None;
        }
        let refused = match verdict {
            Verdict::Granted(uid) => return Some(Leave::Granted(uid)),
            Verdict::NotPosted => return Some(Leave::Pending),
            Verdict::Refused { pods: 0, .. } => Refused::NoCandidate,
            Verdict::Refused { pods, why } => Refused::ByBudget { pods, why },
            Verdict::Unanswered(problem) => Refused::Unanswered(problem),
        };
        self.next = Some(now + PAUSE);
        Some(Leave::Refused(refused))
    }

    /// A pod that had leave was killed.
    pub(super) fn killed(&mut self, uid: PodUid) {
        self.killed = Some(uid);
    }

    /// A pod that had leave could not be killed.
    pub(super) fn not_killed(&mut self, uid: PodUid, now: Instant) {
        self.not_killed = Some((uid, now));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::sync::oneshot::{Sender, channel};

    use super::*;
    use crate::api::types::PodRef;

    #[derive(Debug, Default)]
    struct Script {
        asked: RefCell<Vec<(Vec<String>, Option<PodUid>)>>,
        open: RefCell<Option<Sender<(Instant, Verdict)>>>,
    }

    impl Ask for Script {
        fn ask(&self, pods: Vec<Asked>, before: Option<PodUid>) -> Receiver<(Instant, Verdict)> {
            let (sender, receiver) = channel();
            let pods = pods.into_iter().map(|asked| asked.object).collect();
            self.asked.borrow_mut().push((pods, before));
            assert!(
                self.open.replace(Some(sender)).is_none(),
                "one question at a time"
            );
            receiver
        }
    }

    fn pods() -> Vec<Asked> {
        let asked = |uid: &str| Asked {
            pod: PodRef {
                uid: uid.into(),
                ..PodRef::default()
            },
            object: uid.to_owned(),
        };
        vec![asked("a"), asked("b")]
    }

    fn answer(leaves: &Leaves<Script>, at: Instant, verdict: Verdict) {
        let sender = leaves.ask.open.take().expect("a question");
        sender
            .send((at, verdict))
            .expect("the answer has a receiver");
    }

    fn times(leaves: &Leaves<Script>) -> usize {
        leaves.ask.asked.borrow().len()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn leave_is_taken_at_a_later_look_and_one_question_is_under_way() {
        let mut leaves = Leaves::new(Script::default());
        let mut now = Instant::now();
        for _ in 0..3 {
            assert_eq!(leaves.look(pods, now), Leave::Pending);
            now += SECOND;
        }
        assert_eq!(times(&leaves), 1);
        answer(&leaves, now, Verdict::Granted("b".into()));
        assert_eq!(leaves.look(pods, now), Leave::Granted("b".into()));
        leaves.killed("b".into());
        assert_eq!(leaves.look(pods, now), Leave::Pending);
        let both = || vec!["a".to_owned(), "b".to_owned()];
        let expected = [(both(), None), (both(), Some("b".into()))];
        assert_eq!(*leaves.ask.asked.borrow(), expected);
        // The Eviction of the one before is not posted: asked again at the next look.
        answer(&leaves, now, Verdict::NotPosted);
        assert_eq!(leaves.look(pods, now), Leave::Pending);
        assert_eq!(leaves.look(pods, now + SECOND), Leave::Pending);
        assert_eq!(times(&leaves), 3);
    }

    #[test]
    fn old_leave_is_none() {
        let mut leaves = Leaves::new(Script::default());
        let start = Instant::now();
        assert_eq!(leaves.look(pods, start), Leave::Pending);
        answer(&leaves, start, Verdict::Granted("a".into()));
        let late = start + GOOD + SECOND;
        assert_eq!(leaves.look(pods, late), Leave::Pending);
        assert_eq!(times(&leaves), 2);
    }

    #[test]
    fn without_leave_the_next_question_waits() {
        let refused = Verdict::Refused {
            pods: 2,
            why: "it needs 1".to_owned(),
        };
        for (verdict, word) in [
            (refused, "refuse 2"),
            (
                Verdict::Unanswered("no answer".to_owned()),
                "is not known (no answer)",
            ),
        ] {
            let mut leaves = Leaves::new(Script::default());
            let start = Instant::now();
            assert_eq!(leaves.look(pods, start), Leave::Pending);
            answer(&leaves, start, verdict);
            let Leave::Refused(refused) = leaves.look(pods, start) else {
                panic!("{word}");
            };
            assert!(refused.because().contains(word), "{}", refused.because());
            assert_eq!(leaves.look(pods, start + PAUSE - SECOND), Leave::Pending);
            assert_eq!(times(&leaves), 1);
            assert_eq!(leaves.look(pods, start + PAUSE), Leave::Pending);
            assert_eq!(times(&leaves), 2);
        }
    }

    #[test]
    fn without_a_candidate_nothing_is_asked() {
        let mut leaves = Leaves::new(Script::default());
        let none = Leave::Refused(Refused::NoCandidate);
        assert_eq!(leaves.look(Vec::new, Instant::now()), none);
        assert_eq!(times(&leaves), 0);
        assert_eq!(Refused::NoCandidate.because(), "");
    }

    #[test]
    fn a_task_that_ends_without_a_verdict_grants_nothing() {
        let mut leaves = Leaves::new(Script::default());
        let now = Instant::now();
        assert_eq!(leaves.look(pods, now), Leave::Pending);
        drop(leaves.ask.open.take());
        let leave = leaves.look(pods, now);
        assert!(
            matches!(leave, Leave::Refused(Refused::Unanswered(_))),
            "{leave:?}"
        );
    }

    #[test]
    fn a_pod_that_cannot_be_killed_lets_the_next_one_be_asked_for() {
        let mut leaves = Leaves::new(Script::default());
        let start = Instant::now();
        leaves.not_killed("a".into(), start);
        assert_eq!(leaves.look(pods, start), Leave::Pending);
        answer(&leaves, start, Verdict::NotPosted);
        assert_eq!(leaves.look(pods, start), Leave::Pending);
        assert_eq!(leaves.look(pods, start + PASSED_OVER), Leave::Pending);
        let asked: Vec<_> = leaves
            .ask
            .asked
            .borrow()
            .iter()
            .map(|(pods, _)| pods.len())
            .collect();
        assert_eq!(asked, [1, 2]);
    }
}
