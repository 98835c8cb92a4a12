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
        let published = Published::after(old.events_after(0).0, 1);
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
