use metrics_exporter_prometheus::PrometheusBuilder;

use super::*;

fn evict(published: &Published, dry_run: bool) {
    let eviction = Eviction {
        dry_run,
        ..Eviction::default()
    };
    published.event(String::new(), None, EventKind::Eviction(Box::new(eviction)));
}

#[test]
fn events_are_counted_once_and_by_kind_and_those_of_agents_before_are_not() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let old = Published::default();
    evict(&old, false);
    metrics::with_local_recorder(&recorder, || {
        let published = Published::after(
            old.events_after(0)
                .0
                .iter()
                .map(|e| Event::clone(e))
                .collect(),
            1,
        );
        // More than the list of events keeps.
        for _ in 0..=EVENTS_KEPT {
            evict(&published, false);
        }
        evict(&published, true);
        published.event(String::new(), None, EventKind::KernelOom { pid: 1 });
    });
    let text = handle.render();
    for (dry_run, count) in [(false, EVENTS_KEPT + 1), (true, 1)] {
        let line = format!("dry_run=\"{dry_run}\"}} {count}");
        assert!(text.lines().any(|l| l.ends_with(&line)), "{line}: {text}");
    }
}

/// Before each group had its room, 4,096 exits pushed out every eviction.
#[test]
fn a_storm_of_exits_hides_no_eviction() {
    let published = Published::default();
    evict(&published, false);
    published.degraded("it is worse".to_owned());
    let uids = ["a", "b"];
    for n in 0..50_000 {
        let pod = PodRef {
            uid: uids[n % 2].into(),
            ..PodRef::default()
        };
        let exit = EventKind::ProcessExit {
            pid: 1,
            command: "a".to_owned(),
            exit_code: Some(0),
            signal: None,
            oom_killed: false,
            run_time_nanos: 0,
            max_rss_bytes: 0,
        };
        published.event(String::new(), Some(pod), exit);
    }
    let (kept, _) = published.events_after(0);
    assert!(matches!(kept[0].kind, EventKind::Eviction(_)));
    assert!(matches!(kept[1].kind, EventKind::Degraded { .. }));
    assert!(kept.len() < 50_000);
    for uid in uids {
        let pod = PodRef {
            uid: uid.into(),
            ..PodRef::default()
        };
        let removed = EventKind::PodRemoved {
            usage_core_nano_seconds: 0,
            exits: 25_000,
        };
        published.event(String::new(), Some(pod), removed);
    }
    let (all, _) = published.events_after(0);
    let mut exits = 0;
    for event in &all {
        match event.kind {
            EventKind::ProcessExit { .. } => exits += 1,
            EventKind::ExitsDropped { count } => exits += count,
            _ => {}
        }
    }
    assert_eq!(exits, 50_000, "each is an event or counted");
}
