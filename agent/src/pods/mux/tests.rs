use std::collections::{BTreeMap, VecDeque};

use podwarden_policy::{Pod, QosClass};
use proptest::prelude::*;

use super::*;
use crate::pods::{Origin, Phase, Problem};

const NODE: &str = "node-1";
const ALL: [Source; 4] = [
    Source::Apiserver,
    Source::Kubelet,
    Source::File,
    Source::Http,
];

fn object(uid: &str, name: &str) -> SourcedPod {
    SourcedPod {
        pod: Pod {
            uid: uid.into(),
            name: name.to_owned(),
            namespace: "shop".to_owned(),
            ..Pod::default()
        },
        qos: QosClass::BestEffort,
        origin: Origin::Object {
            uid: uid.to_owned(),
            mirror: false,
        },
        phase: Some(Phase::Running),
        containers: BTreeMap::new(),
        deleting: false,
    }
}

/// The mirror that a kubelet makes of a static pod whose uid is `hash`.
fn mirror(uid: &str, hash: &str, name: &str) -> SourcedPod {
    let mut pod = object(uid, name);
    pod.pod.uid = hash.into();
    pod.pod.critical = true;
    pod.origin = Origin::Object {
        uid: uid.to_owned(),
        mirror: true,
    };
    pod
}

/// As a kubelet tells of what it runs.
fn of_kubelet(uid: &str, name: &str, is_static: bool) -> SourcedPod {
    let mut pod = object(uid, name);
    pod.pod.static_pod = is_static;
    pod.pod.critical = is_static;
    pod.origin = Origin::Kubelet;
    pod
}

fn manifest(uid: &str, name: &str) -> SourcedPod {
    let origin = Origin::Manifest {
        file: format!("{name}.yaml").into(),
        document: 1,
    };
    let pod = object(uid, name).pod;
    SourcedPod::of_manifest(pod, QosClass::BestEffort, origin)
}

fn broken(uid: &str) -> SourceError {
    SourceError::Object {
        by: Source::Apiserver,
        uid: uid.to_owned(),
        pod: format!("shop/{uid}"),
        problem: Problem::Missing("spec".to_owned()),
    }
}

fn replace(pods: Vec<SourcedPod>) -> Event {
    let errors = Vec::new();
    Event::Replace { pods, errors }
}

fn both() -> Mux {
    Mux::new(NODE, [Source::Apiserver, Source::File])
}

fn ops(updates: &[Update]) -> Vec<(Op, &str)> {
    updates.iter().map(|u| (u.op, u.pod.key())).collect()
}

#[test]
fn a_list_gives_what_changed_in_the_kubelets_order() {
    let mut mux = both();
    let first = vec![
        object("a", "a"),
        object("b", "b"),
        object("c", "c"),
        object("d", "d"),
    ];
    let updates = mux.apply(Source::Apiserver, replace(first));
    assert_eq!(
        ops(&updates),
        ["a", "b", "c", "d"].map(|uid| (Op::Add, uid))
    );

    let changed = SourcedPod {
        qos: QosClass::Burstable,
        ..object("b", "b")
    };
    let ending = SourcedPod {
        deleting: true,
        ..object("c", "c")
    };
    let ended = SourcedPod {
        phase: Some(Phase::Succeeded),
        ..object("d", "d")
    };
    let second = vec![ended, ending, changed, object("e", "e")];
    let updates = mux.apply(Source::Apiserver, replace(second.clone()));
    let expected = [
        (Op::Remove, "a"),
        (Op::Add, "e"),
        (Op::Update, "b"),
        (Op::Delete, "c"),
        (Op::Reconcile, "d"),
    ];
    assert_eq!(ops(&updates), expected);
    assert_eq!(mux.apply(Source::Apiserver, replace(second)), []);
}

#[test]
fn every_source_has_to_tell_before_a_set_is_whole() {
    let mut mux = both();
    mux.apply(Source::File, replace(vec![manifest("a", "a")]));
    // A single change is no list.
    mux.apply(Source::Apiserver, Event::Apply(Box::new(object("b", "b"))));
    let set = mux.set();
    assert_eq!((set.pods.len(), set.waiting), (2, vec![Source::Apiserver]));
    mux.apply(Source::Apiserver, replace(Vec::new()));
    let set = mux.set();
    assert_eq!((set.pods.len(), set.waiting), (1, vec![]));
}

