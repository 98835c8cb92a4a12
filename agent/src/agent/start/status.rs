//! Eviction status in the API server, teardown in the container runtime, and the Node's condition, as they
//! are configured.

use std::{sync::Arc, time::Duration};

use podwarden_policy::{PodUid, plan::Ownership};

use crate::{
    api::{
        published::Published,
        types::{Eviction, PodRef},
    },
    base::error,
    colocation::reclaimed::{FormerOffer, Found, Offer, Publisher},
    config::{Config, EvictionStatusConfig, Mode},
    eviction::{
        pod_killer::{PodKiller, TakeDown},
        pod_workers::JobError,
        status::{
            Condition, EvictionStatus, FormerTaint, MemoryTaint, NodePartTask, OnDegraded, Parts,
            Sizes, Start, TakeBack, Teardown,
        },
    },
    pods::runtime::{self, Client, RuntimeError, TornDown},
    pods::{Apiserver, Feed},
};

/// Begins to keep what this agent says in the Node object, as far as that is configured.
pub(in crate::agent) fn node_parts(
    config: &Config,
    published: &Arc<Published>,
) -> Vec<NodePartTask> {
    let enforces = config.mode == Mode::Enforce;
    let reclaimed = &config.colocation.reclaimed;
    let publishes = reclaimed.publish && enforces;
    let Some(apiserver) = Apiserver::of(&config.apiserver) else {
        let keys = [
            ("nodeCondition", config.node_condition),
            ("colocation.reclaimed.publish", publishes),
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set) {
            tracing::warn!("{key} has no effect: there is no API server");
        }
        return Vec::new();
    };
    let node = &config.node_name;
    let mut tasks = Vec::new();
    let (of, said) = (|| Arc::downgrade(published), || on_degraded(published));
    if config.node_condition {
        let published = of();
        let health = move || published.upgrade().map(|published| published.health());
        let condition = Condition::new(health);
        tasks.push(NodePartTask::start(
            apiserver.clone(),
            node,
            condition,
            said(),
        ));
    }
    tasks.push(if config.node_condition && enforces {
        let taint = MemoryTaint::new(published.pressure());
        NodePartTask::start(apiserver.clone(), node, taint, said())
    } else {
        NodePartTask::start(
            apiserver.clone(),
            node,
            TakeBack::<FormerTaint>::default(),
            said(),
        )
    });
    if publishes {
        let published = of();
        let found = move || published.upgrade().map(|published| found(&published));
        let publisher = Publisher::new(reclaimed, found);
        tasks.push(NodePartTask::start(apiserver, node, publisher, said()));
    } else {
        tasks.push(NodePartTask::start(
            apiserver,
            node,
            TakeBack::<FormerOffer>::default(),
            said(),
        ));
    }
    tasks
}

/// What the node has to spare. The agent's own look keeps no sampling awake.
fn found(published: &Published) -> Found {
    let figures = published.latest();
    let stats = figures.node.reclaimed.as_ref();
    Found {
        offer: stats.map(|stats| Offer::new(stats, figures.read_at)),
        interval: published.sampling_interval(),
    }
}

/// Publishes a problem while the published state is there.
fn on_degraded(published: &Arc<Published>) -> OnDegraded {
    let published = Arc::downgrade(published);
    Arc::new(move |message| {
        if let Some(published) = published.upgrade() {
            published.degraded(message);
        }
    })
}

/// Starts to deliver; `None` without an API server and a runtime. `recorded` are evictions by agents before
/// this one, each with its time.
pub(super) fn start(
    config: &Config,
    feed: Feed,
    runtime: Option<&Client>,
    published: &Arc<Published>,
    sizes: Sizes,
    recorded: &[(String, Eviction)],
) -> Option<EvictionStatus> {
    let recorded = recorded
        .iter()
        .filter(|(_, eviction)| eviction.status_required);
    let apiserver = Apiserver::of(&config.apiserver)
        .filter(|_| config.eviction_status != EvictionStatusConfig::None);
    // Without a status in the API a kubelet would make anew what was taken down.
    let is_final = apiserver.is_some() || config.ownership == Ownership::Own;
    let kubelet = (config.ownership == Ownership::Assist).then_some(SEEN);
    let started = EvictionStatus::start(Parts {
        how: config.eviction_status,
        apiserver,
        node_name: config.node_name.clone(),
        state_dir: config.state_dir.clone(),
        sizes,
        calm: config.eviction_pressure_transition_period,
        feed,
        recorded: recorded.cloned().collect(),
        teardown: runtime
            .filter(|_| is_final)
            .map(|client| teardown(client.clone(), kubelet)),
        pressure: published.pressure().clone(),
        real_time: config.reactor.real_time,
        on_degraded: on_degraded(published),
    });
    let started = started.unwrap_or_else(|error| {
        let problem = format!("evictions do not reach the API server: no thread ({error})");
        tracing::warn!("{problem}");
        published.degraded(problem);
        None
    });
    if let Some(status) = &started {
        published.set_eviction_status(status.deliveries());
    }
    started
}

/// Begins to take down pods that are gone from every source, where no kubelet does so.
pub(super) fn pod_killer(
    config: &Config,
    feed: Feed,
    runtime: Option<&Client>,
    own: Option<PodUid>,
) -> Option<PodKiller> {
    if config.ownership != Ownership::Own || config.mode != Mode::Enforce {
        return None;
    }
    let client = runtime?.clone();
    let take_down: TakeDown = Arc::new(move |gone| {
        let client = client.clone();
        Box::pin(async move {
            let done = runtime::teardown(&client, &gone.pod.uid, gone.grace).await;
            said(&gone.pod, done)
        })
    });
    Some(PodKiller::start(feed, own, take_down))
}

/// Logs a pod that was torn down.
fn said(pod: &PodRef, done: Result<TornDown, RuntimeError>) -> Result<(), JobError> {
    let done = done.map_err(|error| {
        JobError::new(format!(
            "the pod is not torn down yet: {}",
            error::chain(&error)
        ))
    })?;
    tracing::info!(
        pod = pod.name.as_str(),
        namespace = pod.namespace.as_str(),
        uid = %pod.uid,
        containers = done.containers,
        sandboxes = done.ready + done.not_ready,
        "torn down"
    );
    Ok(())
}

/// A kubelet has this long to see an eviction status and to end the pod itself.
const SEEN: Duration = Duration::from_secs(30);

/// Takes a pod down whose processes were killed, or have time to end; where there is a kubelet, after it had that long to
/// do so, unless the pod's memory waits for that.
fn teardown(client: Client, kubelet: Option<Duration>) -> Teardown {
    Arc::new(move |pod, start| {
        let client = client.clone();
        let (kubelet, grace) = match start {
            Start::AfterKubelet => (kubelet, Duration::ZERO),
            Start::AtOnce => (None, Duration::ZERO),
            // The kubelet ends it, or this does.
            Start::Graceful(left) => match kubelet {
                Some(seen) => (Some(left + seen), Duration::ZERO),
                None => (None, left),
            },
        };
        Box::pin(async move {
            let done = async {
                if let Some(longest) = kubelet {
                    runtime::until_removed(&client, &pod.uid, longest).await?;
                }
                runtime::teardown(&client, &pod.uid, grace).await
            };
            said(&pod, done.await)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_looked_at_without_waking_the_sampler() {
        let published = Published::default();
        assert!(found(&published).offer.is_none());
        assert!(!published.has_reader());
        let _ = published.figures();
        assert!(published.has_reader(), "as a client would");
    }
}
