mod hostile;
use std::{fs, sync::Arc, time::Duration};

use podwarden_policy::{Bytes, ContainerKind, MilliCpu, Pod, model::ReclaimedTier};

use super::*;

type Receiver = tokio::sync::watch::Receiver<Arc<Manifests>>;

const GUARANTEED: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, uid: 11111111-2222-3333-4444-555555555555}
spec:
  containers:
  - name: app
    resources: {limits: {cpu: 2, memory: 1Gi}}
";

fn minimal(name: &str, uid: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, uid: \"{uid}\"}}\nspec: {{containers: [{{name: c}}]}}\n"
    )
}

/// The only pod of a text.
fn one(text: &str) -> Result<(Pod, QosClass), Problem> {
    let mut parsed = manifest::parse(text);
    assert_eq!(parsed.len(), 1, "{parsed:?}");
    parsed.remove(0).1
}

fn dir_with(files: &[(&str, &str)]) -> (tempfile::TempDir, ManifestDir) {
    let temp = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(temp.path().join(name), text).unwrap();
    }
    let dir = ManifestDir::new(temp.path());
    (temp, dir)
}

fn names(set: &Manifests) -> Vec<&str> {
    set.pods.iter().map(|p| p.pod.name.as_str()).collect()
}

#[test]
fn limits_are_requests_where_those_are_not_written() {
    let (pod, qos) = one(GUARANTEED).unwrap();
    assert_eq!(qos, QosClass::Guaranteed);
    assert_eq!((pod.name.as_str(), pod.namespace.as_str()), ("web", "shop"));
    assert_eq!(pod.uid.as_str(), "11111111-2222-3333-4444-555555555555");
    let resources = &pod.containers[0].resources;
    assert_eq!(resources.cpu_request, Some(MilliCpu(2000)));
    assert_eq!(resources.memory_request, Some(Bytes::gibi(1)));
    assert!(pod.static_pod);
}

#[test]
fn reclaimed_resources_are_whole_numbers_of_a_best_effort_pod() {
    let with = |resources: &str| GUARANTEED.replace("{cpu: 2, memory: 1Gi}", resources);
    let batch = "{kubernetes.io/batch-cpu: 1k, kubernetes.io/batch-memory: 1Gi}";
    let (pod, qos) = one(&with(batch)).unwrap();
    assert_eq!(qos, QosClass::BestEffort);
    let wanted = pod.containers[0].resources.reclaimed.unwrap();
    assert_eq!(wanted.tier, ReclaimedTier::Batch);
    assert_eq!(wanted.cpu_limit, Some(MilliCpu(1000)));
    assert_eq!(wanted.cpu_request, wanted.cpu_limit);
    assert_eq!(wanted.memory_request, Some(Bytes::gibi(1)));
    let (pod, _) = one(&with("{kubernetes.io/mid-cpu: 1500m}")).unwrap();
    let wanted = pod.containers[0].resources.reclaimed.unwrap();
    assert_eq!(
        (wanted.tier, wanted.cpu_limit),
        (ReclaimedTier::Mid, Some(MilliCpu(2)))
    );
    let problem = one(&with("{kubernetes.io/batch-cpu: many}")).unwrap_err();
    let field = "spec.containers[0].resources.limits.kubernetes.io/batch-cpu";
    assert!(problem.to_string().contains(field), "{problem}");
}

#[test]
fn json_lists_and_defaults() {
    let text = r#"{"apiVersion": "v1", "kind": "PodList", "items": [
        {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}},
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c"}], "priorityClassName": "system-node-critical"}}
    ]}"#;
    let pods: Vec<_> = manifest::parse(text)
        .into_iter()
        .map(|(n, p)| (n, p.unwrap()))
        .collect();
    assert_eq!(pods.len(), 2);
    let (first, (a, qos)) = &pods[0];
    assert_eq!(
        (*first, *qos, a.namespace.as_str()),
        (1, QosClass::BestEffort, "default")
    );
    assert!(pods[1].1.0.is_critical() && !a.is_critical());
}

