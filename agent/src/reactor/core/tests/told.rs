use super::*;

#[test]
fn what_is_told_is_what_decided() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL - 300_000, true);
    fake.uses("kubepods", LEVEL + 3000);
    fake.caches("kubepods", 2000);
    fake.caches("b", 1000);
    let told = |reports: &[Report]| {
        let chosen = reports.iter().find_map(|report| match report {
            Report::Chosen(chosen) => Some(*chosen),
            _ => None,
        });
        let chosen = chosen.unwrap();
        let Crossing {
            usage,
            working_set,
            target,
            ..
        } = chosen.crossing;
        (
            usage,
            working_set,
            target,
            chosen.usage - chosen.working_set,
        )
    };
    let first = fake.step();
    let Report::Crossed(crossing) = first[0] else {
        panic!("{first:?}")
    };
    assert_eq!(crossing.working_set, LEVEL + 1000);
    assert_eq!(told(&first), (LEVEL + 3000, LEVEL + 1000, LEVEL, 1000));
    fake.uses("b", 0);
    fake.uses("kubepods", LEVEL - 250_000);
    let (used, target) = (LEVEL - 250_000, LEVEL - 300_000);
    assert_eq!(told(&fake.step()), (used, used - 2000, target, 0));
}

#[test]
fn observing_says_it_once_and_kills_none() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, false);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, false)]);
    assert_eq!(fake.step(), []);
    assert!(!fake.killed("b"));
}

#[test]
fn a_new_plan_keeps_what_was_said() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, false);
    fake.uses("kubepods", LEVEL);
    assert_eq!(chosen(&fake.step()), [(2, false)]);
    fake.arm(PODS, LEVEL, false);
    assert_eq!(fake.step(), []);
    // Rung without a new one.
    fake.core.take_plan();
    assert_eq!(fake.step(), []);
}