#[test]
fn a_source_that_nobody_configured_has_no_say() {
    let mut mux = Mux::new(NODE, [Source::File]);
    assert_eq!(
        mux.apply(Source::Apiserver, replace(vec![object("a", "a")])),
        []
    );
    assert_eq!(mux.set().pods, []);
}

#[test]
fn what_ended_is_known_and_does_not_count() {
    let mut mux = both();
    let ended = SourcedPod {
        phase: Some(Phase::Failed),
        ..object("a", "a")
    };
    mux.apply(Source::Apiserver, replace(vec![ended, object("b", "b")]));
    let set = mux.set();
    assert_eq!((set.pods.len(), set.ended.len()), (1, 1));
    assert!(set.mentions("a") && set.mentions("b") && !set.mentions("c"));
}

#[test]
fn an_unusable_pod_stays_as_it_was_until_it_is_gone() {
    let mut mux = both();
    mux.apply(Source::Apiserver, replace(vec![object("a", "a")]));
    let error = || Event::Unusable(Box::new(broken("a")));
    assert_eq!(mux.apply(Source::Apiserver, error()), []);
    let set = mux.set();
    assert_eq!((set.pods.len(), set.errors.len()), (1, 1));
    // A list with it, unusable; then one without it.
    let (pods, errors) = (Vec::new(), vec![broken("a")]);
    let list = Event::Replace { pods, errors };
    assert_eq!(mux.apply(Source::Apiserver, list), []);
    assert_eq!(mux.set().pods.len(), 1);
    let updates = mux.apply(Source::Apiserver, replace(Vec::new()));
    assert_eq!(ops(&updates), [(Op::Remove, "a")]);
    assert_eq!(
        mux.set(),
        PodSet {
            waiting: vec![Source::File],
            ..PodSet::default()
        }
    );
}

#[test]
fn a_pod_repaired_is_no_error_any_more() {
    let mut mux = both();
    mux.apply(Source::Apiserver, Event::Unusable(Box::new(broken("a"))));
    assert_eq!((mux.set().pods.len(), mux.set().errors.len()), (0, 1));
    let updates = mux.apply(Source::Apiserver, Event::Apply(Box::new(object("a", "a"))));
    assert_eq!(ops(&updates), [(Op::Add, "a")]);
    assert_eq!(mux.set().errors, []);
}

#[test]
fn a_static_pod_and_its_mirror_are_one() {
    let mut mux = both();
    let static_pod = SourcedPod {
        qos: QosClass::Guaranteed,
        ..manifest("ours", "etcd")
    };
    mux.apply(
        Source::File,
        replace(vec![static_pod, manifest("other", "proxy")]),
    );
    mux.apply(
        Source::Apiserver,
        replace(vec![mirror("api-uid", "hash", "etcd-node-1")]),
    );
    let set = mux.set();
    let found: Vec<_> = set
        .pods
        .iter()
        .map(|p| (p.pod.uid.as_str(), p.pod.name.as_str()))
        .collect();
    assert_eq!(found, [("hash", "etcd-node-1"), ("other", "proxy")]);
    // The manifest is what runs.
    assert_eq!(set.pods[0].qos, QosClass::Guaranteed);
    assert!(set.pods[0].pod.critical && !set.pods[1].pod.critical);
    // Whoever goes first, the other remains.
    let mut without_file = mux.clone();
    without_file.apply(Source::File, replace(Vec::new()));
    assert_eq!(
        without_file.set().pods,
        [mirror("api-uid", "hash", "etcd-node-1")]
    );
    mux.apply(Source::Apiserver, Event::Delete("api-uid".to_owned()));
    let names: Vec<_> = mux.set().pods.into_iter().map(|p| p.pod.name).collect();
    assert_eq!(names, ["proxy", "etcd"]);
}

#[test]
fn the_api_server_is_believed_before_a_manifest() {
    let mut mux = both();
    mux.apply(Source::File, replace(vec![manifest("a", "from-file")]));
    mux.apply(Source::Apiserver, replace(vec![object("a", "from-api")]));
    let set = mux.set();
    assert_eq!(set.pods, [object("a", "from-api")]);
    mux.apply(Source::Apiserver, Event::Delete("a".to_owned()));
    assert_eq!(mux.set().pods, [manifest("a", "from-file")]);
}

