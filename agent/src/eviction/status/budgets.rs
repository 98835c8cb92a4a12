//! Asks the API server which pod its PodDisruptionBudget lets go, before a kill that is not urgent.
//!
//! The question is an Eviction with `dryRun`, one pod after the other in the order of their eviction, until one may go.
//! A dry run counts nothing: of two pods of one budget that has room for one, both may go. So one pod is named at a time,
//! and nothing is asked before the Eviction of the last one is posted.

use std::{sync::Arc, time::Instant};

use podwarden_policy::PodUid;
use tokio::sync::oneshot;

use super::{
    queue::Shared,
    server::{ASK_TO_EVICT, Answer, Server},
    wording,
};
use crate::{api::types::PodRef, base::clock};

/// A pod that is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) pod: PodRef,
    /// `metadata.uid` of its object.
    pub(crate) object: String,
}

/// What the API server says of the pods that it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The first pod that may go.
    Granted(PodUid),
    /// None may.
    Refused {
        /// The pods that budgets keep; the API server does not have the others.
        pods: usize,
        /// Why the first of them may not go.
        why: String,
    },
    /// It did not say: a sentence.
    Unanswered(String),
    /// The Eviction of the pod before is not posted yet.
    NotPosted,
}

#[derive(Clone)]
pub(crate) struct Budgets {
    server: Arc<Server>,
    queue: Shared,
}

impl Budgets {
    pub(super) fn new(server: Arc<Server>, queue: Shared) -> Self {
        Self { server, queue }
    }

    /// Asks for these pods, in order, unless the Eviction of `before` has still to be posted. Never waits: the verdict
    /// comes with the time at which it was known.
    pub(crate) fn ask(
        &self,
        pods: Vec<Asked>,
        before: Option<PodUid>,
    ) -> oneshot::Receiver<(Instant, Verdict)> {
        let (sender, verdict) = oneshot::channel();
        let this = self.clone();
        tokio::spawn(async move {
            let verdict = this.verdict(&pods, before.as_ref()).await;
            // An error says that the receiver is gone.
            let _ = sender.send((clock::of_timers(), verdict));
        });
        verdict
    }

    async fn verdict(&self, pods: &[Asked], before: Option<&PodUid>) -> Verdict {
        if before.is_some_and(|uid| self.queue.is_unwritten(uid)) {
            return Verdict::NotPosted;
        }
        let mut round = Round::default();
        for asked in pods {
            let Asked { pod, object } = asked;
            let question = wording::eviction_question(pod, object);
            let answer = self
                .server
                .ask_to_evict(&pod.namespace, &pod.name, &question)
                .await;
            if let Some(verdict) = round.heard(&pod.uid, answer) {
                return verdict;
            }
        }
        round.end()
    }
}

/// The refusals so far.
#[derive(Debug, Default)]
struct Round {
    refused: usize,
    why: String,
}

impl Round {
    /// The verdict, unless the next pod is to be asked for.
    fn heard(&mut self, uid: &PodUid, answer: Answer) -> Option<Verdict> {
        let refusal = match answer {
            Ok(Ok(_)) => return Some(Verdict::Granted(uid.clone())),
            Ok(Err(refusal)) => refusal,
            Err(error) => return Some(Verdict::Unanswered(error.problem)),
        };
        if let Some(why) = refusal.of_budget() {
            if self.refused == 0 {
                why.clone_into(&mut self.why);
            }
            self.refused += 1;
            return None;
        }
        match refusal.code {
            // It is gone, or another pod has its name.
            404 | 409 => None,
            _ => Some(Verdict::Unanswered(refusal.sentence(ASK_TO_EVICT))),
        }
    }

    fn end(self) -> Verdict {
        Verdict::Refused {
            pods: self.refused,
            why: self.why,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::server::Refusal, *};
    use crate::eviction::pod_workers::JobError;

    fn refused(code: u16, status: &Value) -> Answer {
        Ok(Err(Refusal::of(code, None, status.to_string().as_bytes())))
    }

    /// As the API server writes it.
    fn by_budget() -> Answer {
        let cause = json!({"reason": "DisruptionBudget", "message": "web needs 1 healthy pods"});
        let status = json!({
            "kind": "Status", "reason": "TooManyRequests", "code": 429,
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": {"causes": [cause]},
        });
        refused(429, &status)
    }

    fn plain(code: u16) -> Answer {
        refused(code, &json!({"reason": "Some", "message": "no"}))
    }

    /// The pods `0`, `1` and so on, as far as they are asked for.
    fn verdict(answers: Vec<Answer>) -> (Verdict, usize) {
        let mut round = Round::default();
        for (number, answer) in answers.into_iter().enumerate() {
            let uid = PodUid::from(number.to_string());
            if let Some(verdict) = round.heard(&uid, answer) {
                return (verdict, number + 1);
            }
        }
        (round.end(), 0)
    }

    #[test]
    fn the_first_pod_that_its_budget_lets_go_is_named() {
        let granted = |uid: &str| Verdict::Granted(PodUid::from(uid.to_owned()));
        let yes = || Ok(Ok(Vec::new()));
        assert_eq!(verdict(vec![yes(), yes()]), (granted("0"), 1));
        assert_eq!(verdict(vec![by_budget(), yes(), yes()]), (granted("1"), 2));
        // Gone, and another of its name.
        let answers = vec![plain(404), plain(409), by_budget(), yes()];
        assert_eq!(verdict(answers), (granted("3"), 4));
    }

    #[test]
    fn every_refusal_of_a_budget_counts() {
        let negative = json!({
            "message": "pdb disruptions allowed is negative",
            "details": {"kind": "poddisruptionbudget", "group": "policy"},
        });
        let two = json!({"message": "This pod has more than one PodDisruptionBudget, which the eviction subresource \
                                     does not support."});
        let answers = vec![
            by_budget(),
            refused(403, &negative),
            refused(500, &two),
            plain(404),
        ];
        let expected = Verdict::Refused {
            pods: 3,
            why: "web needs 1 healthy pods".to_owned(),
        };
        assert_eq!(verdict(answers).0, expected);
        let none = Verdict::Refused {
            pods: 0,
            why: String::new(),
        };
        assert_eq!(verdict(vec![plain(404)]).0, none);
        assert_eq!(verdict(Vec::new()).0, none);
    }

    #[test]
    fn without_an_answer_no_pod_is_named() {
        let yes = || Ok(Ok(Vec::new()));
        let mut away = vec![Err(JobError::new("connection refused".to_owned()))];
        // 429 and 500 without a budget: the server has too much to do, or is broken.
        away.extend([400, 401, 403, 429, 500, 503].map(plain));
        for answer in away {
            let text = format!("{answer:?}");
            let (verdict, asked) = verdict(vec![by_budget(), answer, yes()]);
            let Verdict::Unanswered(problem) = verdict else {
                panic!("{text}: {verdict:?}");
            };
            assert_eq!(asked, 2, "{text}");
            assert!(!problem.is_empty(), "{text}");
            assert_eq!(
                problem.contains("grant it"),
                text.contains("code: 403"),
                "{text}"
            );
        }
    }
}
