mod restarts;

use std::collections::HashMap;

use podwarden_abi::Tracked;

use super::*;
use crate::kernel::accounts::PodKey;

/// Accounts in a table.
#[derive(Default)]
struct Table {
    slots: HashMap<u32, Account>,
    folded: HashMap<FoldTarget, Account>,
    gone: Vec<(u64, Option<u32>)>,
}

impl Table {
    fn cpu(&mut self, slot: u32, ns: u64) {
        self.slots.entry(slot).or_default().cpu_ns += ns;
    }
}

impl AccountReader for Table {
    fn read(&self, slot: u32) -> Option<Account> {
        self.slots.get(&slot).copied()
    }
    fn activity(&self, slot: u32) -> u64 {
        self.slots.get(&slot).map_or(0, |account| account.cpu_ns)
    }
    fn folded(&self, target: FoldTarget) -> Account {
        self.folded.get(&target).copied().unwrap_or_default()
    }
}

impl AccountStore for Table {
    fn fold(&mut self, id: u64, own: Option<u32>, target: FoldTarget) {
        self.gone.push((id, own));
        let before = self.folded.remove(&FoldTarget::Cgroup(id));
        let figures = own.and_then(|slot| self.slots.remove(&slot));
        for left in [before, figures].into_iter().flatten() {
            self.folded.entry(target).or_default().accumulate(&left);
        }
    }
}

const ROOT: u64 = 1;

fn change(id: u64, parent: u64, slot: u32, name: &str) -> CgroupChange {
    CgroupChange {
        time_ns: 0,
        id,
        parent,
        slot,
        depth: 0,
        name: name.to_owned(),
    }
}

/// kubepods(1) / besteffort(2) / podp(3) / c(4) / nested(5, counts to c's account).
fn small_tree() -> CgroupIndex {
    let mut index = CgroupIndex::new(ROOT, &"kubepods".into(), 1);
    for c in [
        change(2, ROOT, 2, "besteffort"),
        change(3, 2, 3, "podaaaa"),
        change(4, 3, 4, "c"),
        change(5, 4, 4, "nested"),
    ] {
        index.created(&c).expect("its parent is known");
    }
    index
}

fn pod_total(index: &CgroupIndex, uid: &str, table: &Table) -> u64 {
    let entry = &index.pods()[uid];
    let containers: u64 = entry
        .containers
        .values()
        .map(|c| index.container(c, table).cpu_ns)
        .sum();
    index.pod_only(entry, table).cpu_ns + containers
}

#[test]
fn nested_cgroups_belong_to_their_container() {
    let index = small_tree();
    assert_eq!(index.owner(5), Some((&"aaaa".into(), Some("c"))));
    assert_eq!(index.owner(3), Some((&"aaaa".into(), None)));
    assert_eq!(index.owner(2), None);
    assert_eq!(index.pods()["aaaa"].class, QosClass::BestEffort);
}

#[test]
fn a_shared_account_counts_once() {
    let index = small_tree();
    let mut table = Table::default();
    table.cpu(4, 100);
    table.cpu(3, 5);
    assert_eq!(pod_total(&index, "aaaa", &table), 105);
}

#[test]
fn a_container_that_is_gone_keeps_counting_for_its_pod() {
    let mut index = small_tree();
    let mut table = Table::default();
    table.cpu(4, 100);
    assert!(index.released(5, &mut table).is_empty());
    let changes = index.released(4, &mut table);
    assert_eq!(
        changes,
        [Change::ContainerGone {
            uid: "aaaa".into(),
            container: "c".to_owned(),
            path: "kubepods/besteffort/podaaaa/c".into(),
        }]
    );
    assert_eq!(pod_total(&index, "aaaa", &table), 100);
    assert_eq!(table.gone, [(5, None), (4, Some(4))]);
}

#[test]
fn removal_waits_for_the_last_tasks() {
    let mut index = small_tree();
    let mut table = Table::default();
    let now = Instant::now();
    for id in [5, 4, 3] {
        index.removed(id, now);
    }
    // A task that was exiting is switched out after rmdir.
    table.cpu(4, 7);
    assert!(index.expire(now, &mut table).is_empty());
    let changes = index.expire(now + GRACE, &mut table);
    let Some(Change::PodGone { uid, total, .. }) = changes.last() else {
        panic!("the pod is not gone: {changes:?}");
    };
    assert_eq!((uid.as_str(), total.cpu_ns), ("aaaa", 7));
    assert!(index.pods().is_empty());
    assert!(index.next_expiry().is_none());
}

