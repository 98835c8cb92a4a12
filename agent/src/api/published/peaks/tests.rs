use super::*;
use crate::api::types::{ContainerStats, PodRef};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn reading(second: i64, usage: u64, highest: u64) -> Reading {
    Reading {
        at: at(second),
        usage,
        highest: Some(highest),
    }
}

fn peak(readings: &[(i64, u64, u64)]) -> Peak {
    let mut peak = Peak::default();
    for (second, usage, highest) in readings {
        peak.put(reading(*second, *usage, *highest));
    }
    peak
}

#[test]
fn a_peak_between_two_passes_counts_for_readers_from_before_it() {
    // 300 between 2 and 3, which no reading saw.
    let peak = peak(&[
        (1, 10, 10),
        (2, 20, 20),
        (3, 15, 300),
        (4, 12, 300),
        (5, 9, 300),
    ]);
    for since in [0, 1, 2] {
        assert_eq!(peak.since(at(since)), Some(300), "since {since}");
    }
    // Each window begins with what the pass before it read.
    assert_eq!(peak.since(at(3)), Some(15));
    assert_eq!(peak.since(at(4)), Some(12));
    assert_eq!(peak.since(at(5)), Some(9), "no pass since then");
    assert_eq!(peak.since(at(2)), Some(300), "asking takes nothing away");
}

#[test]
fn without_the_kernels_peak_the_highest_reading_counts() {
    let mut peak = Peak::default();
    for (second, usage) in [(1, 10), (2, 50), (3, 5)] {
        peak.put(Reading {
            at: at(second),
            usage,
            highest: None,
        });
    }
    assert_eq!(peak.since(at(0)), Some(50));
    assert_eq!(peak.since(at(3)), Some(5));
}

#[test]
fn the_first_pass_has_what_the_kernel_saw_before() {
    assert_eq!(peak(&[(1, 10, 70)]).since(at(0)), Some(70));
}

#[test]
fn a_pass_that_did_not_read_it_changes_nothing() {
    let peak = peak(&[(1, 10, 10), (2, 5, 10), (2, 5, 10)]);
    assert_eq!(peak.falling.len(), 1, "{peak:?}");
    assert_eq!(peak.since(at(1)), Some(10));
}

#[test]
fn a_clock_that_is_set_back_loses_no_later_peak() {
    let peak = peak(&[(100, 90, 90), (50, 10, 90), (51, 40, 90)]);
    assert_eq!(peak.since(at(50)), Some(40));
    assert_eq!(peak.since(at(10)), Some(90), "{peak:?}");
}

/// Against all windows kept: never below, and above only for times before what has been put together.
#[test]
fn the_answer_is_never_below_what_there_was() {
    let mut seed: u64 = 7;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % 1000
    };
    for falls in [false, true] {
        let (mut peak, mut windows, mut last) = (Peak::default(), Vec::new(), None);
        for second in 1..=200 {
            // Falling ones are all kept, up to the bound.
            let usage = if falls { 5000 - second * 20 } else { random() };
            let window = last.map_or(usage, |last: u64| last.max(usage));
            last = Some(usage);
            let second = i64::try_from(second).unwrap();
            windows.push((second, window));
            peak.put(Reading {
                at: at(second),
                usage,
                highest: None,
            });
            assert!(peak.falling.len() <= KEPT);
        }
        let oldest = peak.falling[1].end;
        for since in 0..200 {
            let of = windows.iter().filter(|(end, _)| *end > since);
            let highest = of.map(|(_, peak)| *peak).max();
            let found = peak.since(at(since));
            assert!(found >= highest, "since {since}: {found:?} {highest:?}");
            if at(since) >= oldest {
                assert_eq!(found, highest, "since {since}");
            }
        }
    }
}

fn pod(uid: &str, second: i64, usage: u64, containers: &[(&str, u64)]) -> PodStats {
    let memory = |usage| {
        Some(MemoryStats {
            time: format!("{:.6}", at(second)).into(),
            usage_bytes: usage,
            ..MemoryStats::default()
        })
    };
    let containers = containers.iter().map(|(id, usage)| ContainerStats {
        id: (*id).into(),
        memory: memory(*usage),
        ..ContainerStats::default()
    });
    PodStats {
        pod_ref: PodRef {
            uid: PodUid::from(uid),
            ..PodRef::default()
        },
        memory: memory(usage),
        containers: containers.collect(),
        ..PodStats::default()
    }
}

#[test]
fn pods_and_containers_have_their_own() {
    let peaks = Peaks::default();
    peaks.note(&[pod("a", 1, 50, &[("c", 40)]), pod("b", 1, 7, &[])]);
    let mut now = [pod("a", 2, 20, &[("c", 10), ("d", 5)])];
    peaks.note(&now);
    peaks.put(at(0), &mut now);
    let of = |memory: &Option<MemoryStats>| memory.as_ref().and_then(|m| m.peak_since_bytes);
    assert_eq!(of(&now[0].memory), Some(50));
    assert_eq!(of(&now[0].containers[0].memory), Some(40));
    assert_eq!(of(&now[0].containers[1].memory), Some(5));
    let mut gone = [pod("b", 1, 7, &[])];
    peaks.put(at(0), &mut gone);
    assert_eq!(of(&gone[0].memory), None, "a pod that went is forgotten");
}
