//! KEP-2570 and kubelet `kuberuntime_container_linux_test.go`, `qos_container_manager_linux_test.go`,
//! `node_container_manager_linux_test.go`.

use podwarden_policy::{
    Bytes, Node,
    container::{limited_swap, memory_high},
    limits::{Limit, LimitOptions},
    model::Reserved,
    name::CgroupName,
    plan::{Action, Controllers, Snapshot, plan},
    reason::Reason,
    reserve::{allocatable, tier_limits},
    settings::{Observed, Setting},
};

use crate::support::pod;

#[test]
fn memory_high_of_containers() {
    let mi = |n: u64| (n > 0).then(|| Bytes::mebi(n));
    let rows = [
        (0, 1000, 900_000, Some(900)),
        (300, 1000, 900_000, Some(930)),
        (500, 1000, 900_000, Some(950)),
        (800, 1000, 900_000, Some(980)),
        (1000, 1000, 900_000, None),
        (1000, 1000, 600_000, None),
        (850, 1000, 800_000, Some(970)),
    ];
    for (request, limit, factor, high) in rows {
        assert_eq!(
            memory_high(mi(request), mi(limit), Bytes::gibi(8), factor, Bytes(4096)),
            high.map(Bytes::mebi),
            "{request} {limit} {factor}"
        );
    }
    let no_limit = memory_high(mi(256), None, Bytes::gibi(8), 900_000, Bytes(4096));
    assert_eq!(no_limit, Some(Bytes(7_757_783_040)));
    let best_effort = memory_high(None, None, Bytes::gibi(8), 900_000, Bytes(4096));
    assert_eq!(best_effort, Some(Bytes(7_730_941_132 / 4096 * 4096)));
    assert_eq!(
        memory_high(None, None, Bytes::ZERO, 900_000, Bytes(4096)),
        None
    );
}

#[test]
fn limited_swap_of_containers() {
    let node = |memory, swap| Node {
        memory_capacity: Bytes::gibi(memory),
        swap_capacity: Bytes::gibi(swap),
        ..Node::default()
    };
    let swap = |request: &str, limit: &str, node: &Node| {
        let pod = pod("a", &[["", request, "", limit]]);
        limited_swap(&pod, &pod.containers[0], node)
    };
    assert_eq!(swap("1Gi", "", &node(80, 4)), Bytes(53_687_091));
    assert_eq!(swap("2Gi", "", &node(40, 2)), Bytes(107_374_182));
    assert_eq!(swap("5Gi", "", &node(150, 40)), Bytes(1_431_655_765));
    // The kubelet reports an error here and then allows no swap.
    assert_eq!(swap("20Gi", "", &node(10, 4)), Bytes::ZERO);
    assert_eq!(
        swap("1Gi", "1Gi", &node(80, 4)),
        Bytes::ZERO,
        "request is the limit"
    );
    assert_eq!(swap("", "1Gi", &node(80, 4)), Bytes::ZERO, "no request");
    let mut critical = pod("b", &[["", "1Gi", "", ""]]);
    critical.critical = true;
    assert_eq!(
        limited_swap(&critical, &critical.containers[0], &node(80, 4)),
        Bytes::ZERO
    );
}

#[test]
fn qos_reserved() {
    const GIB: u64 = 1 << 30;
    let rows = [
        (
            8 * GIB,
            1_207_959_552,
            335_544_320,
            100,
            7_381_975_040,
            7_046_430_720,
        ),
        (8 * GIB, GIB, 2 * GIB, 100, 7 * GIB, 5 * GIB),
        (8 * GIB, 3 * GIB, 2 * GIB, 0, 8 * GIB, 8 * GIB),
        // The kubelet passes -1 GiB down here.
        (2 * GIB, GIB, 2 * GIB, 100, GIB, 0),
    ];
    for (allocatable, guaranteed, burstable, percent, burstable_max, besteffort_max) in rows {
        let limits = tier_limits(
            Bytes(allocatable),
            Bytes(guaranteed),
            Bytes(burstable),
            percent,
        );
        assert_eq!(limits.burstable, Bytes(burstable_max));
        assert_eq!(limits.besteffort, Bytes(besteffort_max));
    }
}

#[test]
fn qos_reserved_never_cuts_into_usage() {
    let desired = Bytes(5_368_709_120);
    let usage = Bytes(6_442_450_944);
    let kubepods = CgroupName::new(["kubepods"]);
    let mut snapshot = Snapshot::new(
        Node {
            memory_capacity: desired,
            qos_reserved_memory_percent: Some(100),
            ..Node::default()
        },
        kubepods.clone(),
    );
    snapshot.margin = Bytes::ZERO;
    let besteffort = kubepods.child("besteffort");
    snapshot.cgroups.insert(
        besteffort.clone(),
        Observed {
            memory_limit: Some(Limit::Unlimited),
            memory_usage: Some(usage),
            ..Observed::default()
        },
    );
    let written = plan(&snapshot).into_iter().find_map(|action| match action {
        Action::Write {
            cgroup,
            setting: Setting::MemoryLimit(limit),
            reason,
        } if cgroup == besteffort => Some((limit, reason)),
        _ => None,
    });
    let held = Reason::HeldAboveUsage {
        wanted: desired,
        usage,
        margin: Bytes::ZERO,
    };
    assert_eq!(written, Some((Limit::At(usage), held)));
}

#[test]
fn memory_reservation_of_tiers() {
    let guaranteed = pod("g", &[["1", "128Mi", "1", "128Mi"]]);
    let burstable = [
        pod("b1", &[["1", "128Mi", "", ""]]),
        pod("b2", &[["2", "256Mi", "", ""]]),
    ];
    let best_effort = pod("be", &[["", "", "", ""]]);
    let all = [guaranteed, burstable[0].clone(), burstable[1].clone()];
    let rows: [(&[_], bool, u64, u64); 3] = [
        (&all, true, 536_870_912, 402_653_184),
        (&[best_effort], true, 0, 0),
        (&all, false, 0, 0),
    ];
    for (pods, memory_reservation, min, low) in rows {
        let kubepods = CgroupName::new(["kubepods"]);
        let mut snapshot = Snapshot::new(Node::default(), kubepods.clone());
        snapshot.limits = LimitOptions {
            memory_reservation,
            ..LimitOptions::default()
        };
        snapshot.controllers = Controllers {
            memory_protection: true,
            ..Controllers::default()
        };
        snapshot.pods = pods.to_vec();
        let mut found = (0, 0);
        for action in plan(&snapshot) {
            match action {
                Action::Write {
                    cgroup,
                    setting: Setting::MemoryMin(bytes),
                    ..
                } if cgroup == kubepods => found.0 = bytes.0,
                Action::Write {
                    cgroup,
                    setting: Setting::MemoryLow(bytes),
                    ..
                } if cgroup == kubepods.child("burstable") => found.1 = bytes.0,
                _ => {}
            }
        }
        assert_eq!(found, (min, low));
    }
}

#[test]
fn node_allocatable() {
    let node = Node {
        memory_capacity: Bytes::mebi(16384),
        kube_reserved: Reserved {
            memory: Bytes::mebi(1024),
            ..Reserved::default()
        },
        system_reserved: Reserved {
            memory: Bytes::mebi(512),
            ..Reserved::default()
        },
        eviction_hard_memory: Bytes::mebi(100),
        ..Node::default()
    };
    let allocatable = allocatable(&node);
    assert_eq!(allocatable.kubepods_memory, Bytes::mebi(14848));
    assert_eq!(allocatable.memory, Bytes::mebi(14748));
}
