//! Eviction status in the API server, teardown in the container runtime, and the Node's condition, as they
//! are configured.

use std::{sync::Arc, time::Duration};

use podwarden_policy::plan::Ownership;

use crate::{
    api::{published::Published, types::Eviction},
    base::error,
    config::{Config, EvictionStatusConfig, Mode},
    eviction::{
        pod_workers::JobError,
        status::{Condition, EvictionStatus, OnDegraded, Parts, Sizes, Teardown},
    },
    pods::{Apiserver, Feed},
    reclaimed::{Offer, Publisher},
    runtime::{self, Client},
};

/// Begins to keep the agent's condition in the Node's status, where that is configured.
pub(in crate::agent) fn condition(
    config: &Config,
    published: &Arc<Published>,
) -> Option<Condition> {
    if !config.node_condition {
        return None;
    }
    let Some(apiserver) = Apiserver::of(&config.apiserver) else {
        tracing::warn!("nodeCondition has no effect: there is no API server");
        return None;
    };
    let weak = Arc::downgrade(published);
    let health = move || weak.upgrade().map(|published| published.health());
    Some(Condition::start(
        apiserver,
        &config.node_name,
        health,
        on_degraded(published),
    ))
}

/// Begins to keep what the node has to spare in the Node's status, where that is configured and the agent acts.
pub(in crate::agent) fn reclaimed(
    config: &Config,
    published: &Arc<Published>,
) -> Option<Publisher> {
    let reclaimed = &config.colocation.reclaimed;
    if !reclaimed.publish || config.mode != Mode::Enforce {
        return None;
    }
    let Some(apiserver) = Apiserver::of(&config.apiserver) else {
        tracing::warn!("colocation.reclaimed.publish has no effect: there is no API server");
        return None;
    };
    let weak = Arc::downgrade(published);
    let offer = move || {
        let figures = weak.upgrade()?.figures();
        let stats = figures.node.reclaimed.as_ref();
        Some(stats.map(|stats| Offer::new(stats, figures.read_at)))
    };
    Some(Publisher::start(
        apiserver,
        &config.node_name,
        reclaimed,
        offer,
        on_degraded(published),
    ))
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

/// A kubelet has this long to see an eviction status and to end the pod itself.
const SEEN: Duration = Duration::from_secs(30);

/// Takes a pod down whose processes were killed; where there is a kubelet, after it had that long to do so.
fn teardown(client: Client, kubelet: Option<Duration>) -> Teardown {
    Arc::new(move |pod| {
        let client = client.clone();
        Box::pin(async move {
            let done = async {
                if let Some(longest) = kubelet {
                    runtime::until_removed(&client, &pod.uid, longest).await?;
                }
                runtime::teardown(&client, &pod.uid, Duration::ZERO).await
            };
            let done = done.await.map_err(|error| {
                JobError::new(format!(
                    "the pod is not torn down yet: {}",
                    error::chain(&error)
                ))
            })?;
            tracing::info!(
                pod = pod.name,
                namespace = pod.namespace,
                uid = %pod.uid,
                containers = done.containers,
                sandboxes = done.ready + done.not_ready,
                "torn down"
            );
            Ok(())
        })
    })
}
