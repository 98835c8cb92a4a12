use super::*;
use crate::api::types::{Event, EvictionTimeline, Exit, Level, PodRef, Ranked};

const MIB: u64 = 1 << 20;

fn pod(name: &str) -> PodRef {
    PodRef {
        name: name.to_owned(),
        namespace: "batch".to_owned(),
        uid: format!("uid-{name}"),
    }
}

fn curve(scope: Option<&str>, pod: Option<PodRef>, points: &[(i64, u64)]) -> Curve {
    Curve {
        scope: scope.map(str::to_owned),
        pod,
        offset_nanos: points.iter().map(|(at, _)| at * 1_000_000).collect(),
        usage_bytes: points.iter().map(|(_, mib)| mib * MIB).collect(),
    }
}

/// An eviction of a pod that filled memory for two seconds.
pub(crate) fn example() -> EventRecord {
    let hog = [
        (-10_000, 64),
        (-2_000, 64),
        (-1_000, 300),
        (-100, 560),
        (0, 576),
        (1, 577),
        (20, 400),
        (40, 180),
        (61, 20),
        (1_000, 0),
    ];
    let total: Vec<_> = hog.iter().map(|(at, mib)| (*at, mib + 960)).collect();
    let origin = 1_000_000_000_000;
    let ranked = |name: &str, mib: u64, reason: &str| Ranked {
        pod: pod(name),
        usage_bytes: mib * MIB,
        working_set_bytes: None,
        reason: reason.to_owned(),
    };
    EventRecord {
        event: Event {
            id: 4711,
            time: "2026-11-21T08:57:48.123456Z".to_owned(),
            pod: Some(pod("hog")),
            kind: EventKind::Eviction(Box::new(Eviction {
                pod: pod("hog"),
                qos_class: "BestEffort".to_owned(),
                scope: "kubepods".to_owned(),
                level_bytes: 1536 * MIB,
                headroom_bytes: 0,
                fill_bytes_per_second: 0,
                detected_by: "switch".to_owned(),
                usage_bytes: 1537 * MIB,
                victim_usage_bytes: 577 * MIB,
                processes: 1,
                dry_run: false,
                reason: "BestEffort, 577Mi over its memory request, priority 0".to_owned(),
                interrupted: false,
                to_be_marked: false,
                victim_cgroup_id: None,
                timeline: EvictionTimeline {
                    crossing_nanos: origin,
                    crossing_source: "kernel".to_owned(),
                    wake_nanos: origin + 85_000,
                    verified_nanos: origin + 140_000,
                    killed_nanos: Some(origin + 1_200_000),
                    freed_nanos: Some(origin + 61_000_000),
                },
            })),
        },
        flight: Some(Flight {
            signal: "memory.available".to_owned(),
            origin_nanos: origin,
            levels: vec![Level {
                scope: "kubepods".to_owned(),
                level_bytes: 1536 * MIB,
                target_bytes: 1500 * MIB,
            }],
            ranking: vec![
                ranked(
                    "hog",
                    577,
                    "BestEffort, 577Mi over its memory request, priority 0",
                ),
                ranked(
                    "<quiet> & \"calm\"",
                    20,
                    "BestEffort, 20Mi over its memory request, priority 0",
                ),
            ],
            candidates: 2,
            exits: vec![Exit {
                at_nanos: origin + 60_000_000,
                pid: 4242,
                command: "fill".to_owned(),
                signal: Some(9),
            }],
            curves: vec![
                curve(Some("kubepods"), None, &total),
                curve(Some("burstable"), None, &[(-10_000, 0), (1_000, 0)]),
                curve(None, Some(pod("hog")), &hog),
                curve(None, Some(pod("web")), &[(-10_000, 700), (1_000, 700)]),
            ],
        }),
    }
}

/// The picture as it was last looked at. With PODWARDEN_BLESS set it is written anew: look at it again.
#[test]
fn the_picture_is_the_one_that_was_looked_at() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/cli/events/picture/example.svg"
    );
    let drawn = svg(&example()).unwrap();
    if std::env::var_os("PODWARDEN_BLESS").is_some() {
        std::fs::write(path, &drawn).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    assert!(
        drawn == expected,
        "the picture has changed: run this with PODWARDEN_BLESS=1 and look at {path}"
    );
}

#[test]
fn names_cannot_become_markup() {
    let drawn = svg(&example()).unwrap();
    assert!(drawn.contains("&lt;quiet&gt; &amp; &quot;calm&quot;"));
    for line in drawn.lines() {
        assert!(
            !line.contains("<quiet>") && !line.contains("<script"),
            "{line}"
        );
    }
}

#[test]
fn what_has_no_curves_has_no_picture() {
    let mut record = example();
    record.flight = None;
    assert!(svg(&record).unwrap_err().contains("no curves"));
    let mut record = example();
    record.event.kind = EventKind::PodAdded {
        qos_class: "Burstable".to_owned(),
    };
    assert!(svg(&record).unwrap_err().contains("neither an eviction"));
}

#[test]
fn an_oom_kill_and_an_empty_flight_have_one_too() {
    let mut record = example();
    record.event.kind = EventKind::KernelOom { pid: 4242 };
    let drawn = svg(&record).unwrap();
    assert!(drawn.contains("OOM kill in batch/hog") && drawn.contains("chosen"));
    record.flight = Some(Flight::default());
    assert!(svg(&record).unwrap().ends_with("</svg>\n"));
}
