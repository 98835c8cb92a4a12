//! Best-effort pods that go for the CPU or for what they request: their figures looked at, their processes killed, reported as any eviction.

use std::{
    mem::Discriminant,
    sync::Arc,
    time::{Duration, Instant},
};

use podwarden_policy::{
    Bytes, MilliCpu, PodUid, QosClass,
    colocation::{
        batch_pod,
        class::{self, Class},
        evict_cpu::{AcceptedEvictions, CpuRank},
        reclaimed::Amounts,
    },
    evict::Place,
};

use super::{
    EvictionManager,
    kill::{self, is_empty},
    leave::{Leave, Leaves, Refused},
    reports::degraded,
};
use crate::{
    agent::{
        best_effort_cpu::{BestEffortPod, Inputs, Shortage},
        reconciler::{Context, Fact},
    },
    base::clock::monotonic,
    eviction::status::{Asked, Budgets, EvictionStatus},
    reactor::{
        plan::{ArmedPlan, VictimFiles},
        report::{Crossing, Report},
    },
};

/// Evictions for the CPU that are under way.
pub(super) struct CpuEvictions {
    dying: Vec<Dying>,
    /// Why no pod may be evicted, as was said since the last eviction.
    said: Option<Discriminant<Refused>>,
    /// `None` where pods go without the leave of their budgets.
    leaves: Option<Leaves<Budgets>>,
}

#[derive(Debug)]
struct Dying {
    number: u64,
    files: Arc<VictimFiles>,
    killed: Instant,
}

impl Dying {
    fn is_gone(&self) -> bool {
        is_empty(&self.files)
    }
}

impl CpuEvictions {
    /// In observe mode there is no `status`, and no leave is asked for.
    pub(super) fn new(status: Option<&EvictionStatus>) -> Self {
        Self {
            dying: Vec::new(),
            said: None,
            leaves: status.and_then(EvictionStatus::budgets).map(Leaves::new),
        }
    }

    pub(super) fn due(&self) -> Option<Duration> {
        (!self.dying.is_empty()).then_some(kill::LOOK)
    }
}

impl EvictionManager {
    /// Evicts for the CPU where that is due.
    pub(super) fn relieve_cpu(&mut self, cx: Context<'_>, now: Instant) -> Vec<Fact> {
        let mut facts = Vec::new();
        for report in self.freed_cpu(now) {
            self.take(report, cx, &mut facts);
        }
        if (self.cpu.as_ref()).is_none_or(|cpu| !cpu.due(now).is_zero()) {
            return facts;
        }
        let pods = self.best_effort_pods(cx);
        let env = cx.env;
        let tier = env
            .layout
            .path(&env.layout.kubepods.tier(QosClass::BestEffort));
        let reclaimed = env.published.latest().node.reclaimed;
        let inputs = Inputs {
            tree: &env.tree,
            tier: &tier,
            capacity: env.node.cpu_capacity,
            spare: reclaimed.map(|reclaimed| {
                let batch = &reclaimed.batch;
                let cpu = MilliCpu(batch.spare_cpu_milli);
                Amounts::new(cpu, Bytes(batch.spare_memory_bytes))
            }),
            pods: &pods,
        };
        let Some(cpu) = &mut self.cpu else {
            return facts;
        };
        let Some(mut shortage) = cpu.look(&inputs, now) else {
            return facts;
        };
        let refused = match self.leave(&shortage, cx, now) {
            None => Refused::NoCandidate,
            Some(Leave::Pending) => return facts,
            Some(Leave::Granted(uid)) => {
                shortage.candidates.retain(|candidate| candidate.uid == uid);
                if shortage.candidates.is_empty() {
                    return facts;
                }
                Refused::NoCandidate
            }
            Some(Leave::Refused(refused)) => {
                shortage.candidates.clear();
                refused
            }
        };
        let reports = self.evict_for_cpu(&shortage, now);
        self.note_leave(&shortage, &reports, now);
        if reports.is_empty()
            && self.cpu_evictions.leaves.is_some()
            && !shortage.candidates.is_empty()
        {
            // Nothing runs in it any more.
            return facts;
        }
        let told = |report: &Report| matches!(report, Report::Chosen(_));
        let why = std::mem::discriminant(&refused);
        if reports.iter().any(told) {
            self.cpu_evictions.said = None;
        } else if self.cpu_evictions.said.replace(why) != Some(why) {
            let (cause, because) = (shortage.cause, refused.because());
            let message = format!("{cause}, and no pod may be evicted{because}");
            degraded(&env.published, monotonic(), None, message);
        }
        for report in reports {
            self.take(report, cx, &mut facts);
        }
        facts
    }

    /// The leave of disruption budgets; `None` where none is needed.
    fn leave(&mut self, shortage: &Shortage, cx: Context<'_>, now: Instant) -> Option<Leave> {
        let armed = self.reactor.armed();
        let leaves = self.cpu_evictions.leaves.as_mut()?;
        Some(leaves.look(|| to_ask_for(shortage, &armed, cx), now))
    }

