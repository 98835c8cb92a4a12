use podwarden_abi::Pressed;
use podwarden_cgroup::{Hierarchies, Version};

use super::{compare::SLACK, *};
use crate::base::cpus;

fn record(anon_pages: u64) -> CgroupRecord {
    let mut items = [0; MemoryItem::COUNT];
    items[MemoryItem::Anon as usize] = anon_pages;
    CgroupRecord {
        session: 1,
        id: 7,
        parts: part::MEMORY | part::ITEMS,
        level: 1,
        usage_pages: anon_pages,
        peak_pages: anon_pages,
        limit_pages: u64::MAX,
        limit_hits: 0,
        items,
        refused_forks: 0,
        pids: 0,
        periods: 0,
        throttled_periods: 0,
        throttled_ns: 0,
        pressure_ns: [0; podwarden_abi::PRESSURES],
    }
}

fn with_id(id: u64) -> CgroupRecord {
    CgroupRecord { id, ..record(1) }
}

fn anon(bytes: u64) -> MemoryStat {
    MemoryStat {
        rss: bytes,
        ..MemoryStat::default()
    }
}

#[test]
fn a_record_lies_between_two_readings_of_the_file() {
    let page = bytes(1);
    let slack = SLACK * u64::from(cpus::online()) / page;
    let (one, two) = (anon(1000 * page), anon(9000 * page));
    for pages in [1000, 5000, 9000, 9000 + slack] {
        assert_eq!(compare(&record(pages), one, two), Ok(()));
        assert_eq!(compare(&record(pages), two, one), Ok(()));
    }
    let why = compare(&record(9001 + slack), one, two).unwrap_err();
    assert!(why.starts_with("anon is "), "{why}");
    assert!(
        compare(
            &record(0),
            anon((slack + 1) * page),
            anon((slack + 1) * page)
        )
        .is_err()
    );
}

#[test]
fn the_places_of_another_cgroup_are_not_its_own() {
    let mut places = Places::default();
    let (one, other) = (
        CgroupPath::from("kubepods/pod1"),
        CgroupPath::from("kubepods/pod2"),
    );
    places.of(&one).memory = Some(Known { id: 7, place: 3 });
    assert!(places.of(&one).memory.is_some());
    assert!(places.of(&other).memory.is_none());
    assert!(places.of(&one).memory.is_none());
}

#[test]
fn no_limit_is_none() {
    let mut record = record(0);
    assert_eq!(limit(&record), None);
    record.limit_pages = i64::MAX as u64 / bytes(1);
    assert_eq!(limit(&record), None);
    record.limit_pages = 256;
    assert_eq!(limit(&record), Some(bytes(256)));
}

#[test]
fn a_cgroup_made_anew_has_another_id() {
    let mut hierarchy = Hierarchy::default();
    let mut known = None;
    hierarchy.records = Gathered::of(vec![with_id(5), with_id(7)]);
    let found = hierarchy.record(&mut known, || Some(7)).map(|r| r.id);
    assert_eq!(found, Some(7));
    // Its record moves when another cgroup goes.
    hierarchy.records = Gathered::of(vec![with_id(7), with_id(9)]);
    let found = hierarchy.record(&mut known, || unreachable!());
    assert_eq!(found.map(|r| r.id), Some(7));
    hierarchy.records = Gathered::of(vec![with_id(8)]);
    assert!(hierarchy.record(&mut known, || unreachable!()).is_none());
    assert!(hierarchy.record(&mut known, || Some(8)).is_some());
}

#[test]
fn a_cgroup_without_pressure_is_told_from_one_without_a_record() {
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some("/none".into()),
        controllers: [(Controller::Memory, "/none".into())].into(),
    };
    let tree = Tree::new(hierarchies, "").unwrap();
    let counted = CgroupRecord {
        parts: part::PRESSURE,
        pressure_ns: [1, 2, 3, 4, 5, 6],
        ..with_id(5)
    };
    let mut walked = Walked::default();
    walked.memory.records = Gathered::of(vec![counted, with_id(7)]);
    let path = CgroupPath::from("kubepods/pod1");
    let known = |id| {
        let mut places = Places::default();
        places.of(&path).memory = Some(Known { id, place: 0 });
        places
    };
    let WalkedPressure::Counted(record) = walked.pressure(&tree, &path, &mut known(5)) else {
        panic!("its record has it");
    };
    let waited = [Pressed::Io, Pressed::Memory, Pressed::Cpu].map(|of| record.waited(of));
    assert_eq!(waited, [[1, 2], [3, 4], [5, 6]]);
    let found = walked.pressure(&tree, &path, &mut known(7));
    assert!(matches!(found, WalkedPressure::NotCounted), "{found:?}");
    let found = walked.pressure(&tree, &path, &mut known(9));
    assert!(matches!(found, WalkedPressure::NoRecord), "{found:?}");
}

#[test]
fn tasks_are_those_of_the_hierarchy_that_the_pids_controller_is_on() {
    let hierarchies = Hierarchies {
        version: Version::V1,
        v2_mount: None,
        controllers: [(Controller::Memory, "/none".into())].into(),
    };
    let tree = Tree::new(hierarchies, "").unwrap();
    let with_tasks = |id, pids| CgroupRecord {
        parts: part::PIDS,
        pids,
        ..with_id(id)
    };
    let path = CgroupPath::from("kubepods/pod1");
    let mut places = Places::default();
    let known = places.of(&path);
    (known.memory, known.pids) = (
        Some(Known { id: 5, place: 0 }),
        Some(Known { id: 6, place: 0 }),
    );
    let mut walked = Walked::default();
    walked.memory.records = Gathered::of(vec![with_id(4), with_tasks(5, 1)]);
    assert_eq!(walked.tasks(&tree, &path, &mut places), Some(1));
    let records = Gathered::of(vec![with_tasks(6, 2), with_id(7)]);
    walked.pids = Some(Hierarchy { records });
    assert_eq!(walked.tasks(&tree, &path, &mut places), Some(2));
    // They are older than memory's records, which each pass reads.
    walked.forget();
    assert_eq!(walked.tasks(&tree, &path, &mut places), Some(2));
    places.of(&path).pids = Some(Known { id: 7, place: 0 });
    assert_eq!(
        walked.tasks(&tree, &path, &mut places),
        None,
        "no pids controller"
    );
    walked.give_up();
    assert_eq!(walked.tasks(&tree, &path, &mut places), None);
}
