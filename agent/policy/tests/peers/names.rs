//! kubelet `pkg/kubelet/cm/cgroup_manager_linux_test.go` and `helpers_linux_test.go`; containers as
//! containerd, CRI-O, Docker and Podman name them.

use podwarden_policy::{
    PodUid, QosClass,
    name::{self, CgroupName, ContainerName},
};

const UID: &str = "6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
const POD: &str = "pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
const UNIT: &str = "kubepods-burstable-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice";

fn named(components: &[&str]) -> CgroupName {
    CgroupName::new(components.iter().copied())
}

#[test]
fn to_systemd() {
    let long = "/kubepods.slice/kubepods-burstable.slice/\
                kubepods-burstable-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice";
    let rows: [(&[&str], &str); 4] = [
        (&[], "/"),
        (&["Burstable"], "/Burstable.slice"),
        (
            &["BestEffort", "pod-6c1a4e95-6bb6-11e6-bc26-28d2444e470d"],
            "/BestEffort.slice/BestEffort-pod_6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
        ),
        (&["kubepods", "burstable", POD], long),
    ];
    for (components, path) in rows {
        assert_eq!(named(components).to_systemd(), path);
    }
}

#[test]
fn to_systemd_unit() {
    let rows: [(&[&str], &str); 3] = [
        (&[], "/"),
        (&["Burstable", "pod-123"], "Burstable-pod_123.slice"),
        (&["test", "a", "b", "Burstable"], "test-a-b-Burstable.slice"),
    ];
    for (components, unit) in rows {
        assert_eq!(named(components).to_systemd_unit(), unit);
    }
}

#[test]
fn to_cgroupfs() {
    assert_eq!(CgroupName::root().to_cgroupfs(), "/");
    let name = named(&["kubepods", "burstable", POD]);
    let path = "/kubepods/burstable/pod6c1a4e95-6bb6-11e6-bc26-28d2444e470d";
    assert_eq!(name.to_cgroupfs(), path);
    assert_eq!(name.to_string(), path);
}

#[test]
fn parse() {
    assert_eq!(CgroupName::parse_systemd("/test"), named(&["test"]));
    assert_eq!(
        CgroupName::parse_systemd(&format!("/kubepods.slice/kubepods-burstable.slice/{UNIT}/")),
        named(&["kubepods", "burstable", POD])
    );
    assert_eq!(CgroupName::parse_systemd("/"), CgroupName::root());
    assert_eq!(CgroupName::parse_systemd("-.slice"), CgroupName::root());
    assert_eq!(CgroupName::parse_cgroupfs("/"), CgroupName::root());
    // Appending does not alias, and keeps what the path held.
    let parent = CgroupName::parse_cgroupfs("/a/");
    assert_eq!(parent.child("b"), named(&["a", "", "b"]));
    assert_eq!(parent, named(&["a", ""]));
}

#[test]
fn node_allocatable_root() {
    for root in ["/", ""] {
        let kubepods = name::kubepods(&CgroupName::parse_cgroupfs(root));
        assert_eq!(kubepods.to_cgroupfs(), "/kubepods");
        assert_eq!(kubepods.to_systemd(), "/kubepods.slice");
    }
    // The kubelet's row without cgroupsPerQOS gives "/custom".
    let custom = name::kubepods(&CgroupName::parse_cgroupfs("/custom"));
    assert_eq!(custom.to_cgroupfs(), "/custom/kubepods");
}

#[test]
fn pods() {
    let uid = PodUid::from("abc123-def456");
    assert_eq!(name::pod_component(&uid), "podabc123-def456");

    let uid = PodUid::from(UID);
    let rows = [
        (POD, None),
        (UNIT, Some(QosClass::Burstable)),
        (
            "kubepods-besteffort-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
            Some(QosClass::BestEffort),
        ),
        (
            "kubepods-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
            Some(QosClass::Guaranteed),
        ),
        (
            "custom-kubepods-burstable-pod6c1a4e95_6bb6_11e6_bc26_28d2444e470d.slice",
            Some(QosClass::Burstable),
        ),
    ];
    for (component, class) in rows {
        assert_eq!(
            name::parse_pod(component),
            Some((class, uid.clone())),
            "{component}"
        );
    }
    for component in [
        "",
        "pod",
        "burstable",
        "kubepods.slice",
        "kubepods-burstable.slice",
    ] {
        assert_eq!(name::parse_pod(component), None, "{component}");
    }

    let rows = [
        (format!("/kubepods/{POD}"), QosClass::Guaranteed),
        (format!("/kubepods/burstable/{POD}"), QosClass::Burstable),
        (format!("kubepods/besteffort/{POD}/"), QosClass::BestEffort),
        (format!("/kubepods.slice/{UNIT}"), QosClass::Burstable),
        // A kubelet inside a container, of either driver.
        (
            format!("/docker/0a1b/kubelet/kubepods/besteffort/{POD}"),
            QosClass::BestEffort,
        ),
        (
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-{UNIT}"),
            QosClass::Burstable,
        ),
    ];
    for (path, class) in rows {
        assert_eq!(
            name::parse_pod_path(&path),
            Some((class, uid.clone())),
            "{path}"
        );
    }
}

#[test]
fn containers() {
    let id = "7e2b1b8a0c3d";
    let rows = [
        (
            "cri-containerd-7e2b1b8a0c3d.scope",
            Some(Some("cri-containerd")),
        ),
        ("crio-7e2b1b8a0c3d.scope", Some(Some("crio"))),
        ("crio-7e2b1b8a0c3d", Some(Some("crio"))),
        ("docker-7e2b1b8a0c3d.scope", Some(Some("docker"))),
        ("libpod-7e2b1b8a0c3d.scope", Some(Some("libpod"))),
        ("7e2b1b8a0c3d", Some(None)),
        (
            "kubepods-burstable-pod1.slice:cri-containerd:7e2b1b8a0c3d",
            Some(Some("cri-containerd")),
        ),
        ("crio-conmon-7e2b1b8a0c3d.scope", None),
        ("crio-conmon-7e2b1b8a0c3d", None),
        ("init.scope", None),
        ("system.slice", None),
        ("docker-.scope", None),
        ("a:", None),
        ("", None),
    ];
    for (component, runtime) in rows {
        let expected = runtime.map(|runtime| ContainerName { runtime, id });
        assert_eq!(name::parse_container(component), expected, "{component}");
    }
}
