//! Part: CPU of co-located pods. Which pods may exceed their limits, and what came of it.

mod publish;

use std::{collections::BTreeMap, sync::Arc};

use podwarden_cgroup::CgroupPath;
use podwarden_policy::{
    MilliCpu, QosClass,
    colocation::{
        class::{self, Class, Classified},
        strategies::Strategies,
    },
    limits::pod_requests,
    name::CgroupName,
    settings::Observed,
};

use super::{Context, Environment, Fact, pods::Known};
use crate::{
    accounting::index::{CgroupIndex, PodEntry},
    api::types::{BestEffortCpuStats, PodRef},
    colocation::{
        Ours,
        burst::{Aim, Burster, Protected, Report},
        hold::{self, Holder, What},
        proactive::{Given, Giver, Proactive},
        resctrl::{Group, Member, Resctrl},
    },
    config::Mode,
    pods::SourcedPod,
};

/// What a thread has reported.
pub(super) enum Told {
    Quota(Report),
    Hold(hold::Report),
}

pub(in crate::agent) struct Colocation {
    /// `None` where the strategy is off, and without a thread for it.
    burster: Option<Burster>,
    /// The same.
    holder: Option<Holder>,
    /// The same.
    proactive: Option<Proactive>,
    givers: Vec<Giver>,
    /// The same.
    resctrl: Option<Resctrl>,
    members: Vec<Member>,
    /// What the holder goes by.
    watched: hold::Aim,
    /// The pod whose wait was reported last, and how long it waited, while best effort is held back for that.
    waiting: Option<(PodRef, u64)>,
    ours: Arc<Ours>,
    /// What the thread goes by.
    aim: Aim,
    /// What was reported of pods' labels and annotations.
    reported: Vec<(PodRef, String)>,
}

impl Colocation {
    pub(in crate::agent) fn new(
        burster: Option<Burster>,
        holder: Option<Holder>,
        proactive: Option<Proactive>,
        resctrl: Option<Resctrl>,
        ours: Arc<Ours>,
    ) -> Self {
        Self {
            burster,
            holder,
            proactive,
            givers: Vec::new(),
            resctrl,
            members: Vec::new(),
            watched: hold::Aim::default(),
            waiting: None,
            ours,
            aim: Aim::default(),
            reported: Vec::new(),
        }
    }

    /// True where a strategy is on.
    pub(super) fn is_on(&self) -> bool {
        self.burster.is_some()
            || self.holder.is_some()
            || self.proactive.is_some()
            || self.resctrl.is_some()
    }

    /// What pods gave back; `None` where none is asked.
    pub(super) fn given(&self) -> Option<&Given> {
        self.proactive.as_ref().map(Proactive::given)
    }

    /// What best effort may use of the CPU; `None` where no strategy holds it back.
    pub(super) fn best_effort_cpu(&self, env: &Environment) -> Option<BestEffortCpuStats> {
        let standing = self.holder.as_ref()?.standing();
        let wait = standing.wait();
        let waiting = self.waiting.as_ref().filter(|_| wait.is_some());
        Some(BestEffortCpuStats {
            wait_limit_milli: wait.map(|limit| limit.0),
            suppress_limit_milli: standing.suppress().map(|limit| limit.0),
            waiting: waiting.map(|(pod, _)| pod.clone()),
            waited_nano_seconds: waiting.map(|(_, nanos)| *nanos),
            long_waits: standing.long_waits(),
            dry_run: env.config.mode != Mode::Enforce,
        })
    }

    /// What the CPU strategies go by now; `None` where all are off.
    pub(super) fn cpu_strategies(&self, env: &Environment) -> Option<Strategies> {
        let mut all = env.config.colocation.cpu_strategies(&env.node);
        if let (Some(burst), Some(burster)) = (&mut all.burst, &self.burster) {
            burst.state = burster.state();
        }
        if let Some(holder) = &self.holder {
            let (standing, figures) = (holder.standing(), holder.standing().figures());
            if let Some(suppress) = &mut all.suppress {
                suppress.measured = figures.suppress;
            }
            if let Some(wait) = &mut all.wait {
                let waited = &mut wait.measured;
                (waited.limit, waited.used) = (standing.wait(), figures.used);
                let waiting = self.waiting.as_ref().filter(|_| waited.limit.is_some());
                waited.pod = waiting.map(|(pod, _)| pod.uid.clone());
                waited.nanos = waiting.map(|(_, nanos)| *nanos);
            }
        }
        (!all.is_empty()).then_some(all)
    }

    /// Completes when a thread has reported. Cancel-safe.
    pub(super) async fn ready(&mut self) -> Told {
        let quota = async {
            match &mut self.burster {
                Some(burster) => burster.report().await,
                None => None,
            }
        };
        let hold = async {
            match &mut self.holder {
                Some(holder) => holder.report().await,
                None => None,
            }
        };
        tokio::select! {
            Some(report) = quota => Told::Quota(report),
            Some(report) = hold => Told::Hold(report),
            // There are no threads, or they have ended.
            else => std::future::pending().await,
        }
    }

    /// Publishes a report.
    pub(super) fn step(&mut self, told: Told, env: &Environment) -> Vec<Fact> {
        match told {
            Told::Quota(report) => publish::quota(report, env),
            Told::Hold(report) => {
                match &report.what {
                    What::Held {
                        pod, waited_nanos, ..
                    } => self.waiting = Some((pod.clone(), *waited_nanos)),
                    What::Freed { .. } => self.waiting = None,
                    What::Suppressed(_) | What::Refused(_) => {}
                }
                publish::hold(report, env)
            }
        }
    }

