//! What pods that ask for reclaimed resources get: plans on a node that podwarden owns and beside a kubelet.

#[path = "support/pods.rs"]
mod support;

use podwarden_policy::{
    Bytes, Container, CpuShares, Node, Pod, PodUid, QosClass, Reclaimed,
    colocation::class::Labels,
    model::Overhead,
    name::CgroupName,
    plan::{Action, ContainerCgroup, Ownership, Snapshot, plan},
    settings::{Observed, Version},
};

use crate::support::pod;

/// A container with this CPU and memory of batch, both as request and limit.
fn batch(name: &str, milli: u64, memory: Bytes) -> Container {
    let (cpu, memory) = (Some(milli.into()), Some(memory));
    let mut container = Container {
        name: name.into(),
        ..Container::default()
    };
    container.resources.reclaimed = Some(Reclaimed {
        cpu_request: cpu,
        cpu_limit: cpu,
        memory_request: memory,
        memory_limit: memory,
        ..Reclaimed::default()
    });
    container
}

/// One pod of these containers, whose cgroups exist as the kernel makes them.
fn snapshot(ownership: Ownership, containers: Vec<Container>) -> Snapshot {
    let uid = PodUid::from("b");
    let mut snapshot = Snapshot::new(Node::default(), CgroupName::new(["kubepods"]));
    snapshot.ownership = ownership;
    snapshot.enforce_reclaimed = true;
    let kubepods = snapshot.kubepods.clone();
    let own = kubepods.pod(QosClass::BestEffort, &uid);
    let mut cgroups = QosClass::ALL.map(|class| kubepods.tier(class)).to_vec();
    cgroups.push(own.clone());
    for (at, container) in containers.iter().enumerate() {
        let cgroup = own.child(format!("c{at}"));
        cgroups.push(cgroup.clone());
        snapshot.container_cgroups.push(ContainerCgroup {
            pod: uid.clone(),
            container: Some(container.name.clone()),
            cgroup,
        });
    }
    for cgroup in cgroups {
        let mut fresh = Observed::fresh(Version::V1, []);
        fresh.memory_usage = Some(Bytes::mebi(1));
        snapshot.cgroups.insert(cgroup, fresh);
    }
    snapshot.pods = vec![Pod {
        containers,
        ..pod("b", &[])
    }];
    snapshot
}

/// What is written below the besteffort tier, as text.
fn writes(snapshot: &Snapshot) -> Vec<String> {
    let tier = snapshot.kubepods.tier(QosClass::BestEffort);
    let all = plan(snapshot).into_iter();
    all.filter_map(|action| match action {
        Action::Write {
            cgroup, setting, ..
        } if cgroup
            .parent()
            .is_some_and(|parent| parent.is_within(&tier)) =>
        {
            Some(format!("{} {setting}", cgroup.last().unwrap_or_default()))
        }
        _ => None,
    })
    .collect()
}

#[test]
fn pod_and_container_get_shares_quota_and_limit_alone_and_beside_a_kubelet() {
    for ownership in [Ownership::Own, Ownership::Assist] {
        let snapshot = snapshot(ownership, vec![batch("app", 500, Bytes::gibi(2))]);
        let mut got = writes(&snapshot);
        got.sort();
        let want = [
            "c0 cpu quota 50000 of 100000 us",
            "c0 cpu shares 512",
            "c0 memory limit 2Gi",
            "podb cpu quota 50000 of 100000 us",
            "podb cpu shares 512",
            "podb memory limit 2Gi",
        ];
        assert_eq!(got, want, "{ownership:?}");
    }
}

#[test]
fn nothing_is_written_where_it_is_not_switched_on() {
    let mut off = snapshot(Ownership::Assist, vec![batch("app", 500, Bytes::gibi(2))]);
    off.enforce_reclaimed = false;
    assert_eq!(plan(&off), []);
}

#[test]
fn a_pod_with_an_unlimited_container_is_unlimited() {
    let mut open = batch("open", 500, Bytes::gibi(1));
    if let Some(reclaimed) = &mut open.resources.reclaimed {
        reclaimed.cpu_limit = None;
        reclaimed.memory_limit = None;
    }
    let containers = vec![batch("app", 500, Bytes::gibi(2)), open];
    let mut got = writes(&snapshot(Ownership::Assist, containers));
    got.sort();
    let want = [
        "c0 cpu quota 50000 of 100000 us",
        "c0 cpu shares 512",
        "c0 memory limit 2Gi",
        "c1 cpu shares 512",
    ];
    // 1,000 milli-CPU in all are 1,024 shares, which a fresh cgroup has.
    assert_eq!(got, want);
}

#[test]
fn a_pod_that_is_not_best_effort_keeps_the_kubelets_values() {
    let mut labelled = snapshot(Ownership::Assist, vec![batch("app", 500, Bytes::gibi(2))]);
    labelled.pods[0].colocation = Labels {
        qos_class: Some("SYSTEM".into()),
        ..Labels::default()
    };
    assert_eq!(writes(&labelled), Vec::<String>::new());
    let mut mixed = snapshot(Ownership::Assist, vec![batch("app", 500, Bytes::gibi(2))]);
    mixed.pods[0].containers[0].resources.cpu_request = Some(100.into());
    assert_eq!(writes(&mixed), Vec::<String>::new());
}

#[test]
fn a_container_whose_name_is_not_known_is_the_only_one_or_left() {
    let mut one = snapshot(Ownership::Assist, vec![batch("app", 500, Bytes::gibi(2))]);
    one.container_cgroups[0].container = None;
    assert_eq!(writes(&one).len(), 6);
    let two = vec![
        batch("a", 500, Bytes::gibi(1)),
        batch("b", 250, Bytes::gibi(1)),
    ];
    let mut two = snapshot(Ownership::Assist, two);
    two.container_cgroups[0].container = None;
    let got = writes(&two);
    assert!(got.iter().all(|write| !write.starts_with("c0")), "{got:?}");
    assert!(
        got.contains(&format!("podb cpu shares {}", CpuShares(768))),
        "{got:?}"
    );
}

#[test]
fn what_may_be_a_virtual_machine_gets_no_containers_limit() {
    let mut one = snapshot(Ownership::Assist, vec![batch("app", 500, Bytes::gibi(2))]);
    one.pods[0].overhead = Some(Overhead::default());
    let of_container = |snapshot: &Snapshot| {
        let writes = writes(snapshot).into_iter();
        writes.filter(|write| write.starts_with("c0")).count()
    };
    assert_eq!(of_container(&one), 3);
    one.container_cgroups[0].container = None;
    assert_eq!(of_container(&one), 0);
}

#[test]
fn a_limit_is_kept_above_what_is_in_use() {
    let mut full = snapshot(Ownership::Own, vec![batch("app", 500, Bytes::mebi(64))]);
    for observed in full.cgroups.values_mut() {
        observed.memory_usage = Some(Bytes::mebi(100));
    }
    let got = writes(&full);
    assert!(got.contains(&"podb memory limit 116Mi".into()), "{got:?}");
}
