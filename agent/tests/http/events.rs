//! `/v1/events`, kept and live.

use podwarden::{
    api::{
        client::{EventStream, Update},
        published::Published,
        types::{Event, EventKind, EventRecord, FlightRecord, PodRef},
    },
    eviction::recorder::log::{Log, LogFile, read},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::Api;

async fn next_id(stream: &mut EventStream) -> u64 {
    match stream.next().await.unwrap().unwrap() {
        Update::Event(event) => event.id,
        other => panic!("not an event: {other:?}"),
    }
}

#[tokio::test]
async fn events_are_an_array_after_an_id() {
    let api = Api::start().await;
    for pid in 1..=3 {
        api.happen(pid);
    }
    let ids = async |path| -> Vec<u64> {
        let events: Vec<Event> = api.client().get(path).await.unwrap();
        events.iter().map(|event| event.id).collect()
    };
    assert_eq!(ids("/v1/events").await, [1, 2, 3]);
    assert_eq!(ids("/v1/events?after=2").await, [3]);
    assert_eq!(ids("/v1/events?after=9").await, [0; 0]);
}

/// A pod's exits have a rate: those beyond it are counted, and the next event of the pod says so.
#[tokio::test]
async fn exits_that_are_no_events_are_counted() {
    let api = Api::start().await;
    let dropped = async || -> u64 {
        let text = api.metrics().await;
        let prefix = "podwarden_events_dropped_total{type=\"processExit\"} ";
        let value = text.lines().find_map(|line| line.strip_prefix(prefix));
        value.unwrap().parse().unwrap()
    };
    let before = dropped().await;
    let happened = 5_000;
    let exit = |pid| {
        (
            "2026-11-21T08:57:48.123456Z".to_owned(),
            PodRef::default(),
            EventKind::ProcessExit {
                pid,
                command: "true".to_owned(),
                exit_code: Some(0),
                signal: None,
                oom_killed: false,
                max_rss_bytes: 1 << 20,
                run_time_nanos: 1_000_000,
            },
        )
    };
    for pid in 0..happened {
        api.published.exit(&"uid-1".into(), false, || exit(pid));
    }
    let events: Vec<Event> = api.client().get("/v1/events").await.unwrap();
    let is_exit = |event: &&Event| matches!(event.kind, EventKind::ProcessExit { .. });
    let kept = events.iter().filter(is_exit).count() as u64;
    assert!((1..u64::from(happened)).contains(&kept), "{kept}");
    assert_eq!(dropped().await - before, u64::from(happened) - kept);
}

#[tokio::test]
async fn a_stream_has_what_is_kept_and_then_what_happens() {
    let api = Api::start().await;
    api.happen(1);
    api.happen(2);
    let mut all = api.client().follow(None).await.unwrap();
    let mut later = api.client().follow(Some(1)).await.unwrap();
    assert_eq!(next_id(&mut all).await, 1);
    assert_eq!(next_id(&mut all).await, 2);
    assert_eq!(next_id(&mut later).await, 2);
    api.happen(3);
    assert_eq!(next_id(&mut all).await, 3);
    assert_eq!(next_id(&mut later).await, 3);
}

#[tokio::test]
async fn a_reconnecting_browser_goes_on_where_it_was() {
    let api = Api::start().await;
    for pid in 1..=3 {
        api.happen(pid);
    }
    let mut stream = tokio::net::TcpStream::connect(api.tcp).await.unwrap();
    // The header is newer than the URL, which the browser repeats.
    let request = "GET /v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\
                   Accept: text/html, text/event-stream;q=0.9\r\nLast-Event-ID: 2\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    while !seen.contains("\"pid\":3") {
        let read = stream.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{seen}");
        seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    assert!(seen.contains("content-type: text/event-stream"), "{seen}");
    assert!(seen.contains("id: 3\n"), "{seen}");
    assert!(
        !seen.contains("id: 1\n") && !seen.contains("id: 2\n"),
        "{seen}"
    );
}

// One thread: the server cannot take events off the channel while this test puts them there.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_that_is_too_slow_is_told_how_many_it_missed() {
    let api = Api::start().await;
    api.happen(0);
    let mut stream = api.client().follow(None).await.unwrap();
    assert_eq!(next_id(&mut stream).await, 1);
    for pid in 0..5000 {
        api.happen(pid);
    }
    let Update::Missed(missed) = stream.next().await.unwrap().unwrap() else {
        panic!("not told");
    };
    assert!(missed > 0);
    // Nothing else is missing: the next one comes right after the gap.
    assert_eq!(next_id(&mut stream).await, 1 + missed + 1);
}

