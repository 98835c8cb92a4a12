use std::collections::HashMap;

use podwarden_cgroup::CgroupPath;

use super::*;
use crate::{
    accounting::index::{AccountStore, Change},
    api::types::{ContainerStats, CpuStats, PodRef},
    kernel::{accounts::FoldTarget, events::CgroupChange},
};

/// Activity by account.
#[derive(Default)]
struct Table(HashMap<u32, u64>);

impl AccountReader for Table {
    fn read(&self, _: u32) -> Option<Account> {
        None
    }
    fn activity(&self, slot: u32) -> u64 {
        self.0.get(&slot).copied().unwrap_or_default()
    }
    fn folded(&self, _: FoldTarget) -> Account {
        Account::default()
    }
}

impl AccountStore for Table {
    fn fold(&mut self, _: u64, _: Option<u32>, _: FoldTarget) {}
}

fn created(index: &mut CgroupIndex, id: u64, parent: u64, name: &str) -> Vec<Change> {
    let change = CgroupChange {
        time_ns: 0,
        id,
        parent,
        slot: u32::try_from(id).unwrap(),
        depth: 0,
        name: name.to_owned(),
    };
    index.created(&change).unwrap()
}

/// kubepods(1), its pods `aa` (2) with the container `c` (3), and `bb` (4).
fn two_pods() -> CgroupIndex {
    let mut index = CgroupIndex::new(1, &CgroupPath::from("kubepods"), 1);
    for (id, parent, name) in [(2, 1, "podaa"), (3, 2, "c"), (4, 1, "podbb")] {
        created(&mut index, id, parent, name);
    }
    index
}

fn uids(idle: &IdlePods) -> Vec<&str> {
    let mut uids: Vec<_> = idle.ran.iter().map(|uid| &**uid).collect();
    uids.sort_unstable();
    uids
}

#[test]
fn a_pod_that_ran_is_read() {
    let mut index = two_pods();
    let mut table = Table::default();
    let mut idle = IdlePods::default();
    assert!(idle.note(&index, &table), "every pod is new");
    assert_eq!(uids(&idle), ["aa", "bb"]);
    assert_eq!(idle.look(&index, &table), None);
    assert!(idle.ran.is_empty());
    *table.0.entry(3).or_default() += 1;
    let ran = Some(Extent::Ran);
    assert_eq!(idle.look(&index, &table), ran, "a container of its ran");
    assert_eq!(uids(&idle), ["aa"]);
    assert_eq!(idle.look(&index, &table), None);
    created(&mut index, 5, 4, "c");
    assert_eq!(idle.look(&index, &table), ran, "another container");
    assert_eq!(uids(&idle), ["bb"]);
    created(&mut index, 6, 1, "podcc");
    assert_eq!(idle.look(&index, &table), ran, "another pod");
    assert_eq!(uids(&idle), ["cc"]);
}

#[test]
fn where_most_pods_run_there_are_few_looks() {
    let index = two_pods();
    let mut table = Table::default();
    let mut idle = IdlePods::default();
    let whole = Some(Extent::Idle);
    for _ in 0..3 {
        *table.0.entry(3).or_default() += 1;
        *table.0.entry(4).or_default() += 1;
        assert_eq!(idle.look(&index, &table), whole, "both ran");
        // Whether or not a pod runs meanwhile.
        for _ in 0..WITHOUT_LOOK {
            assert_eq!(idle.look(&index, &table), whole);
            *table.0.entry(4).or_default() += 1;
        }
    }
    // What ran before the last of them is no news.
    *table.0.entry(4).or_default() -= 1;
    assert_eq!(idle.look(&index, &table), None);
    *table.0.entry(4).or_default() += 1;
    assert_eq!(idle.look(&index, &table), Some(Extent::Ran));
}

#[test]
fn a_pod_that_went_takes_another_pass() {
    let table = Table::default();
    let mut idle = IdlePods::default();
    idle.note(&two_pods(), &table);
    let mut one = CgroupIndex::new(1, &CgroupPath::from("kubepods"), 1);
    created(&mut one, 4, 1, "podbb");
    assert!(idle.note(&one, &table));
    assert!(idle.ran.is_empty());
    assert_eq!(idle.look(&one, &table), None);
}

#[test]
fn what_did_not_run_keeps_its_figures_and_uses_no_cpu() {
    let index = two_pods();
    let mut table = Table::default();
    let mut idle = IdlePods::default();
    let cpu = |used| CpuStats {
        usage_core_nano_seconds: used,
        usage_nano_cores: Some(7),
        ..CpuStats::default()
    };
    let stats = PodStats {
        pod_ref: PodRef::default(),
        cpu: cpu(5),
        containers: vec![ContainerStats {
            cpu: cpu(4),
            ..ContainerStats::default()
        }],
        ..PodStats::default()
    };
    let account = Account {
        cpu_ns: 5,
        ..Account::default()
    };
    let (a, b) = (PodUid::from("aa"), PodUid::from("bb"));
    idle.note(&index, &table);
    let last = || Some((stats.clone(), account));
    *table.0.entry(3).or_default() += 1;
    idle.note(&index, &table);
    assert_eq!(idle.unchanged(Extent::Idle, &b, last), None, "a whole pass");
    assert_eq!(idle.unchanged(Extent::Ran, &a, last), None, "it ran");
    let (found, total) = idle.unchanged(Extent::Ran, &b, last).unwrap();
    assert_eq!(total, account);
    assert_eq!(found.cpu.usage_core_nano_seconds, 5);
    assert_eq!(found.cpu.usage_nano_cores, Some(0));
    assert_eq!(found.containers[0].cpu.usage_nano_cores, Some(0));
    assert_eq!(
        idle.unchanged(Extent::Ran, &b, || None),
        None,
        "the pass before did not have it"
    );
}
