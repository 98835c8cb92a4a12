use ratatui::{Terminal, backend::TestBackend};
use strum::VariantArray as _;

use super::{
    columns::{Column, Tone},
    figures::{PodRow, Sample, SortKey, TIERS, p99, rows, sort},
    layout::Layout,
    plain,
    state::{Command, State},
    view,
};
use crate::api::types::{ContainerStats, ExitStats, MemoryStats, PodRef, PodStats};

use fixture::{MI, sample, state, time};

mod fixture;

fn screen(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    (0..height)
        .map(|y| {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            format!("{}\n", line.trim_end())
        })
        .collect()
}

#[test]
fn eighty_columns() {
    assert_eq!(screen(&state(), 80, 22), include_str!("golden/80.txt"));
}

#[test]
fn a_hundred_and_forty_columns() {
    assert_eq!(screen(&state(), 140, 22), include_str!("golden/140.txt"));
}

#[test]
fn the_plain_table_has_everything() {
    let mut rows = rows(Some(&sample(10)), &sample(12));
    sort(&mut rows, SortKey::Memory);
    let layout = Layout::unlimited(&rows, true);
    let text = plain::render(&sample(12).node, &rows, &layout);
    assert_eq!(text, include_str!("golden/wide.txt"));
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let mut state = state();
    for help in [false, true] {
        state.help = help;
        for (width, height) in [(1, 1), (5, 3), (20, 5), (39, 10), (300, 80)] {
            assert_eq!(
                screen(&state, width, height).lines().count(),
                usize::from(height)
            );
        }
    }
}

#[test]
fn columns_leave_until_names_have_room() {
    let fits = |layout: &Layout, width| {
        layout.name + layout.columns.iter().map(|c| c.width() + 1).sum::<usize>() <= width
    };
    for width in 30..200 {
        for wide in [false, true] {
            let layout = Layout::fitting(width, wide);
            assert!(fits(&layout, width), "{width} {layout:?}");
            for kept in [Column::Cpu, Column::WorkingSet, Column::Wait] {
                assert!(layout.columns.contains(&kept), "{width} {layout:?}");
            }
        }
    }
    assert_eq!(Layout::fitting(140, false).columns, Column::USUAL);
    assert_eq!(Layout::fitting(212, true).columns, Column::VARIANTS);
    let [without_uid @ .., Column::Uid] = Column::VARIANTS else {
        panic!("{:?}", Column::VARIANTS);
    };
    assert_eq!(Layout::fitting(180, true).columns, without_uid);
}

#[test]
fn rates_are_those_between_two_samples() {
    let rows = rows(Some(&sample(10)), &sample(12));
    let hog = rows.iter().find(|row| row.pod_ref.name == "hog").unwrap();
    assert_eq!(hog.usage_nano_cores, Some(990_000_000));
    assert_eq!(hog.run_queue_wait_nanos_per_second, Some(400_000_000));
    assert_eq!(hog.stall_nanos_per_second, Some(250_000_000));
    assert_eq!(hog.context_switches_per_second, Some(150));
    assert_eq!(hog.disk_read_bytes_per_second, Some(3 * MI));
    assert_eq!(hog.disk_written_bytes_per_second, Some(MI / 2));
    // 198 reads in bucket 3 and 8 writes in bucket 5.
    assert_eq!(hog.disk_latency_p99_nano_seconds, Some(64_000));
    // In the node's network.
    assert_eq!(hog.network_rx_bytes_per_second, None);
    let web = rows.iter().find(|row| row.pod_ref.name == "web").unwrap();
    assert_eq!(web.network_rx_bytes_per_second, Some(MI + 1024));
    assert_eq!(web.network_tx_bytes_per_second, Some((MI + 1024) / 4));
    // 1000 waits in bucket 4 and 5 in bucket 13: 99 % end in bucket 4, below 32 us.
    assert_eq!(hog.run_queue_wait_p99_nano_seconds, Some(32_000));
}

#[test]
fn without_two_samples_of_one_agent_a_rate_is_unknown() {
    let unknown = |before: Option<&Sample>, now: &Sample| {
        let rows = rows(before, now);
        assert!(rows.iter().all(|row| row.usage_nano_cores.is_none()
            && row.stall_nanos_per_second.is_none()
            && row.run_queue_wait_p99_nano_seconds.is_none()));
    };
    unknown(None, &sample(12));
    unknown(Some(&sample(12)), &sample(12));
    let mut restarted = sample(12);
    restarted.node.start_time = time(11);
    unknown(Some(&sample(10)), &restarted);

    // A pod whose counters went back, which a new cgroup of the same uid does.
    let mut reborn = sample(12);
    reborn.pods[0].cpu.usage_core_nano_seconds = 1;
    assert_eq!(rows(Some(&sample(10)), &reborn)[0].usage_nano_cores, None);
}

#[test]
fn the_percentile_counts_only_what_was_added() {
    for (before, now, expected) in [
        (&[][..], &[][..], None),
        (&[5, 5], &[5, 5], None),
        (&[], &[1], Some(2_000)),
        (&[100, 0, 0], &[100, 0, 1], Some(8_000)),
        (&[0, 0, 0], &[99, 0, 1], Some(2_000)),
        (&[0, 0, 0], &[98, 0, 2], Some(8_000)),
    ] {
        assert_eq!(p99(before, now), expected, "{before:?} {now:?}");
    }
}

fn named(name: &str, qos: &str) -> PodRow {
    PodRow {
        pod_ref: PodRef {
            name: name.into(),
            namespace: "n".into(),
            uid: name.into(),
        },
        qos_class: qos.into(),
        ..PodRow::default()
    }
}

