//! The order of Events, marks and teardowns.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::eviction::{
    hold::Holding,
    pod_workers::PodWorkers,
    status::ending::{Ending, Start, Teardown},
};

/// Ends the pod of the steps by this teardown.
fn ending(steps: &Steps, teardown: Teardown) -> Ending {
    Ending {
        queue: steps.queue.clone(),
        teardown,
        on_degraded: Arc::new(|_| ()),
    }
}

/// Has the pod of the steps ended by workers of this teardown.
fn ended_by(steps: Steps, teardown: Teardown) -> (PodWorkers, Offers<PodRef>, Steps) {
    let (workers, ending) = PodWorkers::start(Arc::new(ending(&steps, teardown)), 1);
    let steps = Steps {
        ending: Some(ending.clone()),
        ..steps
    };
    (workers, ending, steps)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_teardown_comes_after_the_mark_and_until_it_is_done() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        (STATUS, 200, json!({})),
    ])
    .await;
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, script) = (Arc::clone(&calls), Arc::clone(&scene.script));
    let teardown: Teardown = Arc::new(move |pod, start| {
        assert_eq!((pod.uid.as_str(), start), ("u1", Start::AfterKubelet));
        assert_eq!(script.lock().unwrap().asked.len(), 3, "before the mark");
        let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
        Box::pin(async move {
            match first {
                true => Err(JobError::new("the runtime does not answer")),
                false => Ok(()),
            }
        })
    });
    let (_workers, ending, steps) = ended_by(scene.steps, teardown);
    let scene = Scene { steps, ..scene };
    scene.run().await.unwrap();
    while calls.load(Ordering::Relaxed) < 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Should the agent end now, the next one goes on with the teardown alone.
    let waiting = scene.waiting();
    assert!(waiting[0].is_whole(), "{waiting:?}");
    while !scene.waiting().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ending.hurry();
    }
    assert_eq!(scene.asked().len(), 3);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_mark_is_refused_for_good_is_let_go_and_not_torn_down() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        (STATUS, 422, refusal("Invalid")),
    ])
    .await;
    let (began, begins) = std::sync::mpsc::channel();
    let teardown: Teardown = Arc::new(move |pod, _| {
        began.send(pod.uid).unwrap();
        Box::pin(async { Ok(()) })
    });
    let (_workers, ending, steps) = ended_by(scene.steps, teardown);
    let mut holding = Holding::start(false).unwrap();
    let steps = Steps {
        holder: Some(holding.holder()),
        ..steps
    };
    let scene = Scene { steps, ..scene };
    let mut of_last = scene.waiting().remove(0);
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    // Of all that was offered this came last.
    let last = PodRef {
        uid: "u2".into(),
        ..pod()
    };
    "u2".clone_into(&mut of_last.id);
    of_last.about = About::Pod {
        pod: last.clone(),
        object: None,
    };
    scene.steps.queue.with(|queue| queue.add(of_last));
    ending.offer("u2", Work::Update(last));
    let first = begins.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(first.as_str(), "u2");
    assert_eq!(holding.let_go_at_last(), ["u1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_does_not_wait_for_a_runtime_that_hangs() {
    let round = || {
        [
            (POD, 200, object("u1", "7")),
            (EVENT, 201, json!({})),
            (STATUS, 200, json!({})),
        ]
    };
    let scene = Scene::for_status(&round()).await;
    let hangs: Teardown = Arc::new(|_, _| Box::pin(std::future::pending()));
    let (_workers, _ending, steps) = ended_by(scene.steps, hangs);
    let scene = Scene { steps, ..scene };
    scene.run().await.unwrap();
    let mut entry = scene.waiting().remove(0);
    entry.event_sent = false;
    scene.steps.queue.with(|queue| queue.again(entry)).unwrap();
    scene.script.lock().unwrap().answers = VecDeque::from(round());
    scene.run().await.unwrap();
    assert!(scene.waiting().iter().all(Entry::is_whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_was_written_over_does_not_wait_for_the_events_right() {
    let refused = |object| {
        [
            (POD, 200, object),
            (EVENT, 403, refusal("Forbidden")),
            (STATUS, 200, json!({})),
        ]
    };
    let scene = Scene::for_status(&refused(object("u1", "7"))).await;
    scene.run().await.unwrap_err();
    let entry = scene.waiting().remove(0);
    scene.steps.queue.with(|queue| queue.again(entry)).unwrap();
    let mut failed = object("u1", "8");
    failed["status"]["phase"] = "Failed".into();
    scene.script.lock().unwrap().answers = VecDeque::from(refused(failed));
    scene.run().await.unwrap_err();
    let waiting = scene.waiting();
    assert!(
        waiting.len() == 1 && waiting[0].status_written && !waiting[0].event_sent,
        "{waiting:?}"
    );
}

/// A static pod has one uid for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_eviction_is_marked_while_the_event_of_one_before_is_refused() {
    let refused = || {
        [
            (POD, 200, object("u1", "7")),
            (EVENT, 403, refusal("Forbidden")),
            (STATUS, 200, json!({})),
        ]
    };
    let scene = Scene::for_status(&refused()).await;
    scene.run().await.unwrap_err();
    let mut later = scene.waiting().remove(0);
    "later".clone_into(&mut later.id);
    later.status_written = false;
    scene.steps.queue.with(|queue| queue.add(later));
    let first = refused().into_iter().take(2);
    let answers = first.chain(refused());
    scene.script.lock().unwrap().answers = answers.collect();
    scene.run().await.unwrap_err();
    let waiting = scene.waiting();
    assert!(
        waiting.len() == 2 && waiting.iter().all(|entry| entry.status_written),
        "{waiting:?}"
    );
}

/// Where teardown frees the pod's memory, neither an API server that is away nor a kubelet is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_whose_memory_is_mostly_shared_is_torn_down_beside_the_mark() {
    for (shared, start) in [(600, Some(Start::AtOnce)), (400, None)] {
        let away = [(POD, 500, json!({}))];
        let scene = Scene::for_status(&away).await;
        let mut eviction = Eviction {
            victim_usage_bytes: 1000,
            victim_shared_bytes: shared,
            pod: pod(),
            ..Eviction::default()
        };
        eviction.timeline.killed_nanos = Some(2);
        scene.steps.queue.with(|queue| {
            let (number, _) = queue.of("u1").remove(0);
            queue.done(number).unwrap();
            queue.add(Entry::of_eviction(
                "now",
                &eviction,
                None,
                &Sizes::default(),
            ));
        });
        let (began, begins) = std::sync::mpsc::channel();
        let teardown: Teardown = Arc::new(move |_, start| {
            began.send(start).unwrap();
            Box::pin(async { Ok(()) })
        });
        let (_workers, _ending, steps) = ended_by(scene.steps, teardown);
        let holding = Holding::start(false).unwrap();
        let steps = Steps {
            holder: Some(holding.holder()),
            ..steps
        };
        let scene = Scene { steps, ..scene };
        assert!(scene.run().await.is_err(), "the server is away");
        let wait = match start {
            Some(_) => Duration::from_secs(20),
            None => Duration::from_millis(50),
        };
        assert_eq!(begins.recv_timeout(wait).ok(), start, "{shared}");
        // The mark is still to be written.
        assert!(scene.waiting().iter().any(|entry| !entry.status_written));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_teardown_that_is_tried_again_is_none_of_a_pod_that_was_let_go_meanwhile() {
    let scene = Scene::for_status(&[
        (POD, 200, object("u1", "7")),
        (EVENT, 201, json!({})),
        (STATUS, 422, refusal("Invalid")),
    ])
    .await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let teardown: Teardown = Arc::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(JobError::new("the runtime does not answer")) })
    });
    let ending = ending(&scene.steps, teardown);
    assert!(ending.run("u1", Work::Update(pod())).await.is_err());
    scene.run().await.unwrap();
    assert_eq!(scene.waiting(), []);
    assert!(ending.run("u1", Work::Update(pod())).await.is_ok());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}