    /// Hands the threads the pods as they are now; returns what is new of labels without effect.
    pub(super) fn aim(&mut self, cx: Context<'_>, index: &CgroupIndex) -> Vec<Fact> {
        let (env, known, entries) = (cx.env, cx.known, cx.entries);
        if !self.is_on() {
            return Vec::new();
        }
        let set = known.set();
        let classified: Vec<(&SourcedPod, Classified)> = set
            .pods
            .iter()
            .map(|sourced| (sourced, class::classify(&sourced.pod)))
            .collect();
        let mut aim = Aim::default();
        let mut watched = hold::Aim::default();
        let (mut givers, mut members) = (Vec::new(), Vec::new());
        let layout = &env.layout;
        let tier = layout.path(&layout.kubepods.tier(QosClass::BestEffort));
        aim.outside_pool.push(tier);
        for (sourced, classified) in &classified {
            let Some(entry) = entries.get(&sourced.pod.uid) else {
                continue;
            };
            givers.extend(giver(sourced, classified, entry, env));
            members.extend(member(classified, entry));
            if matches!(classified.class, Class::Lse | Class::Lsr) {
                let requests = pod_requests(&sourced.pod).cpu;
                aim.reserved = MilliCpu::saturating_add(aim.reserved, requests);
                aim.outside_pool.push(entry.path.clone());
            }
            let containers = || entry.containers.values().filter(|one| one.live);
            let paths = containers().map(|one| one.path.clone());
            match classified.class {
                Class::Lse | Class::System => watched.pinned.exclusive.extend(paths),
                Class::Lsr => watched.pinned.reserved.extend(paths),
                Class::Ls | Class::Be => {}
            }
            if classified.class.is_latency_sensitive() && classified.contradictions.is_empty() {
                let pod = protected(sourced, entry, &known);
                watched.protected.push(hold::Protected {
                    pod: pod.pod.clone(),
                    objective: hold::objective(&sourced.pod)
                        .unwrap_or_default()
                        .unwrap_or(env.config.colocation.wait.objective),
                    slots: index.slots(entry),
                    cgroups: cgroups(&pod),
                });
                // A kernel refuses a quota below the burst, also the kubelet's.
                if !sourced.resizing {
                    aim.protected.push(pod);
                }
            }
        }
        if let Some(burster) = &self.burster
            && aim != self.aim
        {
            self.aim = aim.clone();
            burster.aim(aim);
        }
        if let Some(holder) = &self.holder
            && watched != self.watched
        {
            self.watched.clone_from(&watched);
            holder.aim(watched);
        }
        if let Some(proactive) = &self.proactive
            && givers != self.givers
        {
            self.givers.clone_from(&givers);
            proactive.aim(givers);
        }
        if let Some(resctrl) = &self.resctrl
            && members != self.members
        {
            self.members.clone_from(&members);
            resctrl.aim(members);
        }
        self.report(&classified, &known)
    }

    fn report(&mut self, classified: &[(&SourcedPod, Classified)], known: &Known<'_>) -> Vec<Fact> {
        let found: Vec<(PodRef, String)> = classified
            .iter()
            .flat_map(|(sourced, classified)| {
                let pod = known.identities.get(&sourced.pod.uid).pod;
                let all = classified
                    .contradictions
                    .iter()
                    .map(|one| format!("exceeds no CPU limit: {one}"))
                    .chain(hold::objective(&sourced.pod).err());
                all.map(move |one| (pod.clone(), one)).collect::<Vec<_>>()
            })
            .collect();
        let reported = std::mem::replace(&mut self.reported, found);
        let new = self.reported.iter().filter(|one| !reported.contains(one));
        new.map(|(pod, problem)| {
            Fact::Degraded(format!("{}/{} {problem}", pod.namespace, pod.name))
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
        self.holder = None;
        self.proactive = None;
        self.resctrl = None;
    }
}

/// A pod that may give page cache back: BE, and LS while it does not work.
fn giver(
    sourced: &SourcedPod,
    classified: &Classified,
    entry: &PodEntry,
    env: &Environment,
) -> Option<Giver> {
    let uid = &sourced.pod.uid;
    let only_cold = match classified.class {
        Class::Be => false,
        Class::Ls if classified.contradictions.is_empty() => true,
        Class::Ls | Class::Lse | Class::Lsr | Class::System => return None,
    };
    (env.exemptions.own_pod.as_ref() != Some(uid)).then(|| Giver {
        uid: uid.clone(),
        path: entry.path.clone(),
        only_cold,
    })
}

/// A pod's group by its class; SYSTEM stays in the root group.
fn member(classified: &Classified, entry: &PodEntry) -> Option<Member> {
    let group = match classified.class {
        Class::Lse | Class::Lsr => Group::Lsr,
        Class::Ls => Group::Ls,
        Class::Be => Group::Be,
        Class::System => return None,
    };
    Some(Member {
        path: entry.path.clone(),
        containers: entry.containers.len(),
        group,
    })
}

/// A pod's cgroups: its own and its containers'.
fn cgroups(pod: &Protected) -> Vec<CgroupPath> {
    let containers = pod.containers.iter().map(|(_, path)| path.clone());
    [pod.path.clone()].into_iter().chain(containers).collect()
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