#[test]
fn containers_of_every_kind() {
    let text = "\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  overhead: {memory: 64Mi}
  resources: {limits: {memory: 2Gi}}
  initContainers:
  - {name: setup}
  - {name: proxy, restartPolicy: Always}
  containers:
  - {name: app, resources: {requests: {memory: 512Mi, hugepages-2Mi: 4Mi}, limits: {hugepages-2Mi: 4Mi}}}
";
    let (pod, qos) = one(text).unwrap();
    let kinds: Vec<_> = pod.containers.iter().map(|c| c.kind).collect();
    assert_eq!(
        kinds,
        [
            ContainerKind::Init,
            ContainerKind::Sidecar,
            ContainerKind::App
        ]
    );
    assert_eq!(qos, QosClass::Burstable);
    let of_pod = pod.pod_resources.unwrap();
    assert_eq!(
        of_pod.memory_request,
        Some(Bytes::mebi(512)),
        "what the containers ask for"
    );
    assert_eq!(pod.overhead.unwrap().memory, Some(Bytes::mebi(64)));
    assert_eq!(
        pod.containers[2].resources.hugepages[&Bytes::mebi(2)],
        Bytes::mebi(4)
    );
}

#[test]
fn a_uid_of_its_own_is_stable_and_follows_every_value() {
    let uid = |text: &str| one(text).unwrap().0.uid;
    let plain = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}";
    let laid_out = "# a comment\nkind: Pod\napiVersion: v1\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n";
    assert_eq!(uid(plain), uid(laid_out));
    assert_ne!(uid(plain), uid(&plain.replace("name: c", "name: d")));
    let uid = uid(plain);
    assert_eq!(uid.as_str().len(), 32);
    assert!(
        uid.as_str()
            .bytes()
            .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
    );
}

#[test]
fn errors_name_field_value_and_problem() {
    let pod =
        |spec: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}");
    let limits = |limits: &str| {
        pod(&format!(
            "{{containers: [{{name: c, resources: {{{limits}}}}}]}}"
        ))
    };
    let cases: &[(String, &[&str])] = &[
        (
            limits("limits: {memory: lots}"),
            &["spec.containers[0].resources.limits.memory", "`lots`"],
        ),
        (
            limits("requests: {cpu: 2}, limits: {cpu: 1}"),
            &["requests.cpu", "`2`", "above the limit"],
        ),
        (
            limits("limits: {memry: 1Gi}"),
            &["resources.limits.memry", "`1Gi`", "no such resource"],
        ),
        (
            pod("{containers: [{name: c}], overhead: {gpu: 1}}"),
            &["pod p: spec.overhead.gpu", "`1`"],
        ),
        (
            pod("{resources: {limits: {cpu: 1}}, \
                 containers: [{name: c, resources: {limits: {cpu: 2}}}]}"),
            &["spec.containers[c].resources.limits.cpu", "2000m", "1000m"],
        ),
        (
            pod("{containers: [{name: c}, {name: c}]}"),
            &["spec.containers[1].name", "`c`", "another"],
        ),
        (pod("{containers: []}"), &["spec.containers", "missing"]),
        (pod("{containers: {name: c}}"), &["spec.containers"]),
        (
            pod("{containers: [{name: c}], priority: high}"),
            &["spec.priority", "high"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: p}".to_owned(),
            &["spec is missing"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}".to_owned(),
            &["metadata.name is missing"],
        ),
        (minimal("p", "../../etc"), &["metadata.uid", "`../../etc`"]),
        (minimal("../p", "u"), &["metadata.name", "`../p`"]),
        (
            "apiVersion: apps/v1\nkind: Deployment\n".to_owned(),
            &["Deployment (apps/v1)", "not a Pod (v1)"],
        ),
        (
            "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service}]".to_owned(),
            &["Service"],
        ),
        ("just text".to_owned(), &["(no kind)"]),
        ("a: [1, 2".to_owned(), &["not YAML or JSON"]),
    ];
    for (text, parts) in cases {
        let error = one(text).unwrap_err().to_string();
        for part in *parts {
            assert!(
                error.contains(part),
                "{text:?}: {part:?} is not in {error:?}"
            );
        }
        assert!(!error.contains('\n'), "{error:?} is not one line");
    }
}

