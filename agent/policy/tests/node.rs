//! The node level: what `kubepods` is offered, and the cgroups of the daemons beside it
//! (kubelet `pkg/kubelet/cm/node_container_manager_linux.go` and its test).

use podwarden_policy::{
    Bytes, MilliCpu, Node, desired,
    limits::Limit,
    model::{Enforcement, Reserved, ReservedCgroup},
    name::{self, CgroupName},
    plan::{Action, Controllers, Ownership, Snapshot, plan},
    reserve::{self, Advertised, Amounts, ReserveError},
    settings::{CpuShare, Observed, Setting},
};

const SYSTEM: &str = "/system";
const KUBE: &str = "/kube";

fn place(path: &str, compressible_only: bool) -> Option<ReservedCgroup> {
    Some(ReservedCgroup {
        cgroup: CgroupName::parse_cgroupfs(path),
        compressible_only,
    })
}

fn node(enforce: Enforcement) -> Node {
    Node {
        cpu_capacity: MilliCpu(8000),
        memory_capacity: Bytes::gibi(16),
        pids_capacity: Some(32_768),
        ephemeral_storage_capacity: Some(Bytes::gibi(100)),
        kube_reserved: Reserved {
            cpu: MilliCpu(500),
            memory: Bytes::gibi(1),
            pids: 768,
            ephemeral_storage: Bytes::gibi(5),
        },
        system_reserved: Reserved {
            cpu: MilliCpu(250),
            memory: Bytes::mebi(512),
            ..Reserved::default()
        },
        enforce,
        eviction_hard_memory: Bytes::mebi(100),
        eviction_hard_storage: Bytes::gibi(10),
        ..Node::default()
    }
}

/// As the kernel makes a cgroup, with something in it.
fn fresh(usage: Bytes) -> Observed {
    Observed {
        cpu: Some(CpuShare::Shares(podwarden_policy::CpuShares(1024))),
        memory_limit: Some(Limit::Unlimited),
        memory_min: Some(Bytes::ZERO),
        pids_limit: Some(Limit::Unlimited),
        memory_usage: Some(usage),
        ..Observed::default()
    }
}

fn snapshot(enforce: Enforcement, existing: &[&str]) -> Snapshot {
    let kubepods = CgroupName::new(["kubepods"]);
    let mut snapshot = Snapshot::new(node(enforce), kubepods.clone());
    for tier in ["", "burstable", "besteffort"] {
        let name = CgroupName::parse_cgroupfs(format!("/kubepods/{tier}").trim_end_matches('/'));
        snapshot.cgroups.insert(name, fresh(Bytes::ZERO));
    }
    let others = existing.iter().map(|path| CgroupName::parse_cgroupfs(path));
    snapshot
        .cgroups
        .extend(others.map(|name| (name, fresh(Bytes::mebi(100)))));
    snapshot
}

/// `cgroup setting` of every write outside the tiers.
fn writes(snapshot: &Snapshot) -> Vec<String> {
    let text = |action| match action {
        Action::Write {
            cgroup, setting, ..
        } if cgroup.depth() == 1 => Some(format!("{cgroup} {setting}")),
        Action::Write { .. } => None,
        other => panic!("{other:?}"),
    };
    let mut found: Vec<_> = plan(snapshot).into_iter().filter_map(text).collect();
    found.sort();
    found
}

#[test]
fn what_is_allocatable() {
    let found = reserve::allocatable(&node(Enforcement::default()));
    assert_eq!(found.cpu, MilliCpu(7250));
    assert_eq!(found.kubepods_memory, Bytes::mebi(14848));
    assert_eq!(found.memory, Bytes::mebi(14748));
    assert_eq!(found.pids, Some(32_000));
    assert_eq!(found.ephemeral_storage, Some(Bytes::gibi(85)));
}

#[test]
fn pods_are_kept_within_what_is_allocatable() {
    let found = writes(&snapshot(Enforcement::default(), &[SYSTEM, KUBE]));
    assert_eq!(
        found,
        [
            "/kubepods cpu shares 7424",
            "/kubepods memory limit 14848Mi",
            "/kubepods pids limit 32000",
        ]
    );
}

