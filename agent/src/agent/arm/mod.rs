//! Builds the reactor's armed plan: levels and candidates, with their files open.

pub(super) mod pids;
pub(super) mod pressure;
mod strangers;
pub(super) mod unexplained;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use podwarden_cgroup::{
    CgroupLayout, CgroupPath, ChildKinds, FreezeRecord, KillHandle, MemoryEvents, MemoryReader,
    MemoryThresholds, Tree,
};
use podwarden_policy::{
    Bytes, Node, Pod, PodUid, QosClass,
    evict::{Candidate, Exemptions, Ranking},
    limits,
    plan::margin,
    qos, reserve,
};

use crate::{
    accounting::{figures::TierInfo, index::PodEntry},
    base::cpus,
    config::{Mode, PressureConfig},
    pods::runtime::RuntimeState,
    reactor::growth::Seen,
    reactor::plan::{ArmedPlan, Notice, Scope, ScopeName, Victim, VictimFiles},
};

/// The levels of a node, bytes; `None` where none is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Levels {
    /// Usage of all pods at which `memory.available` for pods falls below its threshold.
    pub kubepods: Option<u64>,
    /// Just below the burstable tier's limit under `qosReserved`.
    pub burstable: Option<u64>,
    /// Just below the besteffort tier's limit under `qosReserved`.
    pub besteffort: Option<u64>,
    /// Working set of the whole node at which its `memory.available` falls below the threshold.
    pub node: Option<u64>,
}

/// The tiers' memory limits that another program writes; `None` without one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TierBounds {
    pub burstable: Option<Bytes>,
    pub besteffort: Option<Bytes>,
}

/// The level of a tier with this limit: below it the reactor comes before the kernel.
fn below(limit: Bytes) -> u64 {
    limit.saturating_sub(margin(cpus::online())).as_u64()
}

/// The level of all pods. A limit that is not above the threshold leaves them nothing, and a level of zero would
/// end every pod; the reactor then acts just below the limit, and not at all where reserves leave no limit above
/// zero.
fn pods_level(allocatable: &reserve::Allocatable) -> Option<u64> {
    let level = match allocatable.kubepods_level {
        Bytes::ZERO => below(allocatable.kubepods_memory),
        level => level.as_u64(),
    };
    (level > 0).then_some(level)
}

impl Levels {
    /// The levels for these pods.
    pub(super) fn of<'a>(node: &Node, pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let allocatable = reserve::allocatable(node);
        // Without a limit on kubepods nothing is available below it, as for the kubelet.
        let threshold = node.eviction_hard_memory.as_u64() > 0 && node.enforce.pods;
        let mut levels = Self {
            kubepods: pods_level(&allocatable).filter(|_| threshold),
            ..Self::default()
        };
        if let Some(percent) = node.qos_reserved_memory_percent {
            let mut requests: HashMap<QosClass, Bytes> = HashMap::new();
            for pod in pods {
                let sum = requests.entry(qos::classify(pod)).or_default();
                *sum = sum.saturating_add(limits::pod_requests(pod).memory);
            }
            let of = |class| requests.get(&class).copied().unwrap_or_default();
            let tiers = reserve::tier_limits(
                allocatable.kubepods_memory,
                of(QosClass::Guaranteed),
                of(QosClass::Burstable),
                percent,
            );
            levels.burstable = Some(below(tiers.burstable));
            levels.besteffort = Some(below(tiers.besteffort));
        }
        levels
    }

    /// These levels, below the tiers' limits that others wrote.
    pub(super) fn within(self, tiers: TierBounds) -> Self {
        let lower = |level: Option<u64>, limit: Option<Bytes>| match (level, limit.map(below)) {
            (Some(level), Some(limit)) => Some(level.min(limit)),
            (level, limit) => level.or(limit),
        };
        Self {
            burstable: lower(self.burstable, tiers.burstable),
            besteffort: lower(self.besteffort, tiers.besteffort),
            ..self
        }
    }

    /// kubepods and the tiers with their cgroups.
    pub(super) fn tiers(&self, layout: &CgroupLayout) -> [TierInfo; 3] {
        let tier = |scope: ScopeName| TierInfo {
            name: scope,
            path: scope_path(layout, scope),
            level: self.of_scope(scope),
        };
        [
            tier(ScopeName::Kubepods),
            tier(ScopeName::Burstable),
            tier(ScopeName::BestEffort),
        ]
    }

    /// Puts another level in the place of a scope's; the scope that has none of its own gets none.
    pub(crate) fn set(&mut self, scope: ScopeName, level: u64) {
        let place = match scope {
            ScopeName::Kubepods => &mut self.kubepods,
            ScopeName::Burstable => &mut self.burstable,
            ScopeName::BestEffort => &mut self.besteffort,
            ScopeName::Node => &mut self.node,
            // Not a level of its own.
            _ => return,
        };
        *place = Some(level);
    }

    pub(crate) fn of_scope(&self, scope: ScopeName) -> Option<u64> {
        match scope {
            ScopeName::Kubepods => self.kubepods,
            ScopeName::Burstable => self.burstable,
            ScopeName::BestEffort => self.besteffort,
            ScopeName::Node => self.node,
            _ => None,
        }
    }
}

