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

use super::pace::{Amounts, When, patience};
use crate::{
    api::types::ReclaimedStats,
    base::clock,
    config::ReclaimedConfig,
    eviction::{
        pod_workers::JobError,
        status::{Former, MANAGER, NodePart, PATCH_NODE, Pace, Server},
    },
};

/// An offer that is older than this, and than [`patience`] allows, is stale: the figures are read every 10 s at least, or
/// each `sampling.interval`.
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

/// What the latest pass found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// `None` where it has no figures.
    pub offer: Option<Offer>,
    /// `sampling.interval`.
    pub interval: Duration,
}

/// `None` withdraws.
fn patch(offer: Option<Amounts>) -> Value {
    let amount = |index: usize| offer.map_or(Value::Null, |o| o[index].to_string().into());
    let names = resources().into_iter().enumerate();
    let list: Map<_, _> = names
        .map(|(i, name)| (name.to_owned(), amount(i)))
        .collect();
    both(&list)
}

/// A patch of these resources.
fn both(list: &Map<String, Value>) -> Value {
    json!({"status": {"capacity": list, "allocatable": list}})
}

async fn write(server: &Server, node: &str, patch: &Value) -> Result<(), JobError> {
    let answer = server.patch_node_status(node, patch).await?;
    answer.map_err(|refusal| refusal.failure(PATCH_NODE))?;
    Ok(())
}

pub(crate) struct Publisher {
    found: Box<dyn Fn() -> Option<Found> + Send + Sync>,
    when: When,
}

impl Publisher {
    /// Of what `found` gives; `None` ends it.
    pub(crate) fn new(
        config: &ReclaimedConfig,
        found: impl Fn() -> Option<Found> + Send + Sync + 'static,
    ) -> Self {
        Self {
            found: Box::new(found),
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
        let Found { offer, interval } = (self.found)()?;
        let now = clock::of_timers();
        let stale = patience(STALE, interval);
        let fresh = offer.filter(|o| now.saturating_duration_since(o.at) < stale);
        Some(fresh.map(|offer| offer.amounts))
    }

    fn is_due(&self, offer: &Option<Amounts>, pace: &Pace<Option<Amounts>>, now: Instant) -> bool {
        let interval = (self.found)().map_or(Duration::ZERO, |found| found.interval);
        self.when.is_due(pace.written(), *offer, interval, now)
    }

    async fn write(
        &mut self,
        server: &Server,
        node: &str,
        offer: &Option<Amounts>,
    ) -> Result<(), JobError> {
        write(server, node, &patch(*offer)).await
    }

    /// What this agent offers goes with it.
    fn last(&self, offer: &Option<Amounts>, _reachable: bool) -> Option<Option<Amounts>> {
        offer.is_some().then_some(None)
    }
}

/// What an agent before this one has offered, where this one offers nothing. What another manager offers stays.
pub(crate) struct FormerOffer;

impl Former for FormerOffer {
    const FAILURE: &'static str = "reclaimed resources of an agent before this one are offered on the Node, and are not withdrawn";

    async fn take_back(server: &Server, name: &str, node: Value) -> Result<(), JobError> {
        let ours = offered_by_us(&node).map(|name| (name.to_owned(), Value::Null));
        let ours: Map<_, _> = ours.collect();
        match ours.is_empty() {
            true => Ok(()),
            false => write(server, name, &both(&ours)).await,
        }
    }
}

/// The resources that the Node offers and podwarden wrote last.
fn offered_by_us(node: &Value) -> impl Iterator<Item = &'static str> + '_ {
    let managers = node["metadata"]["managedFields"].as_array();
    let ours: Vec<_> = managers
        .into_iter()
        .flatten()
        .filter(|fields| fields["manager"] == MANAGER)
        .map(|fields| &fields["fieldsV1"]["f:status"]["f:allocatable"])
        .collect();
    let is_ours = move |name: &&str| {
        let field = format!("f:{name}");
        ours.iter().any(|offered| offered.get(&field).is_some())
    };
    resources().into_iter().filter(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(found: impl Fn() -> Option<Found> + Send + Sync + 'static) -> Publisher {
        Publisher {
            found: Box::new(found),
            when: When::new(10, Duration::from_secs(300), Instant::now()),
        }
    }

    #[test]
    fn an_offer_is_stale_after_several_intervals() {
        let Some(at) = clock::of_timers().checked_sub(Duration::from_secs(90)) else {
            return;
        };
        let value = |seconds| {
            let offer = Some(Offer {
                amounts: [1; 4],
                at,
            });
            let interval = Duration::from_secs(seconds);
            publisher(move || Some(Found { offer, interval })).value()
        };
        assert_eq!(value(1), Some(None));
        assert_eq!(value(60), Some(Some([1; 4])));
        assert_eq!(publisher(|| None).value(), None);
    }

    #[test]
    fn what_is_offered_is_withdrawn_at_the_end() {
        let publisher = publisher(|| None);
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
        let ours = |node: Value| offered_by_us(&node).collect::<Vec<_>>();
        assert_eq!(ours(of("podwarden", batch)), [&batch[2..]]);
        assert!(ours(of("koord-manager", batch)).is_empty());
        assert!(ours(of("podwarden", "f:cpu")).is_empty());
        assert!(ours(json!({"metadata": {}})).is_empty());
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
