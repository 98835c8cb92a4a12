//! Koordinator `apis/extension/{qos,priority}.go`, and what contradicts.

use podwarden_policy::{
    Pod, QosClass,
    colocation::class::{Band, BandSource, Class, ClassSource, Contradiction, Labels, classify},
};
use proptest::prelude::*;

use crate::support::pod;

const GUARANTEED: [&str; 4] = ["1", "1Gi", "1", "1Gi"];
const BURSTABLE: [&str; 4] = ["1", "", "", ""];
const BEST_EFFORT: [&str; 4] = ["", "", "", ""];

fn labelled(resources: [&str; 4], qos_class: &str, priority_class: &str, priority: i32) -> Pod {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Pod {
        colocation: Labels {
            qos_class: text(qos_class),
            priority_class: text(priority_class),
            ..Labels::default()
        },
        priority,
        ..pod("a", &[resources])
    }
}

#[test]
fn class_of_the_label_or_of_kubernetes() {
    use QosClass::{BestEffort, Burstable, Guaranteed};
    let rows = [
        (
            GUARANTEED,
            "",
            Class::Lsr,
            ClassSource::Kubernetes(Guaranteed),
        ),
        (BURSTABLE, "", Class::Ls, ClassSource::Kubernetes(Burstable)),
        (
            BEST_EFFORT,
            "",
            Class::Be,
            ClassSource::Kubernetes(BestEffort),
        ),
        (GUARANTEED, "LSE", Class::Lse, ClassSource::Label),
        (GUARANTEED, "LS", Class::Ls, ClassSource::Label),
        (BURSTABLE, "LSR", Class::Lsr, ClassSource::Label),
        (BEST_EFFORT, "BE", Class::Be, ClassSource::Label),
        (BEST_EFFORT, "SYSTEM", Class::System, ClassSource::Label),
    ];
    for (resources, label, class, source) in rows {
        let found = classify(&labelled(resources, label, "", 0));
        assert_eq!(
            (found.class, found.class_source),
            (class, source),
            "{label}"
        );
        assert_eq!(found.contradictions, [], "{label}");
    }
}

#[test]
fn band_of_the_label_the_priority_or_the_class() {
    let rows = [
        (BURSTABLE, "", 0, Band::Prod, BandSource::Class(Class::Ls)),
        (
            BEST_EFFORT,
            "",
            0,
            Band::Batch,
            BandSource::Class(Class::Be),
        ),
        (BURSTABLE, "", 7000, Band::Mid, BandSource::Priority(7000)),
        (BURSTABLE, "", 7999, Band::Mid, BandSource::Priority(7999)),
        (
            BURSTABLE,
            "",
            8000,
            Band::Prod,
            BandSource::Class(Class::Ls),
        ),
        (
            BEST_EFFORT,
            "",
            3000,
            Band::Free,
            BandSource::Priority(3000),
        ),
        (BURSTABLE, "koord-mid", 9000, Band::Mid, BandSource::Label),
        (
            BEST_EFFORT,
            "koord-free",
            5999,
            Band::Free,
            BandSource::Label,
        ),
    ];
    for (resources, label, priority, band, source) in rows {
        let found = classify(&labelled(resources, "", label, priority));
        assert_eq!(
            (found.band, found.band_source),
            (band, source),
            "{label} {priority}"
        );
        assert_eq!(found.contradictions, [], "{label} {priority}");
    }
}

#[test]
fn what_contradicts_has_no_effect_and_is_reported_with_its_field() {
    let rows = [
        (
            GUARANTEED,
            "BE",
            "",
            0,
            Class::Lsr,
            Band::Prod,
            "koordinator.sh/qosClass",
        ),
        (
            BURSTABLE,
            "BE",
            "",
            0,
            Class::Ls,
            Band::Prod,
            "koordinator.sh/qosClass",
        ),
        (
            BEST_EFFORT,
            "LSR",
            "",
            0,
            Class::Be,
            Band::Batch,
            "koordinator.sh/qosClass",
        ),
        (
            BURSTABLE,
            "be",
            "",
            0,
            Class::Ls,
            Band::Prod,
            "\"be\" is no class",
        ),
        (
            BURSTABLE,
            "",
            "prod",
            7500,
            Class::Ls,
            Band::Mid,
            "\"prod\" is no priority class",
        ),
        (
            BEST_EFFORT,
            "",
            "koord-prod",
            0,
            Class::Be,
            Band::Batch,
            "priority-class",
        ),
        (
            BEST_EFFORT,
            "",
            "",
            9500,
            Class::Be,
            Band::Batch,
            "spec.priority",
        ),
        (
            GUARANTEED,
            "LSE",
            "koord-batch",
            0,
            Class::Lse,
            Band::Prod,
            "priority-class",
        ),
    ];
    for (resources, qos, band_label, priority, class, band, text) in rows {
        let found = classify(&labelled(resources, qos, band_label, priority));
        assert_eq!(
            (found.class, found.band),
            (class, band),
            "{qos} {band_label}"
        );
        let [contradiction] = found.contradictions.as_slice() else {
            panic!("{qos} {band_label}: {:?}", found.contradictions);
        };
        assert!(contradiction.to_string().contains(text), "{contradiction}");
    }
}

#[test]
fn an_empty_label_says_nothing() {
    let mut pod = labelled(BURSTABLE, "", "", 0);
    pod.colocation.qos_class = Some(String::new());
    pod.colocation.priority_class = Some(String::new());
    assert_eq!(classify(&pod), classify(&labelled(BURSTABLE, "", "", 0)));
}

#[test]
fn labels_survive_a_snapshot_and_no_label_leaves_no_key() {
    let pod = labelled(BURSTABLE, "LSR", "koord-prod", 0);
    let text = serde_json::to_string(&pod).expect("a pod");
    assert_eq!(serde_json::from_str::<Pod>(&text).expect("its text"), pod);
    let text = serde_json::to_string(&labelled(BURSTABLE, "", "", 0)).expect("a pod");
    assert!(!text.contains("colocation"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whatever is written: a class that the resources allow, a band that the class allows, and every label
    /// without effect is reported.
    #[test]
    fn a_class_agrees_with_the_resources(
        resources in prop::sample::select(vec![GUARANTEED, BURSTABLE, BEST_EFFORT]),
        qos in prop::sample::select(vec!["", "LSE", "LSR", "LS", "BE", "SYSTEM", "x"]),
        band in prop::sample::select(vec!["", "koord-prod", "koord-mid", "koord-batch", "koord-free", "x"]),
        priority in -1..12_000i32,
    ) {
        let pod = labelled(resources, qos, band, priority);
        let found = classify(&pod);
        let best_effort = podwarden_policy::qos::classify(&pod) == QosClass::BestEffort;
        prop_assert!(found.class == Class::System || (found.class == Class::Be) == best_effort);
        if found.class == Class::Be {
            prop_assert!(found.band != Band::Prod);
        }
        if !qos.is_empty() && found.class_source != ClassSource::Label {
            let reported = found.contradictions.iter().any(|c| {
                matches!(c, Contradiction::NoClass(_) | Contradiction::Resources { .. })
            });
            prop_assert!(reported);
        }
        if !band.is_empty() && found.band_source != BandSource::Label {
            let reported = found.contradictions.iter().any(|c| {
                matches!(c, Contradiction::NoBand(_) | Contradiction::Band { .. })
            });
            prop_assert!(reported);
        }
    }
}
