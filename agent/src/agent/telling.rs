//! What tells the API server and the container runtime of evictions, by the configuration.

use std::{sync::Arc, time::Duration};

use podwarden_policy::{Node, reserve};

use crate::{
    api::{published::Published, types::Eviction},
    base::error,
    config::{Config, Machine, MarksConfig, Ownership},
    eviction::{
        pod_workers::Failure,
        status::{Condition, Marks, Parts, Sizes, Teardown},
    },
    pods::{Apiserver, Feed},
    runtime::{self, Client},
};

/// Begins to say in the Node's status how the agent is, where that is configured.
pub(super) fn condition(config: &Config, published: &Arc<Published>) -> Option<Condition> {
    if !config.node_condition {
        return None;
    }
    let Some(apiserver) = Apiserver::of(&config.apiserver) else {
        tracing::warn!("nodeCondition has no effect: there is no API server to tell");
        return None;
    };
    Some(Condition::start(apiserver, &config.node_name, published))
}

/// What there is to use on a node.
pub(super) fn sizes(node: &Node, machine: &Machine) -> Sizes {
    Sizes {
        pods: reserve::allocatable(node).kubepods_memory.as_u64(),
        node: machine.memory.as_u64(),
    }
}

/// Starts it; `None` where there is nobody to be told. `recorded` are evictions by agents before this one,
/// each with its time.
pub(super) fn start(
    config: &Config,
    feed: Feed,
    runtime: Option<&Client>,
    published: &Arc<Published>,
    sizes: Sizes,
    recorded: &[(String, Eviction)],
) -> Option<Marks> {
    let recorded = recorded
        .iter()
        .filter(|(_, eviction)| eviction.to_be_marked);
    let told = Apiserver::of(&config.apiserver).filter(|_| config.marks != MarksConfig::None);
    // A kubelet that knows nothing of the eviction would make anew what was taken down.
    let is_final = told.is_some() || config.ownership == Ownership::Own;
    let started = Marks::start(Parts {
        how: config.marks,
        apiserver: told,
        node_name: config.node_name.clone(),
        state_dir: config.state_dir.clone(),
        sizes,
        calm: config.eviction_pressure_transition_period,
        feed,
        recorded: recorded.cloned().collect(),
        teardown: runtime.filter(|_| is_final).cloned().map(teardown),
        published: Arc::downgrade(published),
    });
    started.unwrap_or_else(|error| {
        let problem = format!("the API server is not told of evictions: no thread ({error})");
        tracing::warn!("{problem}");
        published.degraded(problem);
        None
    })
}

/// Takes a pod down whose processes were killed.
fn teardown(client: Client) -> Teardown {
    Arc::new(move |pod| {
        let client = client.clone();
        Box::pin(async move {
            let done = runtime::teardown(&client, &pod.uid, Duration::ZERO).await;
            let done = done.map_err(|error| {
                Failure::new(format!(
                    "the pod is not torn down yet: {}",
                    error::chain(&error)
                ))
            })?;
            tracing::info!(
                pod = pod.name,
                namespace = pod.namespace,
                uid = pod.uid,
                containers = done.containers,
                sandboxes = done.ready + done.not_ready,
                "torn down"
            );
            Ok(())
        })
    })
}
