//! The thread: waits until a directory is made, a file is written, or the pods change.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::AsFd as _,
    sync::{Arc, mpsc::Receiver},
    time::{Duration, Instant},
};

use nix::sys::eventfd::EventFd;
use podwarden_cgroup::{CgroupPath, Notice, Reading, WatchId, WriteWatch, is_setting};
use podwarden_policy::{
    PodUid, QosClass,
    plan::{self, Snapshot},
};

use super::{
    Aim, Parts,
    files::directories_in,
    followed::{Followed, PROPERTIES},
};
use crate::{
    base::{
        bell::{ring, silence, wait},
        worker::take_all,
    },
    kernel::realtime,
};

/// How soon a watch that could not be made is tried again.
const RETRY: Duration = Duration::from_millis(250);

/// What a watch is of.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Subject {
    /// The besteffort tier: pods come.
    Tier,
    /// A pod's cgroup.
    Pod(PodUid),
    /// A container's, by the last component of its path.
    Container(PodUid, String),
}

/// A cgroup to look at: of a pod, or of its container.
type Place = (PodUid, Option<String>);

pub(super) struct Thread {
    parts: Parts,
    bell: Arc<EventFd>,
    watch: WriteWatch,
    subjects: HashMap<WatchId, Subject>,
    /// `None` before the first aim.
    terms: Option<Snapshot>,
    pods: BTreeMap<PodUid, Followed>,
    /// The last component of a pod's path -> the pod.
    components: HashMap<String, PodUid>,
    tier: BTreeSet<WatchId>,
}

impl Thread {
    pub(super) fn new(parts: Parts, bell: Arc<EventFd>) -> io::Result<Self> {
        Ok(Self {
            parts,
            bell,
            watch: WriteWatch::new().map_err(io::Error::other)?,
            subjects: HashMap::new(),
            terms: None,
            pods: BTreeMap::new(),
            components: HashMap::new(),
            tier: BTreeSet::new(),
        })
    }

    /// Runs until the channel closes.
    pub(super) fn run(mut self, messages: &Receiver<Aim>) {
        if self.parts.real_time && !realtime::make_fifo() {
            tracing::info!(
                "SCHED_FIFO was refused: on a busy node a new container gets its values late"
            );
        }
        loop {
            self.sleep();
            silence(&self.bell);
            // An older aim must not undo what the reconciler writes by a newer one.
            if !self.take_messages(messages) {
                return;
            }
            self.take_notices();
            self.take_names();
            self.look_at_starting();
            self.expire();
        }
    }

    fn sleep(&self) {
        let now = Instant::now();
        let expiry = self.pods.values().filter_map(Followed::next_expiry).min();
        let expiry = expiry.map(|at| at.saturating_duration_since(now) + Duration::from_millis(1));
        let retry = (!self.pods.is_empty() && self.tier.is_empty()).then_some(RETRY);
        let starting = self.pods.values().flat_map(|pod| pod.starting(now));
        let starting = starting.map(|(_, pause)| pause).min();
        let timeout = expiry.into_iter().chain(retry).chain(starting).min();
        wait([self.watch.as_fd(), self.bell.as_fd()], timeout);
    }

    /// False once there is nothing more to do.
    fn take_messages(&mut self, messages: &Receiver<Aim>) -> bool {
        if !take_all(messages, |aim| self.take(aim)) {
            return false;
        }
        if self.tier.is_empty() && !self.pods.is_empty() {
            // It may come after the first pod.
            self.watch_tier();
        }
        true
    }