    /// What became of the one pod that had leave.
    fn note_leave(&mut self, shortage: &Shortage, reports: &[Report], now: Instant) {
        let uid = shortage.candidates.first().map(|candidate| &candidate.uid);
        if let (Some(leaves), Some(uid)) = (&mut self.cpu_evictions.leaves, uid) {
            match reports.first() {
                Some(Report::Chosen(_)) => leaves.killed(uid.clone()),
                Some(_) => leaves.not_killed(uid.clone(), now),
                None => {}
            }
        }
    }

    /// The pods of class BE that have a cgroup and were not evicted.
    fn best_effort_pods(&self, cx: Context<'_>) -> Vec<BestEffortPod> {
        let set = cx.known.set();
        let pods = set.pods.iter().filter_map(|sourced| {
            let pod = &sourced.pod;
            let classified = class::classify(pod);
            let entry = cx.entries.get(&pod.uid)?;
            let requests = batch_pod::requests(pod);
            let is_it = classified.class == Class::Be && !self.evictions.evicted.contains(&pod.uid);
            is_it.then(|| BestEffortPod {
                uid: pod.uid.clone(),
                path: entry.path.clone(),
                priority: pod.priority,
                band: classified.band,
                request: requests.cpu,
                memory_request: requests.memory,
                accepts: accepted(pod.colocation.eviction_policy.as_deref()),
                enabled: pod.colocation.eviction_enabled.as_deref() == Some("true"),
            })
        });
        pods.collect()
    }

    /// Kills in order until enough is released; in observe mode none.
    fn evict_for_cpu(&mut self, shortage: &Shortage, now: Instant) -> Vec<Report> {
        let armed = self.reactor.armed();
        let (mut released, mut reports) = (0_u64, Vec::new());
        for candidate in &shortage.candidates {
            if released >= shortage.release {
                break;
            }
            let uid = candidate.uid.as_str();
            // One that is exempt is no victim.
            let Some(victim) = armed.victim(uid) else {
                continue;
            };
            let crossing = crossing(shortage);
            let killed = match armed.enforce {
                true => kill::kill(&victim.files),
                false => Ok(None),
            };
            match killed {
                Ok(None) if armed.enforce => continue,
                Ok(outcome) => {
                    let number = self.numbers.next();
                    if outcome.is_some() {
                        self.cpu_evictions.dying.push(Dying {
                            number,
                            files: Arc::clone(&victim.files),
                            killed: now,
                        });
                    }
                    let place = Place::Cpu(CpuRank::new(shortage.cause, candidate));
                    reports.push(kill::chosen(number, victim, place, crossing, outcome));
                    released = released.saturating_add(shortage.cause.gain(candidate));
                }
                Err(error) => {
                    tracing::debug!(%error, uid, "not killed for the CPU");
                    let token = victim.token;
                    reports.push(Report::NotKilled { token, crossing });
                }
            }
        }
        let any = reports
            .iter()
            .any(|report| matches!(report, Report::Chosen(_)));
        if let Some(cpu) = self.cpu.as_mut().filter(|_| any) {
            cpu.evicted(now);
        }
        reports
    }

    /// The victims whose processes have ended, or were waited for long enough.
    fn freed_cpu(&mut self, now: Instant) -> Vec<Report> {
        let ended = |dying: &mut Dying| {
            dying.is_gone() || now.saturating_duration_since(dying.killed) >= kill::LONGEST
        };
        let ended = self.cpu_evictions.dying.extract_if(.., ended);
        let report = |dying: Dying| kill::freed(dying.number, &dying.files, dying.is_gone());
        ended.map(report).collect()
    }
}

/// The candidates that may be killed and in which something runs.
fn to_ask_for(shortage: &Shortage, armed: &ArmedPlan, cx: Context<'_>) -> Vec<Asked> {
    let (identities, set) = (cx.known.identities, cx.known.set());
    let candidates = shortage.candidates.iter().filter(|candidate| {
        let victim = armed.victim(candidate.uid.as_str());
        victim.is_some_and(|victim| !is_empty(&victim.files))
    });
    let asked = |uid: &PodUid| Asked {
        pod: identities.get(uid).pod,
        object: set.object_of(uid).unwrap_or_else(|| uid.to_string()),
    };
    candidates.map(|candidate| asked(&candidate.uid)).collect()
}

/// What a pod accepts by its annotation; what cannot be read accepts none.
fn accepted(annotation: Option<&str>) -> AcceptedEvictions {
    match annotation {
        None => AcceptedEvictions::All,
        Some(text) => AcceptedEvictions::Only(serde_json::from_str(text).unwrap_or_default()),
    }
}

/// Amounts are thousandths of a CPU, or bytes, by the scope.
fn crossing(shortage: &Shortage) -> Crossing {
    let (level, usage, target) = shortage.cause.levels();
    Crossing {
        level,
        usage,
        working_set: usage,
        target,
        ..kill::sampled(shortage.cause.scope())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_the_annotation_accepts_every_eviction() {
        assert_eq!(accepted(None), AcceptedEvictions::All);
        assert!(accepted(Some(r#"["BECPUEvict"]"#)).allows("BECPUEvict"));
        for text in ["[]", "", "BECPUEvict", r#"["CPUEvict"]"#] {
            assert!(!accepted(Some(text)).allows("BECPUEvict"), "{text}");
        }
    }
}
