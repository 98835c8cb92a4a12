//! The order of marks and teardowns.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::eviction::{
    pod_workers::PodWorkers,
    status::ending::{Ending, Teardown},
};

/// Has the pod of the steps ended by workers of this teardown.
fn ended_by(steps: Steps, teardown: Teardown) -> (PodWorkers, Offers<PodRef>, Steps) {
    let job = Ending {
        queue: steps.queue.clone(),
        teardown,
        on_degraded: Arc::new(|_| ()),
    };
    let (workers, ending) = PodWorkers::start(Arc::new(job), 1);
    let steps = Steps {
        ending: Some(ending.clone()),
        ..steps
    };
    (workers, ending, steps)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_teardown_comes_after_the_mark_and_until_it_is_done() {
    let scene = Scene::new(
        EvictionStatusConfig::Status,
        &[
            (POD, 200, object("u1", "7")),
            (EVENT, 201, json!({})),
            (STATUS, 200, json!({})),
        ],
    )
    .await;
    let calls = Arc::new(AtomicU32::new(0));
    let (counted, script) = (Arc::clone(&calls), Arc::clone(&scene.script));
    let teardown: Teardown = Arc::new(move |pod| {
        assert_eq!(pod.uid, "u1");
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
async fn a_mark_does_not_wait_for_a_runtime_that_hangs() {
    let round = || {
        [
            (POD, 200, object("u1", "7")),
            (EVENT, 201, json!({})),
            (STATUS, 200, json!({})),
        ]
    };
    let scene = Scene::new(EvictionStatusConfig::Status, &round()).await;
    let hangs: Teardown = Arc::new(|_| Box::pin(std::future::pending()));
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
