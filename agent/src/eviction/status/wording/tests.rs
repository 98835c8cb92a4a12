use k8s_openapi::api::{core::v1, policy::v1 as policy};

use podwarden_policy::signal::ScopeName;

use super::*;

const MIB: u64 = 1 << 20;

fn an_eviction(scope: &str) -> Eviction {
    Eviction {
        pod: PodRef {
            name: "web".into(),
            namespace: "shop".into(),
            uid: "u1".into(),
        },
        qos_class: "BestEffort".to_owned(),
        scope: *ScopeName::ALL.iter().find(|s| s.as_str() == scope).unwrap(),
        level_bytes: 370 * MIB,
        headroom_bytes: 14 * MIB,
        fill_bytes_per_second: 1024 * MIB,
        usage_bytes: 470 * MIB,
        working_set_bytes: Some(400 * MIB),
        victim_usage_bytes: 290 * MIB,
        victim_working_set_bytes: Some(200 * MIB),
        reason: "uses more than it requests".to_owned(),
        ..Eviction::default()
    }
}

const SIZES: Sizes = Sizes {
    pods: 512 * MIB,
    node: 1024 * MIB,
};

#[test]
fn the_message_has_the_signal_and_the_figures() {
    let tail = "Pod was using 200Mi, of class BestEffort: uses more than it requests. ";
    for (scope, why) in [
        (
            "kubepods",
            "The node was low on resource: memory. Threshold quantity: 128Mi, available: 112Mi. ",
        ),
        (
            "node",
            "The node was low on resource: memory. Threshold quantity: 640Mi, available: 624Mi. ",
        ),
        (
            "besteffort",
            "The besteffort tier was low on resource: memory. Its level is 384Mi, it used 400Mi. ",
        ),
        (
            "pressure",
            "The node had condition: [MemoryPressure]. Tasks waited for memory. ",
        ),
        ("cpu", "The node was low on resource: cpu. "),
    ] {
        let message = eviction(&an_eviction(scope), &SIZES);
        assert_eq!(message, format!("{why}{tail}"));
    }
    // Of an agent that recorded usage alone.
    let old = Eviction {
        working_set_bytes: None,
        victim_working_set_bytes: None,
        ..an_eviction("kubepods")
    };
    let message = eviction(&old, &SIZES);
    let expected = ", available: 42Mi. Pod was using 290Mi,";
    assert!(message.contains(expected), "{message}");
    let long = Eviction {
        reason: "ä".repeat(2000),
        ..an_eviction("node")
    };
    assert!(eviction(&long, &SIZES).len() <= LONGEST);
}

#[test]
fn what_is_above_the_threshold_is_told_with_the_reason() {
    let of = |scope, used: u64, target: Option<u64>| {
        let eviction = Eviction {
            working_set_bytes: Some(used * MIB),
            target_bytes: target.map(|target| target * MIB),
            ..an_eviction(scope)
        };
        super::eviction(&eviction, &SIZES)
    };
    let below_threshold = of("kubepods", 384, None);
    assert!(below_threshold.contains("available: 128Mi. Pod was"));
    for (message, expected) in [
        (
            of("kubepods", 380, None),
            "Threshold quantity: 128Mi, available: 132Mi. \
             At 1Gi a second pods are evicted from 142Mi on, a headroom of 14Mi. Pod",
        ),
        (
            of("kubepods", 375, Some(300)),
            "available: 137Mi. At 1Gi a second pods are evicted from 142Mi on, a headroom of 14Mi. Pod",
        ),
        (
            of("kubepods", 350, Some(300)),
            "Threshold quantity: 128Mi, available: 162Mi. \
             After an eviction pods are evicted until it is 212Mi (evictionMinimumReclaim). Pod",
        ),
        (
            of("besteffort", 371, None),
            "Its level is 384Mi, it used 371Mi. \
             At 1Gi a second pods are evicted from 370Mi on, a headroom of 14Mi. Pod",
        ),
    ] {
        assert!(message.contains(expected), "{message}\n{expected}");
    }
}

#[test]
fn a_node_at_its_level_is_told_of_by_the_working_set() {
    let crossing = Crossing {
        scope: ScopeName::Kubepods,
        level: 370 * MIB,
        headroom: 14 * MIB,
        fill_rate: 1024 * MIB,
        usage: 470 * MIB,
        working_set: 372 * MIB,
        target: 370 * MIB,
        detector: podwarden_policy::signal::Detector::Sampler,
        crossed: 1,
        wake: 1,
    };
    let message = pressure(&crossing, 2);
    let expected = "Attempting to reclaim memory: kubepods uses 372Mi, its level is 370Mi, 14Mi below the \
                    configured one as it fills by 1Gi a second (and 2 times before, of which nothing was said)";
    assert_eq!(message, expected);
    let slow = Crossing {
        headroom: 0,
        ..crossing
    };
    let message = pressure(&slow, 0);
    assert!(message.ends_with("its level is 370Mi"), "{message}");
}