#[test]
fn a_release_before_the_grace_is_over_is_final_and_counts_once() {
    let mut index = small_tree();
    let mut table = Table::default();
    table.cpu(4, 9);
    let now = Instant::now();
    for id in [5, 4, 3] {
        index.removed(id, now);
        index.released(id, &mut table);
    }
    assert!(index.pods().is_empty());
    assert!(index.expire(now + GRACE, &mut table).is_empty());
    assert_eq!(table.gone.len(), 3);
}

#[test]
fn a_child_of_an_unknown_cgroup_is_not_entered() {
    let mut index = small_tree();
    assert!(index.created(&change(9, 8, 9, "x")).is_none());
    assert!(!index.contains(9));
}

#[test]
fn the_same_creation_twice_changes_nothing() {
    let mut index = small_tree();
    assert_eq!(index.created(&change(3, 2, 3, "podaaaa")), Some(Vec::new()));
    assert_eq!(index.pods().len(), 1);
}

#[test]
fn a_pod_is_gone_with_the_last_of_its_cgroups_in_whatever_order() {
    for order in [[3, 4, 5], [4, 3, 5], [5, 3, 4], [3, 5, 4]] {
        let mut index = small_tree();
        let mut table = Table::default();
        table.cpu(3, 1);
        table.cpu(4, 10);
        let mut changes = Vec::new();
        for id in order {
            changes.extend(index.released(id, &mut table));
        }
        let stopped = |c: &Change| matches!(c, Change::ContainerGone { .. });
        assert_eq!(
            changes.iter().filter(|c| stopped(c)).count(),
            1,
            "{order:?}"
        );
        let Some(Change::PodGone { path, total, .. }) = changes.last() else {
            panic!("{order:?}: the pod is not gone: {changes:?}");
        };
        assert_eq!(
            (path.as_str(), total.cpu_ns),
            ("kubepods/besteffort/podaaaa", 11)
        );
        assert_eq!(index.gone(QosClass::BestEffort, &table).cpu_ns, 11);
        assert_eq!(index.others(&table).cpu_ns, 0);
    }
}

#[test]
fn a_pod_made_anew_under_its_uid_lives_on() {
    let mut index = small_tree();
    let mut table = Table::default();
    table.cpu(4, 100);
    let now = Instant::now();
    for id in [5, 4, 3] {
        index.removed(id, now);
    }
    index.created(&change(13, 2, 13, "podaaaa")).unwrap();
    index.created(&change(14, 13, 14, "c")).unwrap();
    table.cpu(14, 7);
    assert_eq!(index.expire(now + GRACE, &mut table), []);
    let entry = &index.pods()["aaaa"];
    assert!(entry.containers["c"].live, "the new one is");
    assert_eq!(pod_total(&index, "aaaa", &table), 107);
    assert_eq!(index.owner(14), Some((&"aaaa".into(), Some("c"))));
}

#[test]
fn restarted_containers_leave_no_entry_and_lose_nothing() {
    let mut index = small_tree();
    let mut table = Table::default();
    for n in 0..100_u32 {
        let id = u64::from(100 + n);
        index
            .created(&change(id, 3, 100 + n, &format!("c{n}")))
            .unwrap();
        table.cpu(100 + n, 1);
        index.released(id, &mut table);
    }
    assert_eq!(index.pods()["aaaa"].containers.len(), 1, "c lives");
    assert_eq!(pod_total(&index, "aaaa", &table), 100);
}

fn tracked(parent: u64, slot: u32, depth: u16) -> Tracked {
    Tracked {
        slot,
        depth,
        own: u16::from(slot != 0),
        parent,
    }
}

#[test]
fn a_container_that_went_unseen_counts_to_its_pod_and_is_not_shown() {
    let mut index = small_tree();
    let mut table = Table::default();
    let now = Instant::now();
    table.cpu(4, 1);
    table.cpu(6, 10);
    table.cpu(7, 100);
    // Two of the pod's containers, the second with a cgroup in it, and one inside the container that lives.
    let gone = [
        (6, tracked(3, 6, 3), None),
        (8, tracked(3, 0, 3), None),
        (7, tracked(8, 7, 4), None),
        (9, tracked(4, 9, 4), None),
    ];
    index.inherit(gone, now);
    table.cpu(9, 1000);
    assert_eq!(pod_total(&index, "aaaa", &table), 1111);
    let entry = &index.pods()["aaaa"];
    assert_eq!(index.container(&entry.containers["c"], &table).cpu_ns, 1001);
    let live = entry.containers.values().filter(|container| container.live);
    assert_eq!(live.count(), 1);
    assert_eq!(
        entry.cgroup_id(),
        Some(3),
        "the pod's, not one that is gone"
    );
    assert_eq!(index.expire(now + GRACE, &mut table), []);
    assert_eq!(pod_total(&index, "aaaa", &table), 1111);
    let entry = &index.pods()["aaaa"];
    assert_eq!(index.container(&entry.containers["c"], &table).cpu_ns, 1001);
    assert_eq!(entry.containers.len(), 1);
}

