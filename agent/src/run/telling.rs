//! What tells the API server of evictions, by the configuration.

use std::sync::Arc;

use podwarden_policy::{Node, reserve};

use crate::{
    api::Eviction,
    config::{Config, Machine},
    marks::{Marks, Parts, Sizes},
    pods::{Apiserver, Feed},
    published::Published,
};

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
    published: &Arc<Published>,
    sizes: Sizes,
    recorded: &[(String, Eviction)],
) -> Option<Marks> {
    let recorded = recorded
        .iter()
        .filter(|(_, eviction)| eviction.to_be_marked);
    let started = Marks::start(Parts {
        how: config.marks,
        apiserver: Apiserver::of(&config.apiserver),
        node_name: config.node_name.clone(),
        state_dir: config.state_dir.clone(),
        sizes,
        feed,
        recorded: recorded.cloned().collect(),
        teardown: None,
        published: Arc::downgrade(published),
    });
    started.unwrap_or_else(|error| {
        let problem = format!("the API server is not told of evictions: no thread ({error})");
        tracing::warn!("{problem}");
        published.degraded(problem);
        None
    })
}