    /// Other pods, or other terms.
    fn take(&mut self, aim: Aim) {
        let now = Instant::now();
        let Aim { mut terms, pods } = aim;
        let mut before = std::mem::take(&mut self.pods);
        self.components.clear();
        let mut all = Vec::new();
        for asking in pods {
            let uid = asking.pod.uid.clone();
            let followed = match before.remove(&uid) {
                Some(mut followed) => {
                    followed.update(&mut terms, asking);
                    let containers = followed.containers.keys().cloned().map(Some);
                    all.extend(containers.chain([None]).map(|c| (uid.clone(), c)));
                    followed
                }
                None => Followed::new(&mut terms, asking, now),
            };
            let path = self.parts.layout.path(followed.name());
            if let Some(component) = path.last() {
                self.components.insert(component.to_owned(), uid.clone());
            }
            self.pods.insert(uid, followed);
        }
        self.terms = Some(terms);
        for (_, followed) in before {
            let containers = followed.containers.into_values();
            let watches = containers.flat_map(|container| container.watches);
            self.unwatch(watches.chain(followed.own.watches).collect());
        }
        // A pod's cgroup may have been there before its pod was known.
        let unseen = self.pods.iter().filter(|(_, p)| p.own.watches.is_empty());
        let unseen: Vec<_> = unseen.map(|(uid, _)| uid.clone()).collect();
        for uid in unseen {
            all.extend(self.pod_made(&uid));
        }
        self.settle(all);
    }

    fn watch_tier(&mut self) {
        let kubepods = &self.parts.layout.kubepods;
        let path = self.parts.layout.path(&kubepods.tier(QosClass::BestEffort));
        self.tier = self.watch(&path, &Subject::Tier);
        // One that was made before the watch.
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        let places = uids.iter().flat_map(|uid| self.pod_made(uid)).collect();
        self.settle(places);
    }

    /// Watches what there is of a cgroup.
    fn watch(&mut self, path: &CgroupPath, subject: &Subject) -> BTreeSet<WatchId> {
        let mut ids = BTreeSet::new();
        for directory in self.parts.directories(path) {
            let id = match subject {
                Subject::Container(..) => self.watch.directory(&directory),
                Subject::Tier | Subject::Pod(_) => self.watch.directory_and_children(&directory),
            };
            match id {
                Ok(id) => {
                    self.subjects.insert(id, subject.clone());
                    ids.insert(id);
                }
                Err(error) if error.is_gone() => {}
                // The reconciler's pass says which limit of the kernel's it is.
                Err(error) => {
                    tracing::debug!(%error, cgroup = %path, "a new cgroup is not watched");
                }
            }
        }
        ids
    }

    fn unwatch(&mut self, ids: BTreeSet<WatchId>) {
        for id in ids {
            self.watch.remove(id);
            self.subjects.remove(&id);
        }
    }

    fn take_notices(&mut self) {
        let mut seen = Vec::new();
        let reading = self.watch.read_all(|id, notice, name| {
            if let Some(subject) = self.subjects.get(&id)
                && (notice == Notice::Made || is_setting(name))
            {
                seen.push((subject.clone(), notice, name.to_owned()));
            }
        });
        let mut places: Vec<Place> = Vec::new();
        for (subject, notice, name) in seen {
            match (subject, notice) {
                (Subject::Tier, Notice::Made) => {
                    if let Some(uid) = self.components.get(&name).cloned() {
                        places.extend(self.pod_made(&uid));
                    }
                }
                (Subject::Tier, Notice::Written) => {}
                (Subject::Pod(uid), Notice::Made) => {
                    places.extend(self.container_made(&uid, &name));
                }
                (Subject::Pod(uid), Notice::Written) => places.push((uid, None)),
                (Subject::Container(uid, name), _) => places.push((uid, Some(name))),
            }
        }
        match reading {
            // What was dropped may have been any of them.
            Ok(Reading::Overflowed) => {
                let uids: Vec<_> = self.pods.keys().cloned().collect();
                places.extend(uids.iter().flat_map(|uid| self.pod_made(uid)));
            }
            Ok(Reading::Drained) => {}
            Ok(Reading::More) => ring(&self.bell),
            Err(error) => tracing::warn!(%error, "new cgroups could not be read of"),
        }
        self.settle(places);
    }