#[test]
fn a_bad_document_hides_no_other() {
    let text = format!(
        "---\n{}--- # next\na: [1\n---\n---\n{}",
        minimal("a", "1"),
        minimal("b", "2")
    );
    let parsed = manifest::parse(&text);
    let found: Vec<_> = parsed.iter().map(|(n, p)| (*n, p.is_ok())).collect();
    assert_eq!(found, [(1, true), (2, false), (4, true)]);
    let error = parsed[1].1.as_ref().unwrap_err().to_string();
    // Line 7 is where the document ends unfinished; the exact column is the parser's.
    assert!(
        error.contains("line 6") || error.contains("line 7"),
        "{error}"
    );
}

#[test]
fn a_directory_with_all_sorts_in_it() {
    let (temp, dir) = dir_with(&[
        ("b.yaml", &minimal("b", "2")),
        (
            "a.json",
            r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"1"},"spec":{"containers":[{"name":"c"}]}}"#,
        ),
        ("c.yml", &minimal("c", "2")),
        ("d.yaml", "kind: Deployment\napiVersion: apps/v1\n"),
        (".e.yaml", &minimal("e", "5")),
        ("f.yaml~", &minimal("f", "6")),
        (".g.yaml.swp", "\u{0}\u{1}"),
        ("4913", ""),
    ]);
    fs::create_dir(temp.path().join("h.yaml")).unwrap();
    fs::write(temp.path().join("i.yaml"), [0xff, 0xfe]).unwrap();
    let set = dir.read(&Manifests::default()).unwrap();
    assert_eq!(names(&set), ["a", "b"]);
    let errors: Vec<_> = set.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(
        errors[0].contains("c.yml") && errors[0].contains("b.yaml") && errors[0].contains("uid 2"),
        "{errors:?}"
    );
    assert!(
        errors[1].contains("d.yaml, document 1: it is a Deployment"),
        "{errors:?}"
    );
    assert!(
        errors[2].contains("i.yaml") && errors[2].contains("cannot be read"),
        "{errors:?}"
    );
}

#[test]
fn a_manifest_that_turns_bad_leaves_its_pod_as_it_was() {
    let (temp, dir) = dir_with(&[
        ("a.yaml", &minimal("a", "1")),
        ("b.yaml", &minimal("b", "2")),
    ]);
    let first = dir.read(&Manifests::default()).unwrap();
    for bad in ["", "apiVersion: [", "apiVersion: v1\nkind: Pod\n"] {
        fs::write(temp.path().join("a.yaml"), bad).unwrap();
        let set = dir.read(&first).unwrap();
        assert_eq!(set.errors.len(), 1, "{bad:?}");
        assert_eq!(names(&set).len(), 2, "{bad:?}: {set:?}");
    }
    fs::remove_file(temp.path().join("a.yaml")).unwrap();
    assert_eq!(names(&dir.read(&first).unwrap()), ["b"]);
    // A pod that moves to another file is there once.
    fs::write(temp.path().join("a.yaml"), "").unwrap();
    fs::write(temp.path().join("0.yaml"), minimal("a", "1")).unwrap();
    assert_eq!(names(&dir.read(&first).unwrap()), ["a", "b"]);
}