#[test]
fn a_pod_that_went_unseen_counts_to_its_class() {
    let mut index = small_tree();
    let mut table = Table::default();
    let now = Instant::now();
    // By its tier; by what was noted, although its tier is another by now; by neither.
    let noted = PodKey::new(QosClass::Burstable, "gone");
    let gone = [
        (6, tracked(2, 6, 2), None),
        (7, tracked(99, 7, 2), Some(noted)),
        (8, tracked(7, 8, 3), None),
        (9, tracked(99, 9, 2), None),
    ];
    index.inherit(gone, now);
    for slot in [6, 7, 8, 9] {
        table.cpu(slot, 10_u64.pow(slot - 6));
    }
    let look = |index: &CgroupIndex, table: &Table| {
        assert_eq!(index.gone(QosClass::BestEffort, table).cpu_ns, 1);
        assert_eq!(index.gone(QosClass::Burstable, table).cpu_ns, 110);
        assert_eq!(index.gone(QosClass::Guaranteed, table).cpu_ns, 0);
        assert_eq!(index.others(table).cpu_ns, 1000);
        assert_eq!(index.pods().len(), 1, "no change names them");
    };
    look(&index, &table);
    assert_eq!(index.expire(now + GRACE, &mut table), []);
    look(&index, &table);
}

#[test]
fn a_pod_made_anew_while_no_agent_ran_goes_on_under_its_uid() {
    let mut index = small_tree();
    let mut table = Table::default();
    let now = Instant::now();
    let same = PodKey::new(QosClass::BestEffort, "aaaa");
    table.cpu(3, 1);
    table.cpu(8, 70);
    table.cpu(9, 5);
    // Its cgroup before this one, with the container that was in it.
    let gone = [
        (1_000, tracked(2, 8, 2), Some(same)),
        (1_001, tracked(1_000, 9, 3), None),
    ];
    index.inherit(gone, now);
    assert_eq!(pod_total(&index, "aaaa", &table), 76);
    index.expire(now + GRACE, &mut table);
    assert_eq!(pod_total(&index, "aaaa", &table), 76);
    assert_eq!(index.gone(QosClass::BestEffort, &table).cpu_ns, 0);
}

#[test]
fn children_leave_before_their_parents() {
    let mut index = small_tree();
    let missing = index.missing_from(&[ROOT, 2].into());
    assert_eq!(missing, [5, 4, 3]);
    let mut table = Table::default();
    let now = Instant::now();
    let gone = [
        (10, tracked(2, 0, 2), None),
        (11, tracked(10, 0, 3), None),
        (12, tracked(11, 0, 4), None),
    ];
    index.inherit(gone, now);
    index.expire(now + GRACE, &mut table);
    assert_eq!(table.gone, [(12, None), (11, None), (10, None)]);
}

#[test]
fn what_is_known_is_not_inherited() {
    let mut index = small_tree();
    index.inherit([(4, tracked(3, 4, 3), None)], Instant::now());
    assert!(index.next_expiry().is_none(), "it is not gone");
}

/// Each of the sets that a fold looks through has one cgroup; with a sum over the container's this takes minutes.
#[test]
fn a_hundred_thousand_nested_cgroups_go_at_once() {
    let mut index = small_tree();
    let mut table = Table::default();
    let now = Instant::now();
    let nested = 100..100_100;
    for id in nested.clone() {
        index.created(&change(id, 4, 4, &format!("n{id}"))).unwrap();
    }
    for id in nested.clone() {
        index.removed(id, now);
    }
    let changes = index.expire(now + GRACE, &mut table);
    assert!(changes.is_empty());
    assert!(nested.eq(table.gone.iter().map(|(id, _)| *id)));
    assert!(index.contains(4));
}
