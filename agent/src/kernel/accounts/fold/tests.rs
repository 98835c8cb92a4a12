use super::{tables::Tables, *};

const SLOTS: u32 = 64;

#[test]
fn a_table_that_contradicts_itself_gives_no_account_to_two() {
    let tracked = |slot, own, depth| Tracked {
        slot,
        own,
        depth,
        parent: 0,
    };
    let table = vec![
        (10, tracked(5, 1, 1)),
        (11, tracked(5, 1, 2)),
        (12, tracked(SLOTS, 1, 2)),
        (13, tracked(NO_SLOT, 1, 2)),
        (14, tracked(5, 0, 2)),
    ];
    let mut tables = Tables {
        tracked: table.iter().copied().collect(),
        ..Tables::default()
    };
    let settled = settle(&mut Records::new(), &mut tables, table, SLOTS);
    assert_eq!(settled.wrong, 3);
    assert_eq!(settled.used, HashSet::from([5]));
    let ids = |found: &[(u64, Tracked)]| found.iter().map(|(id, _)| *id).collect::<Vec<_>>();
    assert_eq!(ids(&settled.inherited), [10, 14]);
    assert_eq!(tables.tracked.into_keys().collect::<Vec<_>>(), [10, 14]);
}

#[test]
fn a_record_of_what_is_in_no_table_is_inherited() {
    let record = Record {
        class: 2,
        ..Record::default()
    };
    let mut records = Records::from([(7, record), (constant(2), record), (constant(0), record)]);
    let settled = settle(&mut records, &mut Tables::default(), Vec::new(), SLOTS);
    assert_eq!(settled.inherited, [(7, Tracked::default())]);
    assert_eq!(records.len(), 3, "it is kept until it is folded");
}
