//! Many sources, one set of pods. Values only: no IO, no clock.
//!
//! Problem: each source lists its pods at its own pace, in whole lists and in single changes, some of them
//! twice, and it may be cut off and begin anew. The agent acts on one set.
//!
//! Approach: the state of every source is kept apart from that of the others, as in the kubelet's
//! `podStorage` (`pkg/kubelet/config/config.go`); [`Mux::set`] joins them.
//!
//! Properties, each with a test:
//!
//! - Convergence: after any sequence of events the state of a source follows from its last whole list and
//!   the changes since then, and the set depends on those states alone.
//! - The updates of [`Mux::apply`], carried out one after another, lead from the state before to the state
//!   after. A pod that has not changed has none.
//! - A pod that becomes unusable stays as it last was; it goes only when its source no longer has it.
//! - Until every source has sent a whole list, [`PodSet::waiting`] names those that have not: such a set
//!   removes nothing.

use std::collections::{BTreeMap, BTreeSet};

use podwarden_policy::PodUid;

use super::{Origin, PodSet, Since, Source, SourceError, SourcedPod};

/// A change of what a source has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodEvent {
    /// Everything it has now, and what of it cannot be used.
    Replace {
        pods: Vec<SourcedPod>,
        errors: Vec<SourceError>,
    },
    /// A pod is new or changed.
    Apply(Box<SourcedPod>),
    /// A pod is new or changed, and cannot be used.
    Unusable(Box<SourceError>),
    /// A pod is gone; by its [`SourcedPod::key`].
    Delete(String),
}

/// A change of a pod, in the kubelet's words (`pkg/kubelet/types/pod_update.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Op {
    /// The source no longer has it.
    Remove,
    Add,
    /// Its spec changed.
    Update,
    /// It has a deletion timestamp.
    Delete,
    /// Only its status changed.
    Reconcile,
}

/// A change of one source's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    pub source: Source,
    pub op: Op,
    /// The pod as it is now; as it last was for [`Op::Remove`].
    pub pod: SourcedPod,
}

/// What one source has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    /// It has sent a whole list.
    reported: bool,
    pods: BTreeMap<String, SourcedPod>,
    /// Of pods whose key is known.
    errors: BTreeMap<String, SourceError>,
    /// Of the last whole list.
    unnamed: Vec<SourceError>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mux {
    node_name: String,
    sources: BTreeMap<Source, State>,
}

impl Mux {
    /// A kubelet appends `node_name` to the names of static pods.
    pub fn new(node_name: &str, sources: impl IntoIterator<Item = Source>) -> Self {
        let sources = sources.into_iter().map(|source| (source, State::default()));
        Self {
            node_name: node_name.to_owned(),
            sources: sources.collect(),
        }
    }

    /// Returns the changes in the order in which the kubelet sends them: removed, added, updated, deleted,
    /// reconciled. A source that is not configured changes nothing.
    pub fn apply(&mut self, source: Source, event: PodEvent) -> Vec<Update> {
        let Some(state) = self.sources.get_mut(&source) else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        match event {
            PodEvent::Replace { pods, errors } => state.replace(pods, errors, &mut changes),
            PodEvent::Apply(pod) => changes.extend(state.put(*pod)),
            PodEvent::Unusable(error) => state.unusable(*error),
            PodEvent::Delete(key) => changes.extend(state.remove(&key)),
        }
        // Stable: by key within an operation.
        changes.sort_by_key(|(op, _)| *op);
        let update = |(op, pod)| Update { source, op, pod };
        changes.into_iter().map(update).collect()
    }

    /// Applies what an agent before this one had from a source. The source still counts as waiting: its
    /// first list replaces this.
    pub fn recall(&mut self, source: Source, pods: Vec<SourcedPod>) {
        if let Some(state) = self.sources.get_mut(&source) {
            let pods = pods.into_iter().map(|pod| (pod.key().to_owned(), pod));
            state.pods.extend(pods);
        }
    }

    /// How many pods a source has.
    pub fn count(&self, source: Source) -> usize {
        self.sources.get(&source).map_or(0, |s| s.pods.len())
    }