#[tokio::test]
async fn changes_are_seen_and_repetitions_are_not() {
    let (temp, dir) = dir_with(&[("a.yaml", &minimal("a", "1"))]);
    let (mut watcher, mut pods) = dir.watch().unwrap();
    let running = tokio::spawn(async move { watcher.follow().await });
    assert_eq!(names(&pods.borrow_and_update()), ["a"]);
    let path = |name: &str| temp.path().join(name);

    // An editor's way: a copy under another name, moved over the old one.
    fs::write(path("a.yaml"), minimal("a", "1")).unwrap();
    fs::write(path(".b.yaml.tmp"), minimal("b", "2")).unwrap();
    fs::rename(path(".b.yaml.tmp"), path("b.yaml")).unwrap();
    expect(&mut pods, &["a", "b"]).await;
    fs::remove_file(path("a.yaml")).unwrap();
    expect(&mut pods, &["b"]).await;
    std::os::unix::fs::symlink(path("b.yaml"), path("a.yaml")).unwrap();
    until(&mut pods, |set| set.errors.len() == 1).await;

    drop(pods);
    running.await.unwrap().unwrap();
}

async fn expect(pods: &mut Receiver, wanted: &[&str]) {
    until(pods, |set| names(set) == wanted).await;
}

async fn until(pods: &mut Receiver, condition: impl Fn(&Manifests) -> bool) {
    let seen = pods.wait_for(|set| condition(set));
    tokio::time::timeout(Duration::from_secs(30), seen)
        .await
        .expect("no such set")
        .unwrap();
}

#[tokio::test]
async fn a_directory_that_goes_away_is_said() {
    let (temp, dir) = dir_with(&[("a.yaml", &minimal("a", "1"))]);
    let (mut watcher, pods) = dir.watch().unwrap();
    let running = tokio::spawn(async move { watcher.follow().await });
    let gone = temp.path().to_owned();
    drop(temp);
    let error = running.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, DirError::Gone { dir } if *dir == gone)
            || matches!(error, DirError::List { .. }),
        "{error}"
    );
    // Its last files were removed first, so the last set may be either; the channel still tells it.
    assert!(pods.borrow().errors.is_empty());
}

#[test]
fn a_directory_that_is_not_there() {
    let error = ManifestDir::new("/nonexistent/pods")
        .read(&Manifests::default())
        .unwrap_err();
    assert!(error.to_string().contains("/nonexistent/pods"), "{error}");
}

#[test]
fn identities() {
    let (_temp, dir) = dir_with(&[("a.yaml", GUARANTEED)]);
    let pods = dir.read(&Manifests::default()).unwrap().pods;
    let set = PodSet {
        pods,
        ..PodSet::default()
    };
    let uid = &PodUid::from("11111111-2222-3333-4444-555555555555");
    let mut identities = Identities::default();
    assert_eq!(identities.get(uid).known_by, KnownBy::Cgroup);
    identities.learn(&set);
    let known = identities.get(uid);
    assert_eq!(
        (known.pod.name.as_str(), known.qos),
        ("web", Some(QosClass::Guaranteed))
    );
    // The manifest goes before the cgroup does.
    identities.learn(&PodSet::default());
    assert_eq!(identities.get(uid).pod.name, "web");
    identities.forget(uid);
    let unknown = identities.get(uid);
    assert_eq!((&*unknown.pod.name, unknown.qos), (uid.as_str(), None));
    let Origin::Manifest { file, .. } = &set.pods[0].origin else {
        panic!("{:?}", set.pods[0].origin)
    };
    assert_eq!(file.file_name().unwrap(), "a.yaml");
}

#[test]
fn an_empty_list_is_something_and_an_empty_text_is_not() {
    for text in ["", "\n\n", "# nothing\n---\n", "---\nnull\n"] {
        assert!(manifest::is_blank(text), "{text:?}");
    }
    for text in ["apiVersion: v1\nkind: PodList\nitems: []\n", "{", "a: 1"] {
        assert!(!manifest::is_blank(text), "{text:?}");
    }
    let none = manifest::parse("apiVersion: v1\nkind: PodList\nitems: []\n");
    assert!(none.is_empty(), "{none:?}");
}