#[test]
fn without_pods_the_capacity_counts() {
    let enforce = Enforcement {
        pods: false,
        ..Enforcement::default()
    };
    assert_eq!(
        writes(&snapshot(enforce, &[])),
        [
            "/kubepods cpu shares 8192",
            "/kubepods memory limit 16Gi",
            "/kubepods pids limit 32768",
        ]
    );
}

#[test]
fn reserves_of_daemons_are_written_where_their_cgroups_are() {
    let enforce = Enforcement {
        pods: true,
        kube_reserved: place(KUBE, false),
        system_reserved: place(SYSTEM, true),
    };
    let daemons = |snapshot: &Snapshot| -> Vec<String> {
        let all = writes(snapshot).into_iter();
        all.filter(|line| !line.starts_with("/kubepods ")).collect()
    };
    let mut both = snapshot(enforce.clone(), &[SYSTEM, KUBE]);
    let kube = [
        "/kube cpu shares 512",
        "/kube memory limit 1Gi",
        "/kube pids limit 768",
    ];
    let system = "/system cpu shares 256";
    assert_eq!(daemons(&both), [kube[0], kube[1], kube[2], system]);
    assert_eq!(reserve::cgroup_errors(&both), []);

    // Memory that is reserved is protected as well, where it is a limit and reservation is on.
    both.limits.memory_reservation = true;
    both.controllers = Controllers {
        memory_protection: true,
        ..Controllers::default()
    };
    assert_eq!(
        daemons(&both),
        [kube[0], kube[1], "/kube memory min 1Gi", kube[2], system]
    );

    // Beside a kubelet they are the kubelet's.
    both.ownership = Ownership::Assist;
    assert_eq!(daemons(&both), Vec::<String>::new());

    // Nothing is made; what is missing is said.
    let one = snapshot(enforce, &[SYSTEM]);
    assert_eq!(daemons(&one), [system]);
    let errors = reserve::cgroup_errors(&one);
    let expected = ReserveError::MissingCgroup {
        field: "kubeReservedCgroup",
        cgroup: CgroupName::parse_cgroupfs(KUBE),
        enforcement: "kube-reserved",
    };
    assert_eq!(errors, [expected]);
}

#[test]
fn a_limit_of_daemons_stays_above_what_they_use() {
    let enforce = Enforcement {
        kube_reserved: place(KUBE, false),
        ..Enforcement::default()
    };
    let mut snapshot = snapshot(enforce, &[]);
    let kube = CgroupName::parse_cgroupfs(KUBE);
    snapshot.cgroups.insert(kube, fresh(Bytes::gibi(2)));
    assert!(writes(&snapshot).contains(&"/kube memory limit 2064Mi".to_owned()));
}

#[test]
fn a_cgroup_for_both_gets_what_is_written_last() {
    let enforce = Enforcement {
        kube_reserved: place(SYSTEM, true),
        system_reserved: place(SYSTEM, true),
        ..Enforcement::default()
    };
    let found = writes(&snapshot(enforce, &[SYSTEM]));
    assert!(
        found.contains(&"/system cpu shares 512".to_owned()),
        "{found:?}"
    );
    assert!(
        !found.contains(&"/system cpu shares 256".to_owned()),
        "{found:?}"
    );
}

#[test]
fn a_cgroup_that_pods_are_in_is_refused() {
    for path in ["/", "/kubepods", "/kubepods/burstable"] {
        let enforce = Enforcement {
            system_reserved: place(path, false),
            ..Enforcement::default()
        };
        let snapshot = snapshot(enforce, &[]);
        let errors = reserve::cgroup_errors(&snapshot);
        assert!(
            matches!(errors[..], [ReserveError::HoldsPods { .. }]),
            "{path}: {errors:?}"
        );
        assert_eq!(writes(&snapshot).len(), 3, "{path}");
    }
}

