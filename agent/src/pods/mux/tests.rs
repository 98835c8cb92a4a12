mod history;

use std::collections::BTreeMap;

use podwarden_policy::{Pod, QosClass};

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
        has_reason: false,
        deleting: false,
        resizing: false,
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

fn replace(pods: Vec<SourcedPod>) -> PodEvent {
    let errors = Vec::new();
    PodEvent::Replace { pods, errors }
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
    mux.apply(
        Source::Apiserver,
        PodEvent::Apply(Box::new(object("b", "b"))),
    );
    let set = mux.set();
    assert_eq!((set.pods.len(), set.waiting), (2, vec![Source::Apiserver]));
    mux.apply(Source::Apiserver, replace(Vec::new()));
    let set = mux.set();
    assert_eq!((set.pods.len(), set.waiting), (1, vec![]));
}

#[test]
fn a_source_that_is_not_configured_has_no_say() {
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
    assert!(set.mentions(&"a".into()) && set.mentions(&"b".into()) && !set.mentions(&"c".into()));
}

#[test]
fn an_unusable_pod_stays_as_it_was_until_it_is_gone() {
    let mut mux = both();
    mux.apply(Source::Apiserver, replace(vec![object("a", "a")]));
    let error = || PodEvent::Unusable(Box::new(broken("a")));
    assert_eq!(mux.apply(Source::Apiserver, error()), []);
    let set = mux.set();
    assert_eq!((set.pods.len(), set.errors.len()), (1, 1));
    // A list with it, unusable; then one without it.
    let (pods, errors) = (Vec::new(), vec![broken("a")]);
    let list = PodEvent::Replace { pods, errors };
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
    mux.apply(Source::Apiserver, PodEvent::Unusable(Box::new(broken("a"))));
    assert_eq!((mux.set().pods.len(), mux.set().errors.len()), (0, 1));
    let updates = mux.apply(
        Source::Apiserver,
        PodEvent::Apply(Box::new(object("a", "a"))),
    );
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
    // When one of them goes, the other remains.
    let mut without_file = mux.clone();
    without_file.apply(Source::File, replace(Vec::new()));
    assert_eq!(
        without_file.set().pods,
        [mirror("api-uid", "hash", "etcd-node-1")]
    );
    mux.apply(Source::Apiserver, PodEvent::Delete("api-uid".to_owned()));
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
    mux.apply(Source::Apiserver, PodEvent::Delete("a".to_owned()));
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
