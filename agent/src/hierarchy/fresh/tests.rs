//! On files in the place of a v2 hierarchy: what a runtime does to a new cgroup.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use podwarden_cgroup::{Controller, Driver, Hierarchies, Version};
use podwarden_policy::{Bytes, Container, MilliCpu, Node, Reclaimed, Resources};

use super::{followed::New, *};
use crate::{
    hierarchy::act::Files,
    pods::runtime::{Runtime, RuntimeState, cri},
};

const WANTED: [(&str, &str); 3] = [
    ("cpu.weight", "20"),
    ("cpu.max", "50000 100000"),
    ("memory.max", "1073741824"),
];

/// As the kernel makes it, and as runc leaves it.
const FOUND: [(&str, &str); 4] = [
    ("memory.current", "4096"),
    ("cpu.weight", "1"),
    ("cpu.max", "max 100000"),
    ("memory.max", "max"),
];

fn make(cgroup: &Path) {
    fs::create_dir_all(cgroup).unwrap();
    write(cgroup);
}

fn write(cgroup: &Path) {
    for (file, text) in FOUND {
        fs::write(cgroup.join(file), text).unwrap();
    }
}

fn wait_for_values(cgroup: &Path) {
    let start = Instant::now();
    loop {
        let found = WANTED.map(|(file, _)| fs::read_to_string(cgroup.join(file)).unwrap());
        let found: Vec<_> = found.iter().map(|text| text.trim()).collect();
        if found == WANTED.map(|(_, text)| text) {
            return;
        }
        let waited = start.elapsed();
        assert!(waited < FRESH, "{} holds {found:?}", cgroup.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pod() -> Pod {
    let (cpu, memory) = (Some(MilliCpu(500)), Some(Bytes::gibi(1)));
    let reclaimed = Reclaimed {
        cpu_request: cpu,
        cpu_limit: cpu,
        memory_request: memory,
        memory_limit: memory,
        ..Reclaimed::default()
    };
    Pod {
        uid: "a".into(),
        containers: vec![Container {
            name: "main".to_owned(),
            resources: Resources {
                reclaimed: Some(reclaimed),
                ..Resources::default()
            },
            ..Container::default()
        }],
        ..Pod::default()
    }
}

struct Scene {
    _dir: tempfile::TempDir,
    besteffort: PathBuf,
    fresh: Fresh,
    aim: Aim,
}

fn scene() -> Scene {
    scene_with(None)
}

fn scene_with(names: Option<Names>) -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().to_owned();
    let besteffort = mount.join("kubepods/besteffort");
    let controllers = [Controller::Cpu, Controller::Memory];
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.clone()),
        controllers: controllers.map(|c| (c, mount.clone())).into(),
    };
    let layout = CgroupLayout::new(Driver::Cgroupfs, "/");
    let mut terms = Snapshot::new(Node::default(), layout.kubepods.clone());
    terms.enforce_reclaimed = true;
    let fresh = Fresh::start(Parts {
        tree: Tree::new(hierarchies, "").unwrap(),
        layout,
        backend: Arc::new(Files),
        counters: Arc::default(),
        names,
        real_time: false,
    });
    let asking = Asking {
        pod: pod(),
        containers: BTreeMap::new(),
    };
    Scene {
        _dir: dir,
        besteffort,
        fresh: fresh.unwrap(),
        aim: Aim {
            terms,
            pods: vec![asking],
        },
    }
}

#[test]
fn a_new_container_gets_its_values_and_again_after_its_runtime_wrote() {
    let mut scene = scene();
    fs::create_dir_all(&scene.besteffort).unwrap();
    scene.fresh.aim(scene.aim.clone());
    let pod = scene.besteffort.join("poda");
    make(&pod);
    wait_for_values(&pod);
    let container = pod.join("c1");
    make(&container);
    wait_for_values(&container);
    for cgroup in [&container, &pod] {
        write(cgroup);
        wait_for_values(cgroup);
    }
    // Pods that do not ask keep theirs; this thread would have come to it before the next one.
    let other = scene.besteffort.join("podb");
    make(&other);
    let next = pod.join("c2");
    make(&next);
    wait_for_values(&next);
    let weight = fs::read_to_string(other.join("cpu.weight")).unwrap();
    assert_eq!(weight, "1");
}

#[test]
fn what_was_there_before_the_pod_was_known_gets_its_values() {
    let mut scene = scene();
    let container = scene.besteffort.join("poda/c1");
    make(&container);
    make(&scene.besteffort.join("poda"));
    scene.fresh.aim(scene.aim.clone());
    wait_for_values(&scene.besteffort.join("poda"));
    wait_for_values(&container);
}

#[test]
fn one_of_several_containers_waits_for_its_name() {
    let mut scene = scene();
    let asking = &mut scene.aim.pods[0];
    let mut sidecar = asking.pod.containers[0].clone();
    "sidecar".clone_into(&mut sidecar.name);
    asking.pod.containers.push(sidecar);
    let pod = scene.besteffort.join("poda");
    let (first, second) = (pod.join("c1"), pod.join("c2"));
    for cgroup in [&pod, &first, &second] {
        make(cgroup);
    }
    asking.containers = BTreeMap::from([("c1".to_owned(), "main".to_owned())]);
    scene.fresh.aim(scene.aim.clone());
    wait_for_values(&first);
    let weight = || fs::read_to_string(second.join("cpu.weight")).unwrap();
    assert_eq!(weight(), "1");
    let names = [("c1", "main"), ("c2", "sidecar")];
    scene.aim.pods[0].containers = names.map(|(id, name)| (id.into(), name.into())).into();
    scene.fresh.aim(scene.aim.clone());
    wait_for_values(&second);
}

/// No aim follows: the runtime's answer goes to the thread itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_of_several_is_named_by_the_runtime() {
    let (answer, known) = tokio::sync::watch::channel(Arc::default());
    let (names, mut sought) = Names::of(known);
    let mut scene = scene_with(Some(names));
    let containers = &mut scene.aim.pods[0].pod.containers;
    let mut sidecar = containers[0].clone();
    "sidecar".clone_into(&mut sidecar.name);
    containers.push(sidecar);
    fs::create_dir_all(&scene.besteffort).unwrap();
    scene.fresh.aim(scene.aim.clone());
    let pod = scene.besteffort.join("poda");
    let container = pod.join("c1");
    make(&pod);
    make(&container);
    let start = Instant::now();
    while sought() == 0 {
        assert!(start.elapsed() < FRESH, "the runtime is not asked");
        std::thread::sleep(Duration::from_millis(1));
    }
    let labels = [("io.kubernetes.pod.uid".to_owned(), "a".to_owned())];
    let container_of_cri = cri::Container {
        id: "c1".to_owned(),
        metadata: Some(cri::ContainerMetadata {
            name: "sidecar".to_owned(),
            attempt: 0,
        }),
        labels: labels.into(),
        ..cri::Container::default()
    };
    let runtime = Runtime {
        state: RuntimeState::new(&[], &[container_of_cri]),
        ..Runtime::default()
    };
    answer.send(Arc::new(runtime)).unwrap();
    wait_for_values(&container);
    assert_eq!(sought(), 0, "it is asked for once");
}

#[test]
fn a_cgroup_is_new_for_a_time_and_for_so_many_writes() {
    let start = Instant::now();
    let mut new = New::at(start);
    assert!(new.is_followed(start) && !new.is_followed(start + FRESH));
    new.wrote(31);
    assert!(new.is_followed(start));
    new.wrote(1);
    assert!(!new.is_followed(start));
}