#[test]
fn reserves_that_leave_no_process_or_storage() {
    let valid = node(Enforcement::default());
    assert_eq!(reserve::validate(&valid), Ok(()));
    let mut pids = valid.clone();
    pids.system_reserved.pids = 32_000;
    let taken = ReserveError::Pids {
        reserved: 32_768,
        capacity: 32_768,
    };
    assert_eq!(reserve::validate(&pids), Err(taken));
    let mut storage = valid;
    storage.system_reserved.ephemeral_storage = Bytes::gibi(90);
    assert_eq!(
        reserve::validate(&storage).map_err(|e| e.to_string()),
        Err(
            "kubeReserved, systemReserved and evictionHard take 105Gi ephemeral-storage of 100Gi"
                .to_owned()
        )
    );
}

/// A Node object as a kubelet with these reserves writes it.
fn says(capacity: Bytes, kept: Bytes) -> Advertised {
    let amounts = |memory| Amounts {
        cpu: MilliCpu(8000),
        memory,
        ephemeral_storage: Bytes::gibi(100),
    };
    Advertised {
        capacity: amounts(capacity),
        allocatable: Amounts {
            cpu: MilliCpu(7500),
            ..amounts(capacity.saturating_sub(kept))
        },
    }
}

#[test]
fn reserves_that_are_not_configured_are_those_of_the_node_object() {
    let node = Node {
        cpu_capacity: MilliCpu(8000),
        memory_capacity: Bytes::gibi(24),
        eviction_hard_memory: Bytes::gibi(1),
        hugepages: [(Bytes::mebi(2), Bytes::gibi(2))].into(),
        ..Node::default()
    };
    // 17 GiB reserved, 1 GiB for eviction, 2 GiB of huge pages.
    let says = says(Bytes::gibi(24), Bytes::gibi(20));
    let found = reserve::advertised(&node, &says);
    let allocatable = reserve::allocatable(&found);
    assert_eq!(allocatable.kubepods_memory, Bytes::gibi(7));
    assert_eq!(allocatable.memory, Bytes::gibi(4));
    assert_eq!(allocatable.cpu, MilliCpu(7500));
    let configured = Node {
        kube_reserved: Reserved {
            memory: Bytes::gibi(3),
            ..Reserved::default()
        },
        ..node
    };
    let found = reserve::advertised(&configured, &says);
    assert_eq!(
        reserve::allocatable(&found).kubepods_memory,
        Bytes::gibi(21),
        "what is configured stays"
    );
    assert_eq!(reserve::allocatable(&found).cpu, MilliCpu(7500));
}

/// The rows that a kubelet 1.36.2 left on cgroup v2 in a node with 256 huge pages of 2 MiB and none of 1 GiB.
#[test]
fn huge_pages_are_limited_in_pods_alone() {
    let mut snapshot = Snapshot::new(Node::default(), name::kubepods(&CgroupName::root()));
    let sizes = [
        (Bytes::mebi(2), Bytes::mebi(512)),
        (Bytes::gibi(1), Bytes::ZERO),
    ];
    snapshot.node.hugepages = sizes.into();
    let tree = desired::tree(&snapshot);
    assert_eq!(tree.len(), 3, "kubepods and two tiers");
    for cgroup in tree {
        let of_pages = cgroup
            .settings
            .iter()
            .filter_map(|(setting, _)| match setting {
                Setting::HugetlbLimit { page_size, limit } => Some((*page_size, *limit)),
                _ => None,
            });
        let wanted = sizes.map(|(size, _)| (size, Limit::Unlimited));
        assert_eq!(of_pages.collect::<Vec<_>>(), wanted, "{}", cgroup.name);
    }
}

#[test]
fn a_limit_in_force_only_lowers() {
    let node = Node {
        memory_capacity: Bytes::gibi(24),
        ..Node::default()
    };
    let memory = |limit| reserve::allocatable(&reserve::within(&node, limit)).kubepods_memory;
    assert_eq!(memory(Bytes::gibi(7)), Bytes::gibi(7));
    assert_eq!(memory(Bytes::gibi(30)), Bytes::gibi(24));
    assert_eq!(memory(Bytes::ZERO), Bytes::ZERO);
}