fn scope_path(layout: &CgroupLayout, scope: ScopeName) -> CgroupPath {
    layout.path(&match scope.tier() {
        Some(class) => layout.kubepods.tier(class),
        // The node's counts where pods' does: what room it has is room for pods.
        None => layout.kubepods.clone(),
    })
}

/// Pods that are gone whose tokens are still understood.
const REMEMBERED: usize = 256;

/// A number for each pod, which the reactor names it by.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    by_uid: HashMap<PodUid, u64>,
    by_token: HashMap<u64, PodUid>,
    /// Tokens of pods that are gone, the latest last: the reactor may still report them.
    forgotten: VecDeque<u64>,
    last: u64,
}

impl Tokens {
    fn of(&mut self, uid: &PodUid) -> u64 {
        if let Some(token) = self.by_uid.get(uid) {
            return *token;
        }
        self.last += 1;
        self.by_uid.insert(uid.clone(), self.last);
        self.by_token.insert(self.last, uid.clone());
        self.last
    }

    /// The pod behind a token.
    pub(super) fn uid(&self, token: u64) -> Option<&PodUid> {
        self.by_token.get(&token)
    }

    /// The pod's cgroup is gone or another; one made anew under its uid gets another token.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        let Some(token) = self.by_uid.remove(uid) else {
            return;
        };
        self.forgotten.push_back(token);
        if self.forgotten.len() > REMEMBERED
            && let Some(oldest) = self.forgotten.pop_front()
        {
            self.by_token.remove(&oldest);
        }
    }
}

/// What a plan is made from.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    pub tree: &'a Tree,
    /// Its names.
    pub layout: &'a CgroupLayout,
    pub levels: Levels,
    /// Once kubepods is at its level, how much below it usage is brought, bytes
    /// (`evictionMinimumReclaim`).
    pub minimum_reclaim: u64,
    /// Once the besteffort tier is at its level, to where usage is brought, bytes; `None` for its level.
    pub best_effort_target: Option<u64>,
    /// The pods of the sources.
    pub pods: &'a [&'a Pod],
    /// Pods that only their cgroups show, by uid, see [`unexplained`].
    pub unexplained: &'a [&'a PodUid],
    /// Those of them that are not settled yet.
    pub strangers: &'a [&'a PodUid],
    /// Where the pods' cgroups are, by uid.
    pub entries: &'a BTreeMap<PodUid, PodEntry>,
    /// Which of their containers are sandboxes, by the runtime's last list.
    pub runtime: &'a RuntimeState,
    /// From how much waiting for memory on a pod is evicted.
    pub pressure: PressureConfig,
    /// `pid.available`.
    pub pids: Option<pids::PidThreshold>,
    /// Who is never evicted.
    pub exemptions: &'a Exemptions,
    /// Who goes first.
    pub ranking: Ranking,
    /// Whether to act.
    pub mode: Mode,
    /// Where freezes are noted.
    pub frozen: Option<&'a Arc<FreezeRecord>>,
}

/// Opens what is not open in `before`, the plan in force. A scope or pod whose cgroup is not there is
/// left out.
pub(super) fn plan(inputs: &Inputs<'_>, before: &ArmedPlan, tokens: &mut Tokens) -> ArmedPlan {
    let open: HashMap<u64, &Arc<VictimFiles>> =
        before.victims.iter().map(|v| (v.token, &v.files)).collect();
    let victims: Vec<_> = candidates(inputs)
        .filter_map(|(uid, candidate)| victim(inputs, &open, uid, candidate, tokens))
        .collect();
    let mut unwatched = Vec::new();
    let scopes = (ScopeName::LEVELS.into_iter())
        .filter_map(|name| scope(inputs, before, name, &mut unwatched))
        .collect();
    ArmedPlan {
        scopes,
        unwatched,
        pids: pids::arm(inputs, before, &victims),
        victims,
        strangers: strangers::look(inputs, before),
        pressure: pressure::arm(inputs, before),
        ranking: inputs.ranking,
        cpus: cpus::online(),
        enforce: inputs.mode == Mode::Enforce,
    }
}