    /// Every source's pods as one.
    ///
    /// Of a pod that two sources have, that of the lesser [`Source`] counts. The mirror of a static pod has the
    /// uid of the static pod, which names its cgroup; a manifest that is known too counts before the mirror,
    /// because it is what runs, under the mirror's name.
    pub fn set(&self) -> PodSet {
        let mut by_uid: BTreeMap<PodUid, SourcedPod> = BTreeMap::new();
        for (source, state) in &self.sources {
            for pod in state.pods.values() {
                let pod = match source {
                    Source::Apiserver | Source::Kubelet => pod.clone(),
                    Source::File | Source::Http => self.as_mirrored(pod),
                };
                let settled = by_uid
                    .get(&pod.pod.uid)
                    .is_some_and(|other| !other.is_mirror());
                if !settled {
                    by_uid.insert(pod.pod.uid.clone(), pod);
                }
            }
        }
        let (ended, pods) = by_uid.into_values().partition(SourcedPod::has_ended);
        let states = self.sources.values();
        let errors = states.flat_map(|s| s.unnamed.iter().chain(s.errors.values()));
        PodSet {
            pods,
            ended,
            errors: errors.cloned().collect(),
            waiting: self.waiting().collect(),
            since: Since::default(),
        }
    }

    /// The sources that have not sent a whole list yet.
    pub fn waiting(&self) -> impl Iterator<Item = Source> {
        let waiting = self.sources.iter().filter(|(_, state)| !state.reported);
        waiting.map(|(source, _)| *source)
    }

    /// A static pod as the kubelet runs it: under its mirror's name, with the kubelet's uid for it (a
    /// hash of its own where the manifest writes none), and exempt from eviction.
    fn as_mirrored(&self, pod: &SourcedPod) -> SourcedPod {
        let mut pod = pod.clone();
        let full = format!("{}-{}", pod.pod.name, self.node_name);
        // A kubelet lists the static pod itself, under that name and uid as well.
        let others = [Source::Apiserver, Source::Kubelet];
        let others = others.iter().filter_map(|source| self.sources.get(source));
        let mut others = others.flat_map(|state| state.pods.values());
        let mirror = others.find(|other| {
            let of_kubelet = other.origin == Origin::Kubelet && other.pod.static_pod;
            (other.is_mirror() || of_kubelet)
                && other.pod.namespace == pod.pod.namespace
                && (other.pod.name == full || other.pod.uid == pod.pod.uid)
        });
        if let Some(mirror) = mirror {
            pod.pod.uid = mirror.pod.uid.clone();
            pod.pod.name.clone_from(&mirror.pod.name);
            pod.pod.critical = true;
            pod.phase = mirror.phase;
            pod.containers.clone_from(&mirror.containers);
        }
        pod
    }
}

type Change = (Op, SourcedPod);

impl State {
    fn replace(
        &mut self,
        pods: Vec<SourcedPod>,
        errors: Vec<SourceError>,
        changes: &mut Vec<Change>,
    ) {
        self.reported = true;
        let unusable: BTreeSet<_> = errors.iter().filter_map(SourceError::key).collect();
        let listed: BTreeSet<_> = pods.iter().map(SourcedPod::key).chain(unusable).collect();
        let known = self.pods.keys().chain(self.errors.keys());
        let gone = known.filter(|key| !listed.contains(key.as_str()));
        let gone: BTreeSet<_> = gone.cloned().collect();
        self.unnamed.clear();
        for key in gone {
            changes.extend(self.remove(&key));
        }
        for pod in pods {
            changes.extend(self.put(pod));
        }
        for error in errors {
            self.unusable(error);
        }
    }

    fn put(&mut self, pod: SourcedPod) -> Option<Change> {
        self.errors.remove(pod.key());
        let op = match self.pods.get(pod.key()) {
            None => Op::Add,
            Some(before) => change(before, &pod)?,
        };
        self.pods.insert(pod.key().to_owned(), pod.clone());
        Some((op, pod))
    }

    fn unusable(&mut self, error: SourceError) {
        match error.key().map(str::to_owned) {
            Some(key) => drop(self.errors.insert(key, error)),
            None if self.unnamed.contains(&error) => {}
            None => self.unnamed.push(error),
        }
    }

    fn remove(&mut self, key: &str) -> Option<Change> {
        self.errors.remove(key);
        let pod = self.pods.remove(key)?;
        Some((Op::Remove, pod))
    }
}

/// `checkAndUpdatePod` of kubelet `pkg/kubelet/config/config.go`.
fn change(before: &SourcedPod, now: &SourcedPod) -> Option<Op> {
    if before == now {
        return None;
    }
    let status_aside = SourcedPod {
        phase: now.phase,
        containers: now.containers.clone(),
        ..before.clone()
    };
    Some(match status_aside == *now {
        true => Op::Reconcile,
        false if now.deleting => Op::Delete,
        false => Op::Update,
    })
}

#[cfg(test)]
mod tests;