    /// A pod's cgroup is there, perhaps in one hierarchy only: watches it, and finds what was made in it before.
    fn pod_made(&mut self, uid: &PodUid) -> Vec<Place> {
        let Some(pod) = self.pods.get(uid) else {
            return Vec::new();
        };
        let path = self.parts.layout.path(pod.name());
        let ids = self.watch(&path, &Subject::Pod(uid.clone()));
        let mut places: Vec<Place> = Vec::new();
        if ids.is_empty() {
            return places;
        }
        let mut gone = BTreeSet::new();
        if let Some(pod) = self.pods.get_mut(uid) {
            // One that was made anew has other watches.
            gone = pod.own.watches.difference(&ids).copied().collect();
            if pod.own.watches != ids {
                pod.own.renew(ids);
            }
        }
        self.unwatch(gone);
        for directory in self.parts.directories(&path) {
            for name in directories_in(&directory) {
                places.extend(self.container_made(uid, &name));
            }
        }
        // Children first: on v1 the kernel refuses a parent's quota below its child's.
        places.push((uid.clone(), None));
        places
    }

    /// Names the containers that the runtime knows, and asks it for the others.
    fn take_names(&mut self) {
        let Some((names, terms)) = self.parts.names.as_ref().zip(self.terms.as_mut()) else {
            return;
        };
        let mut places: Vec<Place> = Vec::new();
        for (uid, pod) in &mut self.pods {
            let named = pod.name_containers(terms, |id, sought| {
                if !sought {
                    names.seen(id, true);
                }
                let known = names.known();
                Some(known.state.container(uid, id)?.name.to_string())
            });
            places.extend(named.into_iter().map(|c| (uid.clone(), Some(c))));
        }
        self.settle(places);
    }

    /// A container's cgroup is there, perhaps in one hierarchy only.
    fn container_made(&mut self, uid: &PodUid, component: &str) -> Option<Place> {
        let terms = self.terms.as_mut()?;
        let pod = self.pods.get_mut(uid)?;
        pod.container_made(terms, component, Instant::now());
        if !pod.containers.contains_key(component) {
            return None;
        }
        let path = self.parts.layout.path(pod.name()).child(component);
        let ids = self.watch(
            &path,
            &Subject::Container(uid.clone(), component.to_owned()),
        );
        let container = self.pods.get_mut(uid)?.containers.get_mut(component)?;
        container.watches.extend(ids);
        Some((uid.clone(), Some(component.to_owned())))
    }

    /// Looks at cgroups, and writes what they lack.
    fn settle(&mut self, places: Vec<Place>) {
        let mut done = BTreeSet::new();
        for place in places {
            if done.insert(place.clone()) {
                let (uid, container) = &place;
                self.look(uid, container.as_deref());
            }
        }
    }

    fn look(&mut self, uid: &PodUid, container: Option<&str>) {
        let Some((pod, terms)) = self.pods.get_mut(uid).zip(self.terms.as_ref()) else {
            return;
        };
        let new = match container {
            None => Some(&pod.own),
            Some(component) => pod.containers.get(component),
        };
        if !new.is_some_and(|new| new.is_followed(Instant::now())) {
            return;
        }
        let Some(desired) = pod.desired(container) else {
            return;
        };
        let path = self.parts.layout.path(&desired.name);
        let observed = self.parts.tree.read_some(&path, &PROPERTIES);
        let observed = BTreeMap::from([(desired.name.clone(), observed)]);
        let mut actions = plan::corrections(terms, [desired], &observed);
        let held = self.parts.hold_back(&path, container, &mut actions);
        let new = match container {
            None => Some(&mut pod.own),
            Some(component) => pod.containers.get_mut(component),
        };
        if let Some(new) = new {
            new.wrote(actions.len());
            new.starting = held && container.is_some();
        }
        for action in &actions {
            self.parts.write(&path, action);
        }
    }

    fn look_at_starting(&mut self) {
        let now = Instant::now();
        let places = self.pods.iter().flat_map(|(uid, pod)| {
            let components = pod.starting(now).map(|(component, _)| component.clone());
            components.map(|component| (uid.clone(), Some(component)))
        });
        let places = places.collect();
        self.settle(places);
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let pods = self.pods.values_mut();
        let ids = pods.flat_map(|pod| pod.expire(now)).collect();
        self.unwatch(ids);
    }
}
