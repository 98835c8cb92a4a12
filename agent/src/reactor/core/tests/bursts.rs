use super::*;

/// A level of 400 MiB with the limit right above it, and usage that comes close within some milliseconds;
/// `inactive` of it is page cache.
fn burst(limit: Option<u64>, inactive: u64) -> Vec<Report> {
    burst_of(ScopeName::Kubepods, limit, |fake| {
        fake.caches("kubepods", inactive);
    })
}

/// The same of any scope, which `holds` something then.
fn burst_of(scope: ScopeName, limit: Option<u64>, holds: impl FnOnce(&Fake)) -> Vec<Report> {
    let mut fake = Fake::new(60, 64);
    for (rel, mib) in [("kubepods", 200), ("a", 100), ("b", 300)] {
        fake.cgroup(rel, mib * MIB);
    }
    if let Some(limit) = limit {
        fake.limits("kubepods", limit);
    }
    let level = 400 * MIB;
    fake.arm_scope(scope, "kubepods", level, &["a", "b"], level, true);
    assert_eq!(fake.step(), []);
    std::thread::sleep(Duration::from_millis(3));
    fake.uses("kubepods", level - MIB / 2);
    holds(&fake);
    fake.step()
}

#[test]
fn a_burst_below_a_hard_limit_is_met_before_the_level() {
    let limit = 401 * MIB;
    let reports = burst(Some(limit), 0);
    assert_eq!(chosen(&reports), [(2, true)]);
    let Some(Report::Crossed(crossing)) = reports.first() else {
        panic!("{reports:?}");
    };
    assert!(
        crossing.headroom > 0 && crossing.fill_rate > 0,
        "{crossing:?}"
    );
    assert_eq!(crossing.level + crossing.headroom, 400 * MIB);
    assert!(crossing.headroom <= limit / 10, "{crossing:?}");
}

#[test]
fn without_a_limit_a_burst_may_reach_the_level() {
    assert_eq!(burst(None, 0), []);
}

#[test]
fn page_cache_that_fills_up_is_no_burst() {
    assert_eq!(burst(Some(401 * MIB), 200 * MIB), []);
}

#[test]
fn page_cache_of_a_tier_costs_none_be_it_in_use() {
    let is_crossed = |scope, anon: u64| {
        let mut fake = Fake::new(60, 64);
        for (rel, mib) in [("kubepods", 410), ("a", 100), ("b", 300)] {
            fake.cgroup(rel, mib * MIB);
        }
        let active = 400 - anon;
        fake.holds("kubepods", anon * MIB, 10 * MIB, active * MIB);
        fake.arm_scope(scope, "kubepods", 390 * MIB, &["a", "b"], 390 * MIB, true);
        !fake.step().is_empty()
    };
    for tier in [ScopeName::Burstable, ScopeName::BestEffort] {
        assert!(!is_crossed(tier, 160));
        assert!(is_crossed(tier, 390));
    }
    assert!(is_crossed(ScopeName::Kubepods, 160), "its working set");
}

#[test]
fn page_cache_that_comes_back_is_no_burst_before_it_is_on_a_list() {
    let burst = |anon: u64| {
        let reports = burst_of(ScopeName::BestEffort, Some(401 * MIB), |fake| {
            fake.holds("kubepods", anon * MIB, 0, 0);
        });
        chosen(&reports)
    };
    assert_eq!(burst(200), []);
    assert_eq!(burst(399), [(2, true)]);
}

#[test]
fn a_tiers_limit_below_its_level_is_on_its_way() {
    let burst = |scope| {
        let reports = burst_of(scope, Some(300 * MIB), |fake| {
            fake.holds("kubepods", 399 * MIB, 0, 0);
        });
        chosen(&reports)
    };
    assert_eq!(burst(ScopeName::BestEffort), []);
    assert_eq!(burst(ScopeName::Kubepods), [(2, true)]);
}

#[test]
fn a_full_node_costs_a_pod_whose_own_level_is_far_away() {
    let mut fake = three_pods(60);
    fake.cgroup("node", LEVEL - 1);
    fake.arm_scope(ScopeName::Node, "node", LEVEL, PODS, LEVEL, true);
    assert_eq!(fake.step(), []);
    fake.uses("node", LEVEL);
    // Its figures are dear: not at every turn.
    fake.core.node.put_off();
    assert_eq!(fake.step(), []);
    fake.core.node.make_due();
    let reports = fake.step();
    assert_eq!(chosen(&reports), [(2, true)]);
    let Some(Report::Crossed(crossing)) = reports.first() else {
        panic!("{reports:?}");
    };
    assert_eq!(crossing.scope, ScopeName::Node);
}

#[test]
fn pods_that_use_up_the_nodes_room_are_met_before_its_next_look() {
    let mut fake = Fake::new(60, 64);
    for (rel, mib) in [("node", 600), ("kubepods", 200), ("a", 50), ("b", 100)] {
        fake.cgroup(rel, mib * MIB);
    }
    let scopes = [
        (ScopeName::Node, "node", 700 * MIB, 700 * MIB),
        (ScopeName::Kubepods, "kubepods", 2000 * MIB, 2000 * MIB),
    ];
    fake.arm_scopes(&scopes, &["a", "b"], true);
    assert_eq!(fake.step(), []);
    fake.core.node.put_off();
    fake.uses("node", 690 * MIB);
    fake.uses("kubepods", 290 * MIB);
    std::thread::sleep(2 * fake.core.config.min_interval);
    assert_eq!(
        fake.step(),
        [],
        "100 MiB were left to pods, and they used 90"
    );
    fake.uses("node", 701 * MIB);
    fake.uses("kubepods", 301 * MIB);
    fake.uses("b", 200 * MIB);
    std::thread::sleep(2 * fake.core.config.min_interval);
    let reports = fake.step();
    assert_eq!(chosen(&reports), [(2, true)]);
    let Some(Report::Crossed(crossing)) = reports.first() else {
        panic!("{reports:?}");
    };
    assert_eq!(crossing.scope, ScopeName::Node);
}

#[test]
fn cpus_that_come_online_count_from_the_next_plan_on() {
    let mut fake = three_pods(60);
    fake.arm(PODS, LEVEL, true);
    let ahead = fake.core.costs.ahead;
    assert!(ahead > 0);
    fake.cpus = 512;
    fake.arm(PODS, LEVEL, true);
    assert_eq!(fake.core.costs.ahead, 256 * ahead);
}
