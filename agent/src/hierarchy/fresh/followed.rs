//! One pod: what its cgroups are to hold, and how long each is new.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use podwarden_cgroup::WatchId;
use podwarden_policy::{
    QosClass,
    desired::{self, Desired},
    name::{CgroupName, parse_container},
    plan::{ContainerCgroup, Snapshot},
    settings::Property,
};

use super::{Asking, FRESH};

/// The values that reclaimed resources decide.
pub(super) const PROPERTIES: [Property; 3] =
    [Property::CpuShares, Property::CpuMax, Property::MemoryLimit];

/// Most writes to one cgroup while it is new: another program that never rests is left to the rate limit of
/// [`crate::hierarchy::drift`].
const MOST_WRITES: u32 = 32;

/// Between two looks at a container that is starting, for so long, and then.
const OFTEN: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_secs(2);
const RARELY: Duration = Duration::from_millis(50);

/// A container that was made and not started is given up after this.
const LONGEST_START: Duration = Duration::from_secs(600);

/// A cgroup that is new.
#[derive(Debug)]
pub(super) struct New {
    since: Instant,
    pub(super) watches: BTreeSet<WatchId>,
    writes: u32,
    /// Something is to be written once the container's program is executed.
    pub(super) starting: bool,
    /// Its name was looked for.
    sought: bool,
}

impl New {
    pub(super) fn at(since: Instant) -> Self {
        Self {
            since,
            watches: BTreeSet::new(),
            writes: 0,
            starting: false,
            sought: false,
        }
    }

    /// True where values may be written now.
    pub(super) fn is_followed(&self, now: Instant) -> bool {
        self.writes < MOST_WRITES && now < self.until()
    }

    pub(super) fn wrote(&mut self, writes: usize) {
        let writes = u32::try_from(writes).unwrap_or(u32::MAX);
        self.writes = self.writes.saturating_add(writes);
    }

    /// It was made anew.
    pub(super) fn renew(&mut self, watches: BTreeSet<WatchId>) {
        *self = Self {
            watches,
            ..Self::at(Instant::now())
        };
    }

    /// How soon to look again whether it has started.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let long = now.saturating_duration_since(self.since) > SOON;
        self.starting.then_some(if long { RARELY } else { OFTEN })
    }

    fn until(&self) -> Instant {
        self.since + if self.starting { LONGEST_START } else { FRESH }
    }
}

#[derive(Debug)]
pub(super) struct Followed {
    asking: Asking,
    name: CgroupName,
    /// The pod's cgroup; it is watched for as long as the pod is there, because containers may start again.
    pub(super) own: New,
    /// By the last component of their paths.
    pub(super) containers: BTreeMap<String, New>,
    /// The pod first.
    desired: Vec<Desired>,
}

impl Followed {
    pub(super) fn new(terms: &mut Snapshot, asking: Asking, now: Instant) -> Self {
        let mut this = Self {
            name: terms.kubepods.pod(QosClass::BestEffort, &asking.pod.uid),
            asking,
            own: New::at(now),
            containers: BTreeMap::new(),
            desired: Vec::new(),
        };
        this.plan(terms);
        this
    }

    /// Its cgroup.
    pub(super) fn name(&self) -> &CgroupName {
        &self.name
    }

    /// Another spec, or more names of containers.
    pub(super) fn update(&mut self, terms: &mut Snapshot, asking: Asking) {
        self.asking = asking;
        self.plan(terms);
    }

    /// A container's cgroup is there. False for what is no container, or is known to be there.
    pub(super) fn container_made(
        &mut self,
        terms: &mut Snapshot,
        component: &str,
        now: Instant,
    ) -> bool {
        if parse_container(component).is_none() || self.containers.contains_key(component) {
            return false;
        }
        self.containers.insert(component.to_owned(), New::at(now));
        self.plan(terms);
        true
    }

    /// Names containers where a value depends on it: `find` has the name of an id, and whether it was called for that
    /// one before. Returns the last components of the paths of those named now.
    pub(super) fn name_containers(
        &mut self,
        terms: &mut Snapshot,
        find: impl Fn(&str, bool) -> Option<String>,
    ) -> Vec<String> {
        if self.asking.pod.containers.len() < 2 {
            return Vec::new();
        }
        let mut named = Vec::new();
        for (component, new) in &mut self.containers {
            if self.asking.containers.contains_key(component) {
                continue;
            }
            let id = parse_container(component).map(|name| name.id);
            let name = id.and_then(|id| find(id, new.sought));
            new.sought = true;
            if let Some(name) = name {
                self.asking.containers.insert(component.clone(), name);
                named.push(component.clone());
            }
        }
        if !named.is_empty() {
            self.plan(terms);
        }
        named
    }

    /// Forgets the containers that are new no longer; returns their watches.
    pub(super) fn expire(&mut self, now: Instant) -> BTreeSet<WatchId> {
        let old = self
            .containers
            .extract_if(.., |_, container| now >= container.until());
        old.flat_map(|(_, container)| container.watches).collect()
    }

    /// The containers that are starting, and how soon to look at them.
    pub(super) fn starting(&self, now: Instant) -> impl Iterator<Item = (&String, Duration)> {
        let all = self.containers.iter();
        all.filter_map(move |(component, new)| Some((component, new.pause(now)?)))
    }

    /// When a container is new no longer.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.containers.values().map(New::until).min()
    }

    /// The values of the pod's cgroup, or of one container's.
    pub(super) fn desired(&self, container: Option<&str>) -> Option<&Desired> {
        match container {
            None => self.desired.iter().find(|one| one.name == self.name),
            Some(component) => {
                let name = self.name.child(component);
                self.desired.iter().find(|one| one.name == name)
            }
        }
    }

    fn plan(&mut self, terms: &mut Snapshot) {
        terms.pods = vec![self.asking.pod.clone()];
        terms.container_cgroups = self
            .containers
            .keys()
            .map(|component| ContainerCgroup {
                pod: self.asking.pod.uid.clone(),
                container: self.asking.containers.get(component).cloned(),
                cgroup: self.name.child(component.as_str()),
            })
            .collect();
        self.desired = desired::tree(terms);
        self.desired
            .retain(|cgroup| cgroup.name.is_within(&self.name));
        for cgroup in &mut self.desired {
            let ours = |property| PROPERTIES.contains(&property);
            cgroup.settings.retain(|(s, _)| ours(s.property()));
        }
    }
}
