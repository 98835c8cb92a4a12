//! The offer in the Node's status, as resources that pods request by name.
//!
//! Delivery by a strategic patch of those four resources alone, which leaves everything else to the kubelet, as the
//! kubelet's own patches leave these. It computes `allocatable` from `capacity` for every resource that it finds
//! (`pkg/kubelet/nodestatus/setters.go`), so both are written. A clean end withdraws them: pods that run keep theirs,
//! and the scheduler places no further ones.
//!
//! Times are `CLOCK_MONOTONIC`: a wall clock that is stepped changes nothing.

use std::time::{Duration, Instant};

use podwarden_policy::model::ReclaimedTier;
use serde_json::{Map, Value, json};

use super::pace::{Amounts, When};
use crate::{
    api::types::ReclaimedStats,
    base::clock,
    config::ReclaimedConfig,
    eviction::{
        pod_workers::JobError,
        status::{MANAGER, NodePart, PATCH_NODE, Pace, Server},
    },
};

/// An offer that is older is stale: the figures are read every 10 s at least.
const STALE: Duration = Duration::from_secs(60);

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
pub(crate) struct Publisher {
    offer: Box<dyn Fn() -> Option<Option<Offer>> + Send + Sync>,
    when: When,
}

impl Publisher {
    /// Of what `offer` finds; the outer `None` ends it.
    pub(crate) fn new(
        config: &ReclaimedConfig,
        offer: impl Fn() -> Option<Option<Offer>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            offer: Box::new(offer),
            when: When::new(config.diff_percent, config.update, clock::of_timers()),
        }
    }
}

impl NodePart for Publisher {
    /// `None` withdraws.
    type Value = Option<Amounts>;

    const LEAST: Duration = Duration::from_secs(10);
    const FAILURE: &'static str = "reclaimed resources are not published";

    fn value(&self) -> Option<Option<Amounts>> {
        let offer = (self.offer)()?;
        let now = clock::of_timers();
        let fresh = offer.filter(|o| now.saturating_duration_since(o.at) < STALE);
        Some(fresh.map(|offer| offer.amounts))
    }

    fn is_due(&self, offer: &Option<Amounts>, pace: &Pace<Option<Amounts>>, now: Instant) -> bool {
        self.when.is_due(pace.written(), *offer, now)
    }

    async fn write(
        &mut self,
        server: &Server,
        node: &str,
        offer: &Option<Amounts>,
    ) -> Result<(), JobError> {
        let answer = server.patch_node_status(node, &patch(*offer)).await?;
        answer.map_err(|refusal| refusal.failure(PATCH_NODE))?;
        Ok(())
    }

    /// What this agent offers goes with it.
    fn last(&self, offer: &Option<Amounts>, _reachable: bool) -> Option<Option<Amounts>> {
        offer.is_some().then_some(None)
    }
}

/// Withdraws what an agent before this one has offered, which offers nothing. What another manager offers stays.
#[derive(Debug, Default)]
pub(crate) struct FormerOffer {
    done: bool,
}

impl NodePart for FormerOffer {
    type Value = ();

    const LEAST: Duration = Duration::ZERO;
    const FAILURE: &'static str = "reclaimed resources of an agent before this one are offered on the Node, and are not withdrawn";

    fn value(&self) -> Option<()> {
        (!self.done).then_some(())
    }

    fn is_due(&self, (): &(), _pace: &Pace<()>, _now: Instant) -> bool {
        true
    }

    async fn write(&mut self, server: &Server, node: &str, (): &()) -> Result<(), JobError> {
        let read = server.node_if_readable(node).await?;
        if read.is_some_and(|node| is_offered_by_us(&node)) {
            let answer = server.patch_node_status(node, &patch(None)).await?;
            answer.map_err(|refusal| refusal.failure(PATCH_NODE))?;
        }
        self.done = true;
        Ok(())
    }

    fn last(&self, (): &(), _reachable: bool) -> Option<()> {
        None
    }
}

/// Whether the Node offers one of the resources, written by podwarden last.
fn is_offered_by_us(node: &Value) -> bool {
    let managers = node["metadata"]["managedFields"].as_array();
    let mut ours = managers
        .into_iter()
        .flatten()
        .filter(|fields| fields["manager"] == MANAGER);
    ours.any(|fields| {
        let offered = &fields["fieldsV1"]["f:status"]["f:allocatable"];
        resources()
            .iter()
            .any(|name| offered.get(format!("f:{name}")).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_withdrawn_at_the_end() {
        let publisher = Publisher {
            offer: Box::new(|| None),
            when: When::new(10, Duration::from_secs(300), Instant::now()),
        };
        assert_eq!(publisher.last(&Some([1; 4]), false), Some(None));
        assert_eq!(publisher.last(&None, true), None);
        // Two writes are 10 s apart, whatever changes.
        let now = Instant::now();
        let mut pace = Pace::new(Publisher::LEAST);
        pace.wrote(Some([1; 4]), now);
        assert!(!pace.allows(now) && pace.allows(now + Publisher::LEAST));
    }

    #[test]
    fn what_another_manager_offers_stays() {
        let of = |manager: &str, resource: &str| {
            let fields = json!({"f:status": {"f:allocatable": {resource: {}}}});
            let entry = json!({"manager": manager, "subresource": "status", "fieldsV1": fields});
            json!({"metadata": {"managedFields": [{"manager": "kubelet"}, entry]}})
        };
        let batch = "f:kubernetes.io/batch-cpu";
        assert!(is_offered_by_us(&of("podwarden", batch)));
        assert!(!is_offered_by_us(&of("koord-manager", batch)));
        assert!(!is_offered_by_us(&of("podwarden", "f:cpu")));
        assert!(!is_offered_by_us(&json!({"metadata": {}})));
    }

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
