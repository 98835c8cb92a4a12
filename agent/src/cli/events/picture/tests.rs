use super::*;
use crate::api::types::{Event, EvictionTimeline, Exit, Level, PodRef, Ranked};

const MIB: u64 = 1 << 20;

fn pod(name: &str) -> PodRef {
    PodRef {
        name: name.into(),
        namespace: "batch".into(),
        uid: format!("uid-{name}").into(),
    }
}

fn curve(scope: Option<ScopeName>, pod: Option<PodRef>, points: &[(i64, u64)]) -> Curve {
    Curve {
        scope,
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
                scope: ScopeName::Kubepods,
                level_bytes: 1536 * MIB,
                detected_by: Some(podwarden_policy::signal::Detector::Switch),
                usage_bytes: 1537 * MIB,
                victim_usage_bytes: 577 * MIB,
                processes: 1,
                reason: "BestEffort, 577Mi over its memory request, priority 0".to_owned(),
                timeline: EvictionTimeline {
                    crossing_nanos: origin,
                    crossing_source: "kernel".to_owned(),
                    wake_nanos: origin + 85_000,
                    verified_nanos: origin + 140_000,
                    killed_nanos: Some(origin + 1_200_000),
                    freed_nanos: Some(origin + 61_000_000),
                },
                ..Eviction::default()
            })),
        },
        flight_record: Some(FlightRecord {
            signal: podwarden_policy::signal::Signal::MemoryAvailable,
            origin_nanos: origin,
            levels: vec![Level {
                scope: ScopeName::Kubepods,
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
                curve(Some(ScopeName::Kubepods), None, &total),
                curve(
                    Some(ScopeName::Burstable),
                    None,
                    &[(-10_000, 0), (1_000, 0)],
                ),
                curve(None, Some(pod("hog")), &hog),
                curve(None, Some(pod("web")), &[(-10_000, 700), (1_000, 700)]),
            ],
        }),
    }
}

/// The texts of a picture, in order.
fn texts(svg: &str) -> Vec<&str> {
    let (mut texts, mut inside) = (Vec::new(), false);
    for line in svg.lines() {
        match line {
            "</text>" => inside = false,
            line if inside => texts.push(line),
            line => inside = line.starts_with("<text "),
        }
    }
    texts
}

/// The points of every curve of one colour and width, plot after plot.
fn drawn(svg: &str, (colour, width): Look) -> Vec<Vec<(i32, i32)>> {
    let RGBColor(red, green, blue) = colour;
    let look =
        format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\" stroke-width=\"{width}\" points=\"");
    let curves = svg.lines().filter_map(|line| line.split_once(&look));
    let point = |text: &str| {
        let (x, y) = text.split_once(',').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let points = |(_, rest): (_, &str)| {
        let points = rest.split('"').next().unwrap();
        points.split_whitespace().map(point).collect()
    };
    curves.map(points).collect()
}

#[test]
fn both_plots_have_curves_level_and_moments() {
    let record = example();
    let svg = svg(&record).unwrap();
    if let Some(path) = std::env::var_os("PODWARDEN_PICTURE") {
        std::fs::write(path, &svg).unwrap();
    }
    let flight = record.flight_record.as_ref().unwrap();
    let shown = shown(&record, flight);
    let names = shown.iter().map(|(curve, _)| curve.scope.is_some());
    // The burstable tier has no usage.
    assert_eq!(names.collect::<Vec<_>>(), [true, false, false]);
    let whole = [LEFT, LEFT + i32::try_from(PLOT).unwrap() - 1];
    for (curve, look) in &shown {
        let lines = drawn(&svg, *look);
        let [legend, overview, close] = &lines[..] else {
            panic!("{look:?}: {lines:?}")
        };
        assert_eq!(legend.len(), 2);
        assert_eq!(overview.len(), curve.usage_bytes.len());
        for points in [overview, close] {
            let ends = [points[0].0, points[points.len() - 1].0];
            assert_eq!(ends, whole, "{look:?}");
        }
        // More is higher.
        let ends = |points: &[(i32, i32)]| (points[0].1, points[points.len() - 1].1);
        let (first, last) = ends(overview);
        let used = &curve.usage_bytes;
        assert_eq!(first.cmp(&last), used[used.len() - 1].cmp(&used[0]));
    }
    // The pod is at its highest when the moments begin.
    let pod = &drawn(&svg, shown[1].1)[1];
    let top = pod.iter().min_by_key(|point| point.1).unwrap();
    let level = &drawn(&svg, (chart::RED, 2))[0];
    let kubepods = &drawn(&svg, shown[0].1)[1];
    assert!(
        kubepods
            .iter()
            .any(|point| point.0 == top.0 && point.1 <= level[0].1 + 1)
    );
    // The kill in both plots, the other five steps, and the exit.
    assert_eq!(drawn(&svg, (chart::RED, 1)).len(), 2);
    assert_eq!(drawn(&svg, (chart::GREY, 1)).len(), 2 * 5);
}

#[test]
fn every_text_of_the_record_is_there() {
    let svg = svg(&example()).unwrap();
    let texts = texts(&svg);
    for text in [
        "Evicted batch/hog (BestEffort)",
        "BestEffort, 577Mi over its memory request, priority 0",
        "2026-11-21T08:57:48.123Z, event 4711",
        "kubepods",
        "batch/hog",
        "batch/web",
        "level of kubepods, 1.50Gi",
        "MiB",
        "s since the crossing",
        "ms since the crossing",
        "crossing",
        "stamped in the kernel",
        "+85.0 us",
        "verified",
        "killed",
        "+1.20 ms",
        "1 process",
        "last exit",
        "freed",
        "+61.0 ms",
        "of 577Mi",
        "Ranking (2 of 2)",
        "577Mi",
        "20.0Mi",
    ] {
        assert!(texts.contains(&text), "{text:?} is not in {texts:?}");
    }
    for number in ["1", "2", "3", "4", "5", "6"] {
        let times = texts.iter().filter(|text| **text == number).count();
        assert!(times >= 2, "{number} stands above the plot and in the list");
    }
}

#[test]
fn names_cannot_become_markup() {
    let mut record = example();
    record.event.pod.as_mut().unwrap().name = "\u{1b}[2J<script>".into();
    let svg = svg(&record).unwrap();
    assert!(svg.contains("&lt;quiet&gt; &amp; &quot;calm&quot;"));
    assert!(!svg.contains("<quiet>") && !svg.contains("<script") && !svg.contains('\u{1b}'));
}

#[test]
fn what_has_no_curves_has_no_picture() {
    let mut record = example();
    record.flight_record = None;
    assert!(svg(&record).unwrap_err().to_string().contains("no curves"));
    let mut record = example();
    record.event.kind = EventKind::PodAdded {
        qos_class: "Burstable".to_owned(),
    };
    assert!(
        svg(&record)
            .unwrap_err()
            .to_string()
            .contains("neither an eviction")
    );
}

#[test]
fn an_oom_kill_and_an_empty_flight_have_one_too() {
    let mut record = example();
    record.event.kind = EventKind::KernelOom { pid: 4242 };
    let drawn = svg(&record).unwrap();
    assert!(drawn.contains("OOM kill in batch/hog") && drawn.contains("chosen"));
    record.flight_record = Some(FlightRecord::default());
    assert!(svg(&record).unwrap().ends_with("</svg>\n"));
}