#[test]
fn a_kubelets_word_on_a_static_pod_is_that_on_what_runs() {
    let hash = "0123456789abcdef";
    let of_kubelet = of_kubelet(hash, "etcd-node-1", true);
    let mut mux = Mux::new(NODE, ALL);
    mux.apply(Source::File, replace(vec![manifest("own-hash", "etcd")]));
    mux.apply(Source::Kubelet, replace(vec![of_kubelet.clone()]));
    mux.apply(
        Source::Apiserver,
        replace(vec![mirror("m", hash, "etcd-node-1")]),
    );
    let set = mux.set();
    assert_eq!(set.pods, [of_kubelet]);
    // Without the kubelet it is the manifest's, under the mirror's name.
    let mut mux = Mux::new(NODE, [Source::Kubelet, Source::File]);
    mux.apply(Source::File, replace(vec![manifest("own-hash", "etcd")]));
    assert_eq!(mux.set().pods[0].pod.uid.as_str(), "own-hash");
}

#[test]
fn what_was_told_before_stands_until_the_source_reports() {
    let mut mux = Mux::new(NODE, [Source::Apiserver, Source::File]);
    mux.recall(Source::Apiserver, vec![object("a", "a"), object("b", "b")]);
    let set = mux.set();
    assert_eq!(set.pods.len(), 2);
    assert_eq!(set.waiting, [Source::Apiserver, Source::File]);
    let updates = mux.apply(Source::Apiserver, replace(vec![object("b", "b")]));
    let ops: Vec<_> = updates.iter().map(|u| (u.op, u.pod.key())).collect();
    assert_eq!(ops, [(Op::Remove, "a")]);
    assert_eq!(mux.set().waiting, [Source::File]);
}

/// A source as it really is, and the events of it that the mux has not been told yet.
struct World {
    source: Source,
    pods: BTreeMap<String, SourcedPod>,
    errors: BTreeMap<String, SourceError>,
    log: VecDeque<Event>,
    /// Events were lost: only a list helps.
    behind: bool,
}

impl World {
    fn new(source: Source) -> Self {
        Self {
            source,
            pods: BTreeMap::new(),
            errors: BTreeMap::new(),
            log: VecDeque::new(),
            // A source begins with a list.
            behind: true,
        }
    }

    /// Something happens to pod `at`.
    fn happen(&mut self, step: &Step) {
        let at = step.pod;
        let uid = format!("{}-{at}", self.source);
        let fresh = match (self.source, at % 4) {
            (Source::File | Source::Http, 0) => manifest(&uid, &format!("static-{at}")),
            (Source::File | Source::Http, 1) => {
                manifest(&format!("shared-{at}"), &format!("shared-{at}"))
            }
            (Source::File | Source::Http, _) => manifest(&uid, &uid),
            (Source::Apiserver, 0) => {
                mirror(&uid, &format!("hash-{at}"), &format!("static-{at}-{NODE}"))
            }
            (Source::Apiserver, 1) => object(&format!("shared-{at}"), &format!("shared-{at}")),
            (Source::Apiserver, _) => object(&uid, &uid),
            (Source::Kubelet, 0) => {
                of_kubelet(&format!("hash-{at}"), &format!("static-{at}-{NODE}"), true)
            }
            (Source::Kubelet, 1) => {
                of_kubelet(&format!("shared-{at}"), &format!("shared-{at}"), false)
            }
            (Source::Kubelet, _) => of_kubelet(&uid, &uid, false),
        };
        let key = fresh.key().to_owned();
        let mut pod = self.pods.get(&key).cloned().unwrap_or(fresh);
        match step.what {
            0 | 1 => {}
            2 => pod.pod.priority += 1,
            3 => {
                let phases = [Phase::Pending, Phase::Running, Phase::Failed];
                pod.phase = Some(phases[usize::from(step.much % 3)]);
            }
            4 => pod.deleting = true,
            5 if self.source == Source::Apiserver => {
                let error = broken(&key);
                self.errors.insert(key, error.clone());
                self.log.push_back(Event::Unusable(Box::new(error)));
                return;
            }
            _ => {
                self.pods.remove(&key);
                self.errors.remove(&key);
                self.log.push_back(Event::Delete(key));
                return;
            }
        }
        self.errors.remove(&key);
        self.pods.insert(key, pod.clone());
        self.log.push_back(Event::Apply(Box::new(pod)));
    }

