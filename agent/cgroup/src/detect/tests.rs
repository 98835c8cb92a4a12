use super::*;

/// A machine with v1 controllers and v2 beside them.
const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
38 31 0:35 / /sys/fs/cgroup/blkio rw,relatime - cgroup cgroup rw,blkio
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

/// v1 as systemd mounts it: controllers share a mount, lines have optional fields.
const V1: &str = "\
25 30 0:23 / /sys rw,nosuid shared:7 - sysfs sysfs rw
34 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:14 master:2 - cgroup cgroup rw,cpu,cpuacct
35 25 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:15 propagate_from:3 - cgroup cgroup rw,memory
36 25 0:32 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd
";

const V2: &str = "30 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

fn controllers(found: &Hierarchies) -> Vec<(&'static str, &str)> {
    let shown = found.controllers.iter();
    let mut all: Vec<_> = shown
        .map(|(controller, path)| (controller.as_str(), path.to_str().unwrap()))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn hybrid() {
    let mut found = Hierarchies::parse(HYBRID).unwrap();
    assert_eq!(found.version, Version::Hybrid);
    assert_eq!(
        found.v2_mount.as_deref(),
        Some(Path::new("/sys/fs/cgroup/unified"))
    );
    assert_eq!(
        controllers(&found),
        [
            ("cpu", "/sys/fs/cgroup/cpu"),
            ("cpuacct", "/sys/fs/cgroup/cpuacct"),
            ("memory", "/sys/fs/cgroup/memory"),
        ]
    );
    // v2 may have what v1 does not.
    found.add_v2_controllers("hugetlb io\n");
    assert!(found.is_on_v2(Controller::HugeTlb));
    assert!(!found.is_on_v2(Controller::Memory));
    assert!(!found.is_on_v2(Controller::Pids));
}

#[test]
fn v1_with_shared_mounts_and_optional_fields() {
    let found = Hierarchies::parse(V1).unwrap();
    assert_eq!(found.version, Version::V1);
    assert_eq!(found.v2_mount, None);
    assert_eq!(
        controllers(&found),
        [
            ("cpu", "/sys/fs/cgroup/cpu,cpuacct"),
            ("cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
            ("memory", "/sys/fs/cgroup/memory"),
        ]
    );
    assert!(!found.is_on_v2(Controller::Memory));
    assert!(!found.is_on_v2(Controller::HugeTlb), "absent is not v2");
}

#[test]
fn v2() {
    let mut found = Hierarchies::parse(V2).unwrap();
    found.add_v2_controllers("cpuset cpu io memory hugetlb pids rdma misc\n");
    assert_eq!(found.version, Version::V2);
    let names: Vec<_> = controllers(&found).into_iter().map(|(c, _)| c).collect();
    assert_eq!(names, ["cpu", "cpuset", "hugetlb", "memory", "pids"]);
    assert!(found.is_on_v2(Controller::Memory));
    assert!(matches!(
        found.mount_of(Controller::Freezer),
        Err(Error::NoController {
            controller: "freezer"
        })
    ));
}

#[test]
fn a_named_v1_hierarchy_does_not_make_it_hybrid() {
    let text = format!("36 25 0:32 / /run/x rw - cgroup cgroup rw,name=systemd\n{V2}");
    assert_eq!(Hierarchies::parse(&text).unwrap().version, Version::V2);
}

#[test]
fn no_cgroups_at_all() {
    for text in ["", "25 30 0:23 / /sys rw - sysfs sysfs rw\n", "cgroup2\n"] {
        assert!(matches!(Hierarchies::parse(text), Err(Error::NoHierarchy)));
    }
}

#[test]
fn the_mount_that_shows_most_is_taken() {
    let cases = [
        (
            "a container without a cgroup namespace sees its own part only",
            vec![("/docker/abc", "/sys/fs/cgroup", "ro")],
            "/sys/fs/cgroup",
        ),
        (
            "the host's mount bound beside it shows the whole",
            vec![
                ("/docker/abc", "/sys/fs/cgroup", "rw"),
                ("/", "/host/cgroup", "rw"),
            ],
            "/host/cgroup",
        ),
        (
            "inside a cgroup namespace the host's mount is above the root",
            vec![
                ("/", "/sys/fs/cgroup", "rw"),
                ("/../../..", "/host/cgroup", "rw"),
            ],
            "/host/cgroup",
        ),
        (
            "of two equal ones the writable",
            vec![("/", "/sys/fs/cgroup", "ro"), ("/", "/rw/cgroup", "rw")],
            "/rw/cgroup",
        ),
        (
            "of two quite equal ones the first",
            vec![("/", "/sys/fs/cgroup", "rw"), ("/", "/second", "rw")],
            "/sys/fs/cgroup",
        ),
        (
            "a name with a space",
            vec![("/", r"/my\040cgroup", "rw")],
            "/my cgroup",
        ),
    ];
    for (what, mounts, want) in cases {
        let text: String = mounts
            .iter()
            .map(|(root, point, rw)| format!("1 2 0:9 {root} {point} {rw},nosuid - cgroup2 c rw\n"))
            .collect();
        let found = Hierarchies::parse(&text).unwrap();
        assert_eq!(found.v2_mount.as_deref(), Some(Path::new(want)), "{what}");
    }
}

#[test]
fn the_driver_is_guessed_from_the_tree_then_from_the_init_system() {
    use Driver::{Cgroupfs, Systemd};
    for (has_kubepods, has_kubepods_slice, booted_with_systemd, want) in [
        (true, false, true, Cgroupfs),
        (false, true, false, Systemd),
        (false, false, true, Systemd),
        (false, false, false, Cgroupfs),
        (true, true, true, Systemd),
        (true, true, false, Cgroupfs),
    ] {
        let facts = DriverFacts {
            has_kubepods,
            has_kubepods_slice,
            booted_with_systemd,
        };
        assert_eq!(facts.guess(), want, "{facts:?}");
    }
}

proptest::proptest! {
    #[test]
    fn no_text_is_too_strange(lines in proptest::collection::vec(r"[ -~\\]{0,30}( - (cgroup2?|x) .{0,20})?", 0..5)) {
        let _ = Hierarchies::parse(&lines.join("\n"));
    }
}
