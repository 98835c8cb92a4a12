//! The offer in the Node's status, as resources that pods request by name.
//!
//! Delivery by a strategic patch of those four resources alone, which leaves everything else to the kubelet, as the
//! kubelet's own patches leave these. It computes `allocatable` from `capacity` for every resource that it finds
//! (`pkg/kubelet/nodestatus/setters.go`), so both are written. A clean end withdraws them: pods that run keep theirs,
//! and the scheduler places no further ones.

use std::time::{Duration, Instant};

use podwarden_policy::model::ReclaimedTier;
use serde_json::{Map, Value, json};
use tokio::{sync::oneshot, task::JoinHandle};

use super::pace::{Amounts, Pace};
use crate::{
    api::types::ReclaimedStats,
    base::clock,
    config::ReclaimedConfig,
    eviction::status::{OnDegraded, PATCH_NODE, Server},
    pods::Apiserver,
};

/// Between two looks at the offer.
const LOOK: Duration = Duration::from_secs(1);
/// An offer that is older is stale: the figures are read every 10 s at least.
const STALE: Duration = Duration::from_secs(60);
/// An agent that ends waits so long for its last word.
const LAST: Duration = Duration::from_secs(2);

/// The names of the resources.
fn resources() -> [&'static str; 4] {
    let [batch_cpu, batch_memory] = ReclaimedTier::Batch.resources();
    let [mid_cpu, mid_memory] = ReclaimedTier::Mid.resources();
    [batch_cpu, batch_memory, mid_cpu, mid_memory]
}

/// What is offered, and when the figures were read.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    amounts: Amounts,
    at: Instant,
}

impl Offer {
    /// Of a pass's figures.
    pub fn new(stats: &ReclaimedStats, at: Instant) -> Self {
        let ReclaimedStats { batch, mid, .. } = stats;
        Self {
            amounts: [
                batch.cpu_milli,
                batch.memory_bytes,
                mid.cpu_milli,
                mid.memory_bytes,
            ],
            at,
        }
    }
}

/// `None` withdraws.
fn patch(offer: Option<Amounts>) -> Value {
    let amount = |index: usize| offer.map_or(Value::Null, |o| o[index].to_string().into());
    let names = resources().into_iter().enumerate();
    let list: Map<_, _> = names
        .map(|(i, name)| (name.to_owned(), amount(i)))
        .collect();
    json!({"status": {"capacity": list, "allocatable": list}})
}

/// See the module's text.
pub struct Publisher {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Keeps the offer in the Node's status from now on; ends once `offer` has gone (the outer `None`).
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn start(
        apiserver: Apiserver,
        node_name: &str,
        config: &ReclaimedConfig,
        offer: impl Fn() -> Option<Option<Offer>> + Send + Sync + 'static,
        on_degraded: OnDegraded,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let teller = Teller {
            server: Server::new(apiserver),
            node_name: node_name.to_owned(),
            offer: Box::new(offer),
            on_degraded,
            pace: Pace::new(config.diff_percent, config.update),
            problem: None,
        };
        Self {
            stop,
            task: tokio::spawn(teller.run(stopped)),
        }
    }

    /// The agent ends: withdraws the offer, if that can be done at once.
    pub async fn end(self) {
        // An error says that it has ended.
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

struct Teller {
    server: Server,
    node_name: String,
    offer: Box<dyn Fn() -> Option<Option<Offer>> + Send + Sync>,
    on_degraded: OnDegraded,
    pace: Pace,
    /// What kept it from being published, so that this is said once.
    problem: Option<String>,
}

impl Teller {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            tokio::select! {
                _ = &mut stopped => break,
                () = tokio::time::sleep(LOOK) => {}
            }
            let Some(offer) = (self.offer)() else {
                return;
            };
            let now = clock::of_timers();
            let fresh = offer.filter(|o| now.saturating_duration_since(o.at) < STALE);
            let amounts = fresh.map(|offer| offer.amounts);
            if self.pace.is_due(amounts, now) {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = self.tell(amounts) => {}
                }
            }
        }
        if self.pace.offers() {
            let _ = tokio::time::timeout(LAST, self.tell(None)).await;
        }
    }

    async fn tell(&mut self, offer: Option<Amounts>) {
        let patch = patch(offer);
        let answer = self.server.patch_node_status(&self.node_name, &patch);
        let failure = match answer.await {
            Ok(Ok(_)) => {
                if self.problem.take().is_some() {
                    tracing::info!("reclaimed resources are published again");
                }
                tracing::debug!(?offer, "published reclaimed resources");
                self.pace.said(offer, clock::of_timers());
                return;
            }
            Ok(Err(refusal)) => refusal.failure(PATCH_NODE),
            Err(failure) => failure,
        };
        self.pace
            .failed(failure.wait, clock::of_timers(), fastrand::f64());
        if self.problem.as_ref() != Some(&failure.problem) {
            let message = format!("reclaimed resources are not published: {}", failure.problem);
            tracing::warn!("{message}");
            (self.on_degraded)(message);
            self.problem = Some(failure.problem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patch_names_four_resources_twice_and_nothing_else() {
        let offered = patch(Some([500, 1 << 30, 0, 7]));
        let list = json!({
            "kubernetes.io/batch-cpu": "500",
            "kubernetes.io/batch-memory": "1073741824",
            "kubernetes.io/mid-cpu": "0",
            "kubernetes.io/mid-memory": "7",
        });
        let status = json!({"capacity": list, "allocatable": list});
        assert_eq!(offered, json!({"status": status}));
        let withdrawn = patch(None);
        for kind in ["capacity", "allocatable"] {
            let list = withdrawn["status"][kind].as_object().unwrap();
            assert!(
                list.len() == 4 && list.values().all(Value::is_null),
                "{list:?}"
            );
        }
    }
}