    fn list(&self) -> Event {
        let usable = self
            .pods
            .iter()
            .filter(|(key, _)| !self.errors.contains_key(*key));
        Event::Replace {
            pods: usable.map(|(_, pod)| pod.clone()).collect(),
            errors: self.errors.values().cloned().collect(),
        }
    }

    /// Tells the mux some of what it does not know, or is cut, or lists.
    fn speak(&mut self, step: &Step) -> Vec<Event> {
        if self.behind || step.talk == 0 {
            self.behind = false;
            self.log.clear();
            return vec![self.list()];
        }
        if step.talk == 1 {
            // Cut off, and its history is compacted before it is back.
            self.log.clear();
            self.behind = true;
            return Vec::new();
        }
        let some = usize::from(step.much).min(self.log.len());
        let told: Vec<_> = self.log.drain(..some).collect();
        if step.talk == 2 {
            // Cut off, and resumed from before what was told last: it is told again.
            return [told.clone(), told].concat();
        }
        told
    }
}

#[derive(Debug, Clone)]
struct Step {
    source: u8,
    pod: u8,
    what: u8,
    talk: u8,
    much: u8,
}

fn step() -> impl Strategy<Value = Step> {
    (0..4_u8, 0..24_u8, 0..8_u8, 0..40_u8, 0..6_u8).prop_map(|(source, pod, what, talk, much)| {
        Step {
            source,
            pod,
            what,
            talk,
            much,
        }
    })
}

/// A listener that knows of a source only what updates tell it.
#[derive(Default, PartialEq, Debug)]
struct Listener(BTreeMap<(Source, String), SourcedPod>);

impl Listener {
    fn take(&mut self, update: Update) {
        let key = (update.source, update.pod.key().to_owned());
        let before = self.0.get(&key);
        match update.op {
            Op::Add => assert_eq!(before, None, "added twice"),
            Op::Remove => assert_eq!(before, Some(&update.pod), "removed as it never was"),
            _ => assert_ne!(before, Some(&update.pod), "told without a change"),
        }
        if update.op == Op::Remove {
            self.0.remove(&key);
        } else {
            assert!(
                update.op == Op::Add || before.is_some(),
                "{:?} of an unknown pod",
                update.op
            );
            self.0.insert(key, update.pod);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    /// 5,000 events of four sources, some lost and some told twice, end as the lists alone do. A
    /// pod that was broken before it was last listed may be known or not; here it is repaired first.
    #[test]
    fn any_history_ends_as_its_last_lists_do(steps in prop::collection::vec(step(), 5000)) {
        let mut worlds = ALL.map(World::new);
        let mut mux = Mux::new(NODE, ALL);
        let mut listener = Listener::default();
        let mut whole = false;
        for step in &steps {
            let world = &mut worlds[usize::from(step.source)];
            world.happen(step);
            for event in world.speak(step) {
                for update in mux.apply(world.source, event) {
                    listener.take(update);
                }
            }
            // Once whole, it stays so, whatever is cut off.
            let waiting = mux.waiting().count();
            prop_assert!(!whole || waiting == 0);
            whole |= waiting == 0;
        }
        let mut fresh = Mux::new(NODE, ALL);
        for world in &mut worlds {
            world.errors.clear();
            for update in mux.apply(world.source, world.list()) {
                listener.take(update);
            }
            fresh.apply(world.source, world.list());
        }
        prop_assert_eq!(&mux, &fresh);
        prop_assert_eq!(mux.set(), fresh.set());
        let mut told = Listener::default();
        for (source, state) in &mux.sources {
            told.0.extend(state.pods.iter().map(|(key, pod)| ((*source, key.clone()), pod.clone())));
        }
        prop_assert_eq!(listener, told);
        let set = mux.set();
        let uids: BTreeSet<_> = set.pods.iter().chain(&set.ended).map(|p| &p.pod.uid).collect();
        prop_assert_eq!(uids.len(), set.pods.len() + set.ended.len());
    }
}
