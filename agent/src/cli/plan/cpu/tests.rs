use podwarden_policy::colocation::{
    burst::NodeState,
    strategies::Measured,
    suppress::{self, Policy, Usage, cpuset},
};

use super::*;
use crate::cli::plan::{
    input::{Input, NodeArgs},
    report::Report,
};

const HEAD: &str = "apiVersion: podwarden.io/v1alpha1\nkind: Snapshot\n";
const ALL: &str = "\
cpuBurstStrategy: {policy: auto}, cpuWaitStrategy: {enable: true}, cpuSuppressThresholdPercent: 65, \
cpuSuppressMinPercent: 10";

/// A node of 2 CPUs with these keys of `colocation`, and what else is written.
fn input(colocation: &str, rest: &str) -> Input {
    let pods = include_str!("../pods.part.yaml");
    let text = format!(
        "{HEAD}node: {{cpu: 2, memory: 4Gi}}\nconfig: {{colocation: {{{colocation}}}}}\n{rest}{pods}"
    );
    Input::parse("test.yaml", &text, &NodeArgs::default()).unwrap()
}

/// `OF PART VALUE` of each row of a strategy.
fn shown(input: &Input, strategy: &str) -> Vec<String> {
    let rows = rows(&input.cpu_strategies, &input.snapshot);
    let of = rows.into_iter().filter(|row| row.strategy == strategy);
    of.map(|row| format!("{} {} {}", row.of, row.part, row.value.text()))
        .collect()
}

#[test]
fn without_figures_the_bounds_are_shown_and_what_is_missing_is_named() {
    let input = input(&format!("{ALL}, cpuSuppressPolicy: cfsQuota"), "");
    assert_eq!(
        shown(&input, SUPPRESS),
        [
            "besteffort node 1300m",
            "besteffort reserved 0m",
            "besteffort formula -"
        ]
    );
    assert_eq!(
        shown(&input, WAIT),
        [
            "besteffort now 2000m",
            "besteffort after a wait 1000m",
            "besteffort floor 100m",
            "default/one wait 5.00 ms",
        ]
    );
    // How busy the node is, is not known, so that nothing rises.
    assert_eq!(
        shown(&input, BURST),
        [
            "default/one/c limit 500m",
            "default/one/c throttled 500m",
            "default/one/c quota 1500m",
            "default/one/c burst 500m",
        ]
    );
    let table = Report::of(&input).table();
    assert!(table.contains("\nCPU strategies\nSTRATEGY"), "{table}");
    assert!(
        table.contains("pods and system are not measured"),
        "{table}"
    );
}

#[test]
fn strategies_that_are_off_have_no_rows() {
    let report = Report::of(&input("", ""));
    assert!(report.cpu_strategies.is_empty());
    assert!(!report.table().contains("CPU strategies"));
}

/// Others use 1,250m; of the 2 CPUs that may be used to 65 %, the floor of 200m is more than what is left.
fn measured(quota_us: Option<u64>) -> Strategies {
    let mut all = input(&format!("{ALL}, cpuSuppressPolicy: cfsQuota"), "").cpu_strategies;
    all.suppress.as_mut().unwrap().measured = Some(Measured {
        usage: Usage {
            node: MilliCpu(1900),
            pods: MilliCpu(1700),
            best_effort_pods: MilliCpu(650),
            ..Usage::default()
        },
        quota_us,
        ..Measured::default()
    });
    let wait = &mut all.wait.as_mut().unwrap().measured;
    wait.limit = Some(MilliCpu(900));
    wait.used = Some(MilliCpu(650));
    (wait.pod, wait.nanos) = (Some("a".into()), Some(3_100_000));
    all.burst.as_mut().unwrap().state = NodeState::Idle;
    all
}

