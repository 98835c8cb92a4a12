//! Any text as a name of a cgroup, of either driver: nothing panics, and what is read is written
//! back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden_policy::{
    PodUid, QosClass,
    name::{self, CgroupName, ContainerName},
};

fuzz_target!(|text: &str| {
    let cgroupfs = CgroupName::parse_cgroupfs(text);
    assert_eq!(
        CgroupName::parse_cgroupfs(&cgroupfs.to_cgroupfs()),
        cgroupfs
    );

    let systemd = CgroupName::parse_systemd(text);
    assert_eq!(CgroupName::parse_systemd(&systemd.to_systemd()), systemd);
    assert_eq!(
        CgroupName::parse_systemd(&systemd.to_systemd_unit()),
        systemd
    );

    for parsed in [&cgroupfs, &systemd] {
        assert_eq!(
            parsed.parent().map(|p| p.depth() + 1).unwrap_or(0),
            parsed.depth()
        );
        assert!(parsed.child(text).is_within(parsed));
    }

    // The path of a pod tells as much as its last component.
    let component = text.trim_end_matches('/').rsplit('/').next().unwrap_or("");
    let of_path = name::parse_pod_path(text);
    match (name::parse_pod(component), &of_path) {
        (Some((class, uid)), Some((class_of_path, uid_of_path))) => {
            assert_eq!(&uid, uid_of_path);
            assert!(class.is_none_or(|class| class == *class_of_path));
        }
        (None, None) => {}
        other => panic!("{other:?}"),
    }
    if let Some((_, uid)) = of_path {
        pod(&uid);
    }

    if let Some(ContainerName { runtime, id }) = name::parse_container(component) {
        assert!(!id.is_empty());
        assert!(component.contains(id));
        assert!(runtime.is_none_or(|runtime| component.contains(runtime)));
    }
});

/// A uid as an API server makes them is found in its pod's names.
fn pod(uid: &PodUid) {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !uid.as_str().chars().all(plain) {
        return;
    }
    let kubepods = name::kubepods(&CgroupName::root());
    for class in QosClass::ALL {
        let name = kubepods.pod(class, uid);
        let expected = Some((class, uid.clone()));
        assert_eq!(name::parse_pod_path(&name.to_cgroupfs()), expected);
        assert_eq!(name::parse_pod_path(&name.to_systemd()), expected);
    }
}