#[tokio::test]
async fn a_reader_that_comes_too_late_is_told_as_well() {
    let api = Api::start().await;
    for pid in 0..5000 {
        api.happen(pid);
    }
    let first: Vec<Event> = api.client().get("/v1/events").await.unwrap();
    let kept_from = first[0].id;
    assert!(kept_from > 11, "the log keeps everything");
    let mut stream = api.client().follow(Some(10)).await.unwrap();
    let told = stream.next().await.unwrap().unwrap();
    assert_eq!(told, Update::Missed(kept_from - 11));
    assert_eq!(next_id(&mut stream).await, kept_from);
}

#[tokio::test]
async fn an_id_of_an_earlier_agent_misses_nothing_of_this_one() {
    let api = Api::start().await;
    api.happen(1);
    let mut stream = api.client().follow(Some(4711)).await.unwrap();
    assert_eq!(next_id(&mut stream).await, 1);
    api.happen(2);
    assert_eq!(next_id(&mut stream).await, 2);
}

#[tokio::test]
async fn one_event_has_its_flight_from_memory_or_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let flight = FlightRecord {
        signal: podwarden_policy::signal::Signal::MemoryLimit,
        ..FlightRecord::default()
    };
    let api = Api::start().await;
    let (log, logger) = Log::start(LogFile::new(path.clone(), 1 << 20), 0, |_| {}).unwrap();
    api.published.set_logger(Some(logger));
    let ids: Vec<_> = (1..=80).map(|pid| api.happen(pid)).collect();
    let get = async |id: u64| -> EventRecord {
        let path = format!("/v1/events/{id}");
        api.client().get(&path).await.unwrap()
    };
    assert_eq!(get(ids[0]).await.flight_record, None, "not there yet");
    for id in &ids {
        // The queue for the disk is bounded.
        let stats = || api.published.event_log().unwrap();
        while stats().written + stats().dropped < 80 + id - 1 {
            tokio::task::yield_now().await;
        }
        api.published.publish_flight_record(*id, flight.clone());
    }
    assert_eq!(get(ids[79]).await.flight_record, Some(flight.clone()));
    drop(log);
    // The first is no more among the recent incidents.
    let first = get(ids[0]).await;
    assert_eq!((first.event.id, first.flight_record), (1, Some(flight)));
    let (status, body) = api.status("GET", "/v1/events/4711").await;
    assert!(status == 404 && body.contains("4711"), "{status} {body}");
    assert_eq!(api.status("GET", "/v1/events/x").await.0, 400);
}

#[tokio::test]
async fn a_follower_over_a_restart_misses_nothing_that_was_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events.jsonl");
    let (log, logger) = Log::start(LogFile::new(path.clone(), 1 << 20), 0, |_| {}).unwrap();
    let before = Published::default();
    before.set_logger(Some(logger));
    let event = |published: &Published, pid| {
        let kind = EventKind::KernelOom { pid };
        published.event("2026-11-21T08:57:48.123456Z".to_owned(), None, kind)
    };
    let seen = event(&before, 1);
    let unseen = event(&before, 2);
    drop(log);
    let history = read(&path, 10).unwrap();
    let api = Api::on(Published::after(history.events, history.last_id)).await;
    let mut stream = api.client().follow(Some(seen)).await.unwrap();
    let next = api.happen(3);
    assert!(next > unseen + 1, "ids go on above what was reserved");
    // No message about events in between that there never were.
    assert_eq!(next_id(&mut stream).await, unseen);
    assert_eq!(next_id(&mut stream).await, next);
}