#[test]
fn what_was_measured_shows_each_figure_of_the_formula_and_the_next_step() {
    let recorded = serde_json::to_string(&measured(Some(65_000))).unwrap();
    let input = input(
        &format!("{ALL}, cpuSuppressPolicy: cfsQuota"),
        &format!("cpuStrategies: {recorded}\n"),
    );
    assert_eq!(input.cpu_strategies, measured(Some(65_000)));
    assert_eq!(
        shown(&input, SUPPRESS),
        [
            "besteffort node 1300m",
            "besteffort pods 1050m",
            "besteffort system 200m",
            "besteffort floor 200m",
            "besteffort formula 200m",
            "besteffort quota 650m",
            "besteffort next 200m",
        ]
    );
    assert_eq!(
        shown(&input, WAIT)[..3],
        [
            "besteffort now 900m",
            "besteffort after quiet 1100m",
            "besteffort after a wait 325m"
        ]
    );
    let rows = rows(&input.cpu_strategies, &input.snapshot);
    let now = rows.iter().find(|row| row.part == "now").unwrap();
    assert_eq!(now.from, "default/one waited 3.10 ms for a CPU");
    let of_burst = shown(&input, BURST);
    assert!(
        of_burst.contains(&"default/one/c throttled 600m".to_owned()),
        "{of_burst:?}"
    );
    let json = serde_json::to_value(&rows[0]).unwrap();
    let expected = serde_json::json!({
        "strategy": SUPPRESS, "of": TIER, "sign": "", "part": "node", "cpuMilli": 1300, "from": "65 % of 2000m",
    });
    assert_eq!(json, expected);
}

#[test]
fn the_next_quota_is_the_policys() {
    for quota in [None, Some(1000), Some(2000), Some(20_000), Some(65_000)] {
        let all = measured(quota);
        let suppress = all.suppress.as_ref().unwrap();
        let quantity = suppress.quantity().unwrap();
        let next = suppress::next_quota(quantity, quota.into(), MilliCpu(2000)).or(quota);
        let rows = held::suppress(suppress);
        let row = rows.last().unwrap();
        let milli = next.map(|next| i64::try_from(next / 100).unwrap());
        assert_eq!(row.value, milli.map_or(Value::None, Value::CpuMilli));
    }
}

#[test]
fn cpus_of_other_pods_are_shown_and_never_next() {
    let cpu = |id| cpuset::Cpu {
        id,
        core: id,
        socket: 0,
        node: 0,
    };
    let mut suppress = input(ALL, "").cpu_strategies.suppress.unwrap();
    assert_eq!(suppress.policy, Policy::Cpuset);
    suppress.node.capacity = MilliCpu(4000);
    let mut measured = Measured::default();
    measured.sets.cpus = (0..4).map(cpu).collect();
    measured.sets.present = (0..4).collect();
    measured.sets.excluded = [0].into();
    suppress.measured = Some(measured);
    let rows = held::suppress(&suppress);
    let list = |part| {
        rows.iter()
            .find(|row| row.part == part)
            .unwrap()
            .value
            .text()
    };
    assert_eq!(
        (list("exclusive"), list("cpus"), list("next")),
        ("0".to_owned(), "0-3".to_owned(), "1-3".to_owned())
    );
}

#[test]
fn beside_a_kubelet_nothing_is_held_and_a_pod_without_effect_says_why() {
    let mut input = input(&format!("{ALL}, cpuSuppressPolicy: cfsQuota"), "");
    input.snapshot.ownership = Ownership::Assist;
    let one = &mut input.snapshot.pods[0];
    one.colocation.qos_class = Some("BE".to_owned());
    for strategy in [SUPPRESS, WAIT] {
        assert_eq!(shown(&input, strategy), ["besteffort not held -"]);
    }
    let rows = rows(&input.cpu_strategies, &input.snapshot);
    let last = rows.last().unwrap();
    assert_eq!((last.strategy, last.of.as_str()), (BURST, "default/one"));
    assert!(
        last.from.contains("koordinator.sh/qosClass"),
        "{}",
        last.from
    );
}

#[test]
fn another_size_of_the_node_changes_what_follows_from_it() {
    let all = measured(Some(65_000)).on(MilliCpu(8000));
    let suppress = all.suppress.as_ref().unwrap();
    // 65 % of 8 CPUs less 1,050m and 200m.
    assert_eq!(suppress.quantity(), Some(3950));
    let bounds = all.wait.unwrap().bounds;
    assert_eq!((bounds.cpus.0, bounds.floor.0), (8000, 400));
}