fn entry() -> Entry {
    Entry::of_eviction(
        "2026-01-02T03:04:05.678901Z",
        &an_eviction("kubepods"),
        None,
        &SIZES,
    )
}

/// What the API's type makes of it: a field that it does not know is lost.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(value: &Value) -> T {
    let typed: T = serde_json::from_value(value.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *value);
    typed
}

#[test]
fn everything_is_what_the_api_knows() {
    let entry = entry();
    let pod = an_eviction("node").pod;
    let event: v1::Event = typed(&event(&entry, &pod, "u2", "n1"));
    assert_eq!(event.metadata.namespace.as_deref(), Some("shop"));
    assert_eq!(
        (
            event.involved_object.uid.as_deref(),
            event.reason.as_deref()
        ),
        (Some("u2"), Some(EVICTED))
    );
    let request: policy::Eviction = typed(&eviction_request(&pod, "u2"));
    let options = request.delete_options.unwrap();
    assert_eq!(options.preconditions.unwrap().uid.as_deref(), Some("u2"));
    let mut object = Object {
        uid: "u2".into(),
        version: "7".to_owned(),
        has_ended: false,
        has_succeeded: false,
        has_reason: false,
        ready: true,
    };
    let of = |object: &Object| {
        let status: v1::PodStatus = typed(&status(&entry, object, "now")["status"]);
        status.conditions.unwrap()
    };
    let kinds: Vec<_> = of(&object).into_iter().map(|c| c.type_).collect();
    assert_eq!(kinds, ["DisruptionTarget", "Ready", "ContainersReady"]);
    object.ready = false;
    let conditions = of(&object);
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0].type_, "DisruptionTarget");
    let time = entry.time.clone();
    let node = Entry::of_pressure(entry.time, "n1", 7, "short".to_owned());
    let about_node: v1::Event = typed(&super::event(&node, &PodRef::default(), "", "n1"));
    // Of an object without a namespace.
    assert_eq!(about_node.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(about_node.reason.as_deref(), Some(THRESHOLD_MET));
    let period = PressurePeriod {
        since: "2026-01-02T03:00:00Z".to_owned(),
        crossings: 3,
        ..PressurePeriod::default()
    };
    let relief = Entry::of_relief(time, "n1", &period);
    let relieved: v1::Event = typed(&super::event(&relief, &PodRef::default(), "", "n1"));
    assert_eq!(relieved.reason.as_deref(), Some(RELIEVED));
    assert_eq!(relieved.count, Some(3));
    assert!(relieved.first_timestamp < relieved.last_timestamp);
}

#[test]
fn a_condition_is_what_the_api_knows() {
    let state = State {
        status: "True",
        reason: "Degraded",
        message: "x".repeat(5000),
    };
    let (time, since) = ("2026-01-02T03:04:05.678901Z", "2026-01-02T03:00:00Z");
    let patch = condition(&state, time, since);
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1);
    let condition: v1::NodeCondition = typed(&conditions[0]);
    assert_eq!(condition.type_, CONDITION);
    assert!(condition.last_transition_time < condition.last_heartbeat_time);
    assert_eq!(condition.message.unwrap().len(), LONGEST);
}

#[test]
fn a_relief_says_how_long_and_at_whose_cost() {
    let of = |crossings, evicted: usize, named: usize| {
        relief(&PressurePeriod {
            lasted: std::time::Duration::from_millis(4260),
            crossings,
            evicted,
            names: (0..named).map(|n| format!("shop/{n}")).collect(),
            ..PressurePeriod::default()
        })
    };
    for (message, expected) in [
        (of(1, 0, 0), "a level was reached once, no pod was evicted"),
        (of(1, 1, 1), "a level was reached once, evicted: shop/0"),
        (
            of(2, 2, 2),
            "a level was reached 2 times, 2 pods were evicted: shop/0, shop/1",
        ),
        (
            of(9, 7, 1),
            "a level was reached 9 times, 7 pods were evicted: shop/0, and 6 more",
        ),
    ] {
        assert_eq!(message, format!("Memory was short for 4.3 s: {expected}"));
    }
}

#[test]
fn names_of_events_are_names() {
    let id = "0123456789abcdef";
    assert_eq!(event_name(id, "web-0"), "web-0.0123456789abcdef");
    let long = format!("{}-.{}", "a".repeat(235), "b".repeat(16));
    let name = event_name(id, &long);
    assert_eq!(name, format!("{}.{id}", "a".repeat(235)));
    assert!(event_name(id, &"a".repeat(253)).len() <= 253);
}
