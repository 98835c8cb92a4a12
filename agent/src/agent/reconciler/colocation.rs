//! Part: CPU of co-located pods. Which pods may exceed their limits, and what came of it.

use std::{collections::BTreeMap, sync::Arc};

use podwarden_policy::{
    MilliCpu, QosClass,
    colocation::class::{self, Class, Classified, Contradiction},
    limits::pod_requests,
    name::CgroupName,
    settings::Observed,
};

use super::{Context, Environment, Fact, pods::Known};
use crate::{
    accounting::index::PodEntry,
    api::types::{EventKind, PodRef},
    base::clock,
    colocation::{Aim, Burster, Ours, Protected, Report, Why},
    pods::SourcedPod,
};

pub(in crate::agent) struct Colocation {
    /// `None` where no strategy is on, and without a thread for it.
    burster: Option<Burster>,
    ours: Arc<Ours>,
    /// What the thread goes by.
    aim: Aim,
    /// What was reported of pods' labels.
    reported: Vec<(PodRef, Contradiction)>,
}

impl Colocation {
    pub(in crate::agent) fn new(burster: Option<Burster>, ours: Arc<Ours>) -> Self {
        Self {
            burster,
            ours,
            aim: Aim::default(),
            reported: Vec::new(),
        }
    }

    /// True where a strategy is on.
    pub(super) fn is_on(&self) -> bool {
        self.burster.is_some()
    }

    /// Completes when the thread has reported. Cancel-safe.
    pub(super) async fn ready(&mut self) -> Report {
        let report = match &mut self.burster {
            Some(burster) => burster.report().await,
            None => None,
        };
        match report {
            Some(report) => report,
            // There is no thread, or it has ended.
            None => std::future::pending().await,
        }
    }

    /// Publishes a report.
    pub(super) fn step(&mut self, report: Report, env: &Environment) -> Vec<Fact> {
        let Report {
            pod,
            container,
            at,
            step,
            dry_run,
        } = report;
        let kind = EventKind::CpuQuota {
            container,
            throttled_nanos: step.throttled_nanos,
            from_us: step.from_us,
            to_us: step.to_us,
            period_us: step.period_us,
            reason: match step.why {
                Why::Throttled => "throttled",
                Why::NodeBusy => "nodeBusy",
                Why::NoTokens => "noTokens",
            }
            .to_owned(),
            dry_run,
        };
        env.published.event(clock::text_of(at), Some(pod), kind);
        Vec::new()
    }

    /// Hands the thread the pods as they are now; returns what is new of labels without effect.
    pub(super) fn aim(&mut self, cx: Context<'_>) -> Vec<Fact> {
        let Context {
            env,
            known,
            entries,
        } = cx;
        let Some(burster) = &self.burster else {
            return Vec::new();
        };
        let set = known.set();
        let classified: Vec<(&SourcedPod, Classified)> = set
            .pods
            .iter()
            .map(|sourced| (sourced, class::classify(&sourced.pod)))
            .collect();
        let mut aim = Aim::default();
        let layout = &env.layout;
        let tier = layout.path(&layout.kubepods.tier(QosClass::BestEffort));
        aim.outside_pool.push(tier);
        for (sourced, classified) in &classified {
            let Some(entry) = entries.get(&sourced.pod.uid) else {
                continue;
            };
            if matches!(classified.class, Class::Lse | Class::Lsr) {
                let requests = pod_requests(&sourced.pod).cpu;
                aim.reserved = MilliCpu::saturating_add(aim.reserved, requests);
                aim.outside_pool.push(entry.path.clone());
            }
            if classified.class.is_latency_sensitive() && classified.contradictions.is_empty() {
                aim.protected.push(protected(sourced, entry, &known));
            }
        }
        if aim != self.aim {
            self.aim = aim.clone();
            burster.aim(aim);
        }
        self.report(&classified, &known)
    }

    fn report(&mut self, classified: &[(&SourcedPod, Classified)], known: &Known<'_>) -> Vec<Fact> {
        let found: Vec<(PodRef, Contradiction)> = classified
            .iter()
            .flat_map(|(sourced, classified)| {
                let pod = known.identities.get(&sourced.pod.uid).pod;
                let all = classified.contradictions.iter().cloned();
                all.map(move |one| (pod.clone(), one))
            })
            .collect();
        let reported = std::mem::replace(&mut self.reported, found);
        let new = self.reported.iter().filter(|one| !reported.contains(one));
        new.map(|(pod, contradiction)| {
            let PodRef {
                namespace, name, ..
            } = pod;
            Fact::Degraded(format!(
                "{namespace}/{name} exceeds no CPU limit: {contradiction}"
            ))
        })
        .collect()
    }

    /// Puts what was found in place of the quotas that the thread wrote, which are no foreign writes.
    pub(super) fn mask(&self, observed: &mut BTreeMap<CgroupName, Observed>, env: &Environment) {
        if !self.is_on() {
            return;
        }
        for (name, observed) in observed {
            if let Some(max) = &mut observed.cpu_max {
                *max = self.ours.without(&env.layout.path(name), *max);
            }
        }
    }

    /// Puts everything back that was found.
    pub(super) fn end(&mut self) {
        self.burster = None;
    }
}

fn protected(sourced: &SourcedPod, entry: &PodEntry, known: &Known<'_>) -> Protected {
    let uid = &sourced.pod.uid;
    let containers = entry.containers.iter().filter(|(_, one)| one.live);
    Protected {
        pod: known.identities.get(uid).pod,
        path: entry.path.clone(),
        containers: containers
            .map(|(id, one)| {
                let name = known.identities.container(uid, id).unwrap_or(id);
                (name.to_owned(), one.path.clone())
            })
            .collect(),
    }
}