#[test]
fn rows_are_sorted_by_tier_then_key_then_name() {
    let a = PodRow {
        usage_nano_cores: Some(1),
        working_set_bytes: Some(9),
        stall_nanos_per_second: Some(0),
        run_queue_wait_nanos_per_second: Some(7),
        ..named("a", "Burstable")
    };
    let b = PodRow {
        usage_nano_cores: Some(5),
        working_set_bytes: None,
        stall_nanos_per_second: Some(3),
        run_queue_wait_nanos_per_second: Some(0),
        ..named("b", "Burstable")
    };
    let c = PodRow {
        usage_nano_cores: Some(5),
        working_set_bytes: Some(2),
        stall_nanos_per_second: Some(0),
        run_queue_wait_nanos_per_second: Some(8),
        ..named("c", "Burstable")
    };
    let z = named("z", "Guaranteed");
    let y = PodRow {
        usage_nano_cores: Some(99),
        ..named("y", "BestEffort")
    };
    for (key, expected) in [
        (SortKey::Cpu, "zbcay"),
        (SortKey::Memory, "zacby"),
        (SortKey::Pressure, "zbcay"),
        (SortKey::Name, "zabcy"),
    ] {
        for input in [
            [&a, &b, &c, &y, &z],
            [&z, &y, &c, &b, &a],
            [&b, &y, &a, &z, &c],
        ] {
            let mut rows = input.map(PodRow::clone);
            sort(&mut rows, key);
            let order: String = rows.iter().map(|row| row.pod_ref.name.as_str()).collect();
            assert_eq!(order, expected, "{key:?}");
        }
    }
}

#[test]
fn cells_stand_out_when_a_pod_is_hurt() {
    let row = PodRow {
        working_set_bytes: Some(95 * MI),
        limit_bytes: Some(100 * MI),
        ..named("a", "Burstable")
    };
    assert_eq!(
        Column::WorkingSet.cell(&row),
        ("95.0Mi".to_owned(), Tone::Warn)
    );
    for (percent, tone) in [(79, Tone::Plain), (80, Tone::Warn), (96, Tone::Alert)] {
        let of_container = PodRow {
            percent_of_limit: Some(percent),
            limit_bytes: None,
            ..row.clone()
        };
        assert_eq!(Column::WorkingSet.cell(&of_container).1, tone, "{percent}");
    }
    let row = PodRow {
        limit_bytes: None,
        ..row
    };
    assert_eq!(Column::WorkingSet.cell(&row).1, Tone::Plain);
    assert_eq!(Column::Limit.cell(&row), ("-".to_owned(), Tone::Dim));
    let exits = ExitStats {
        total: 1,
        failed: 0,
        signaled: 1,
        oom_killed: 1,
    };
    let row = PodRow { exits, ..row };
    assert_eq!(Column::Exits.cell(&row), ("1/0/1".to_owned(), Tone::Alert));
}

#[test]
fn a_pod_is_as_near_its_limit_as_its_nearest_container() {
    let memory = |used, limit| {
        Some(MemoryStats {
            working_set_bytes: used,
            limit_bytes: limit,
            ..MemoryStats::default()
        })
    };
    let container = |used, limit| ContainerStats {
        memory: memory(used, limit),
        ..ContainerStats::default()
    };
    let mut pod = PodStats {
        memory: memory(100, None),
        containers: vec![container(90, None)],
        ..PodStats::default()
    };
    let of = |pod: &PodStats| {
        let now = Sample {
            pods: vec![pod.clone()],
            ..Sample::default()
        };
        rows(None, &now)[0].percent_of_limit
    };
    assert_eq!(of(&pod), None);
    pod.containers.push(container(951, Some(1000)));
    pod.containers.push(container(1, Some(1000)));
    assert_eq!(of(&pod), Some(96));
    pod.memory = memory(1960, Some(2000));
    assert_eq!(of(&pod), Some(98));
    pod.memory = memory(1, Some(0));
    assert_eq!(of(&pod), Some(96), "a limit of 0 says nothing");
}

#[test]
fn keys_change_what_they_say() {
    let mut state = state();
    assert!(!state.obey(Command::Sort));
    assert_eq!(state.sort, SortKey::Memory);
    state.obey(Command::Pause);
    let before = state.rows.clone();
    state.take(sample(20));
    state.take_events(vec![]);
    assert_eq!(state.rows, before);
    state.obey(Command::Pause);
    state.take(sample(21));
    assert_ne!(state.node().time, time(12));
    state.obey(Command::Scroll(1000));
    assert_eq!(state.scroll, state.rows.len());
    state.obey(Command::Scroll(-1000));
    assert_eq!(state.scroll, 0);
    assert!(state.obey(Command::Quit));
}

#[test]
fn a_restarted_agent_is_asked_for_all_its_events() {
    let mut state = state();
    assert_eq!(state.last_event(), 3);
    let mut restarted = sample(20);
    restarted.node.start_time = time(19);
    state.take(restarted);
    assert_eq!(state.last_event(), 0);
}

#[test]
fn colour_is_left_out_on_request() {
    let mut state = state();
    state.colour = false;
    let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
    terminal.draw(|frame| view::draw(frame, &state)).unwrap();
    let coloured = |t: &Terminal<TestBackend>| {
        t.backend()
            .buffer()
            .content()
            .iter()
            .any(|cell| cell.fg != ratatui::style::Color::Reset)
    };
    assert!(!coloured(&terminal));
    state.colour = true;
    terminal.draw(|frame| view::draw(frame, &state)).unwrap();
    assert!(coloured(&terminal));
}

#[test]
fn every_tier_has_its_line() {
    let empty = Sample {
        pods: vec![],
        ..sample(1)
    };
    let text = plain::render(&empty.node, &[], &Layout::unlimited(&[], false));
    for tier in TIERS {
        assert!(text.contains(&format!("{tier} (0)")), "{text}");
    }
}