fn scope(
    inputs: &Inputs<'_>,
    before: &ArmedPlan,
    name: ScopeName,
    unwatched: &mut Vec<ScopeName>,
) -> Option<Arc<Scope>> {
    let level = inputs.levels.of_scope(name)?;
    // The kubelet's thresholds are about all pods; those of the tiers are ours.
    let target = match name.tier() {
        None => level.saturating_sub(inputs.minimum_reclaim),
        Some(QosClass::BestEffort) => inputs
            .best_effort_target
            .map_or(level, |target| target.min(level)),
        Some(_) => level,
    };
    let path = scope_path(inputs.layout, name);
    let memory_id = inputs.tree.memory_id(&path).ok()?;
    // Its notice took the kernel a grace period to register, so it is kept where it can be.
    let same = |s: &&Arc<Scope>| {
        (s.name, s.level, s.target, s.memory_id) == (name, level, target, memory_id)
    };
    if let Some(scope) = before.scopes.iter().find(same) {
        return Some(Arc::clone(scope));
    }
    let memory = match name {
        ScopeName::Node => MemoryReader::open_node(inputs.tree.hierarchies()),
        _ => MemoryReader::open(inputs.tree, &path),
    };
    let cgroup = name.is_cgroup().then_some(&path);
    match memory {
        Ok(memory) => Some(Arc::new(Scope {
            name,
            level,
            target,
            memory,
            memory_id,
            // The v1 controller's own notice; v2 has none.
            notice: Notice::of(
                cgroup.and_then(|path| MemoryThresholds::of(inputs.tree, path).ok()),
            ),
            // And v2's.
            events: cgroup.and_then(|path| MemoryEvents::open(inputs.tree, path).ok()),
        })),
        Err(error) => {
            if !error.is_gone() {
                // A plan is made many times a minute.
                if !before.unwatched.contains(&name) {
                    tracing::warn!(%error, scope = %name, cgroup = %path, "its level cannot be watched");
                }
                unwatched.push(name);
            }
            None
        }
    }
}

/// Every pod that may be evicted, by uid. One that was evicted stays in: it has nothing to kill, or new
/// processes.
fn candidates<'a>(inputs: &'a Inputs<'a>) -> impl Iterator<Item = (&'a PodUid, Candidate)> {
    let may_go = |pod: &&&Pod| inputs.exemptions.of(pod).is_none();
    let known = inputs.pods.iter().filter(may_go);
    let known = known.map(|pod| (&pod.uid, Candidate::of(pod, None)));
    let own_pod = inputs.exemptions.own_pod.as_ref();
    let others = inputs.unexplained.iter().filter_map(move |uid| {
        let is_ours = own_pod.is_some_and(|own| own == *uid);
        let entry = inputs.entries.get(*uid).filter(|_| !is_ours)?;
        Some((*uid, unexplained::candidate(entry.class)))
    });
    known.chain(others)
}

fn victim(
    inputs: &Inputs<'_>,
    open: &HashMap<u64, &Arc<VictimFiles>>,
    uid: &PodUid,
    candidate: Candidate,
    tokens: &mut Tokens,
) -> Option<Victim> {
    // Where it is, which is not where its manifest would have it when that changed since.
    let entry = inputs.entries.get(uid)?;
    let token = tokens.of(uid);
    let kinds = inputs.runtime.child_kinds(uid, entry.cgroups());
    let before = open.get(&token).filter(|files| files.path == entry.path);
    let files = match before {
        Some(files) if *files.kill.kinds() == kinds => Arc::clone(files),
        _ => match victim_files(inputs, &entry.path, kinds) {
            Ok(files) => Arc::new(files),
            Err(error) => {
                if !error.is_gone() {
                    tracing::warn!(%error, %uid, "the pod cannot be a victim");
                }
                return None;
            }
        },
    };
    Some(Victim {
        token,
        uid: uid.as_str().into(),
        place: entry.class,
        candidate,
        files,
    })
}

fn victim_files(
    inputs: &Inputs<'_>,
    path: &CgroupPath,
    kinds: ChildKinds,
) -> Result<VictimFiles, podwarden_cgroup::Error> {
    let memory = MemoryReader::open(inputs.tree, path)?;
    let seen = Seen::new(memory.usage().unwrap_or(0));
    let kill = KillHandle::open(inputs.tree, path)?.with_kinds(kinds);
    Ok(VictimFiles {
        path: path.to_owned(),
        memory,
        kill: match inputs.frozen {
            Some(record) => kill.with_record(Arc::clone(record)),
            None => kill,
        },
        seen,
    })
}

#[cfg(test)]
mod tests;
