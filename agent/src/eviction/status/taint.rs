//! The Node's taint while memory is short: the scheduler sends no pod there that does not tolerate it.
//!
//! A kubelet says the same by its condition `MemoryPressure`, for which the node controller puts
//! `node.kubernetes.io/memory-pressure` on the Node. Both are theirs: a kubelet that is not short of memory by its own
//! figures takes the condition back within 10 s, and the controller a taint without the condition at once. So the
//! taint here is one of podwarden's own, which neither of them looks at.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{
    node_part::{Former, LOOK, NodePart, Pace},
    server::{GET_NODE, PATCH_TAINTS, Server, not_a_node},
};
use crate::{base::clock, eviction::pod_workers::JobError};

/// The taint's key.
pub(super) const KEY: &str = "podwarden.io/memory-pressure";

/// What it does; pods that run there stay.
const EFFECT: &str = "NoSchedule";

/// A taint that is there is looked for as often: another may have removed it.
const REFRESH: Duration = Duration::from_secs(60);

/// So often an object that changes between two requests is looked at again.
const CHANGES: u32 = 5;

/// An eviction status waits so long for the taint at most: its pod is held dead meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// A scheduler has so long to see the taint before the status stands: it learns of Nodes and of pods by two watches,
/// and may see the new pod before a Node that changed first.
const WATCHED: Duration = Duration::from_millis(250);

/// How the taint stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Taint {
    /// No task keeps it, or it cannot be written now.
    #[default]
    Unkept,
    /// The Node does not have it.
    Absent,
    /// The Node has it; when that was written or seen last.
    Present(Instant),
}

/// Whether the node is short of memory, and whether the Node object says so. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct NodePressure {
    short: Arc<watch::Sender<bool>>,
    taint: Arc<watch::Sender<Taint>>,
}

impl NodePressure {
    /// Memory is short from now on, or is no longer.
    pub fn set(&self, short: bool) {
        self.short
            .send_if_modified(|before| std::mem::replace(before, short) != short);
    }

    /// Whether memory is short.
    pub fn is(&self) -> bool {
        *self.short.borrow()
    }

    /// Waits until the Node has the taint and the scheduler knows of it, where memory is short and the taint can be
    /// written; not for long. A controller that learns of an eviction makes a new pod at once, and the scheduler would
    /// send it to this node.
    pub(super) async fn settled(&self) {
        if !self.is() {
            return;
        }
        let mut taint = self.taint.subscribe();
        let settled = async {
            let found = taint.wait_for(|taint| *taint != Taint::Absent).await;
            // An error says that the agent ends.
            let found = found.map_or(Taint::Unkept, |found| *found);
            if let Taint::Present(at) = found {
                tokio::time::sleep_until((at + WATCHED).into()).await;
            }
        };
        // What is late is not waited for.
        let _ = tokio::time::timeout(PATIENCE, settled).await;
    }
}

/// What keeps the taint; see the module's text.
pub(crate) struct MemoryTaint {
    short: watch::Receiver<bool>,
    taint: Arc<watch::Sender<Taint>>,
}

impl MemoryTaint {
    pub(crate) fn new(pressure: &NodePressure) -> Self {
        Self {
            short: pressure.short.subscribe(),
            taint: Arc::clone(&pressure.taint),
        }
    }
}

impl NodePart for MemoryTaint {
    type Value = bool;

    const LEAST: Duration = Duration::ZERO;
    const FAILURE: &'static str = "the Node's taint podwarden.io/memory-pressure is not kept";

    /// The sender is as old as the agent.
    fn value(&self) -> Option<bool> {
        Some(*self.short.borrow())
    }

    async fn changed(&mut self) {
        tokio::select! {
            Ok(()) = self.short.changed() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }

    /// At the start also where it is to be absent: an agent before this one may have left it.
    fn is_due(&self, short: &bool, pace: &Pace<bool>, now: Instant) -> bool {
        match pace.written() {
            None => true,
            Some((written, at)) => written != short || (*short && now >= *at + REFRESH),
        }
    }

    async fn write(&mut self, server: &Server, node: &str, short: &bool) -> Result<(), JobError> {
        let written = write(server, node, *short).await;
        let taint = match (&written, short) {
            (Err(_), _) => Taint::Unkept,
            (Ok(()), true) => Taint::Present(clock::of_timers()),
            (Ok(()), false) => Taint::Absent,
        };
        self.taint.send_replace(taint);
        written
    }

    /// It goes with the agent; where the Node never had it nothing is left to do.
    fn last(&self, short: &bool, _reachable: bool) -> Option<bool> {
        short.then_some(false)
    }
}

/// A taint of an agent before this one, which keeps none.
pub(crate) struct FormerTaint;

impl Former for FormerTaint {
    const FAILURE: &'static str = "the taint podwarden.io/memory-pressure of an agent before this one keeps pods from the Node, and is not \
                                   removed (`kubectl taint node NAME podwarden.io/memory-pressure-`)";

    async fn take_back(server: &Server, name: &str, node: Value) -> Result<(), JobError> {
        let node: Node = serde_json::from_value(node).map_err(|error| not_a_node(&error))?;
        match patch(node, false, &clock::now_text()) {
            None => Ok(()),
            Some(_) => write(server, name, false).await,
        }
    }
}

#[derive(Deserialize)]
struct Node {
    metadata: Meta,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    resource_version: String,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    taints: Vec<Value>,
}

/// A list of taints has no keys by which it could be patched in parts, so it is written whole, to the version that
/// was read.
async fn write(server: &Server, name: &str, short: bool) -> Result<(), JobError> {
    for _ in 0..CHANGES {
        let answer = server.node(name).await?;
        let text = answer.map_err(|refusal| refusal.failure(GET_NODE))?;
        let node: Node = serde_json::from_slice(&text).map_err(|error| not_a_node(&error))?;
        let Some(patch) = patch(node, short, &clock::now_text()) else {
            return Ok(());
        };
        match server.patch_node(name, &patch).await? {
            Ok(_) => return Ok(()),
            Err(refusal) if refusal.code == 409 => {}
            Err(refusal) => return Err(refusal.failure(PATCH_TAINTS)),
        }
    }
    Err(JobError::new("the Node changes all the time"))
}

/// `None` where the node has what it should have.
fn patch(node: Node, short: bool, now: &str) -> Option<Value> {
    let mut taints = node.spec.taints;
    let own = |taint: &Value| taint["key"] == KEY && taint["effect"] == EFFECT;
    if taints.iter().any(own) == short {
        return None;
    }
    if short {
        let time = super::wording::seconds(now);
        taints.push(json!({"key": KEY, "effect": EFFECT, "timeAdded": time}));
    } else {
        taints.retain(|taint| !own(taint));
    }
    let taints = match taints.is_empty() {
        true => Value::Null,
        false => taints.into(),
    };
    Some(json!({
        "metadata": {"resourceVersion": node.metadata.resource_version},
        "spec": {"taints": taints},
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn node(taints: &[Value]) -> Node {
        let text = json!({
            "metadata": {"name": "n1", "resourceVersion": "7"},
            "spec": {"podCIDR": "10.0.0.0/24", "taints": taints},
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn others_taints_stay_and_what_is_so_is_not_written() {
        let other = json!({"key": "dedicated", "value": "gpu", "effect": "NoSchedule"});
        let same_key = json!({"key": KEY, "effect": "NoExecute"});
        let own = json!({"key": KEY, "effect": EFFECT, "timeAdded": "2026-01-02T03:04:05Z"});
        let of = |taints: &[Value], short| patch(node(taints), short, "2026-01-02T03:04:05.6Z");
        let writes = |taints: Value| {
            Some(json!({"metadata": {"resourceVersion": "7"}, "spec": {"taints": taints}}))
        };
        for (before, short, expected) in [
            (vec![], false, None),
            (vec![], true, writes(json!([own]))),
            (
                vec![other.clone()],
                true,
                writes(json!([other.clone(), own.clone()])),
            ),
            (vec![other.clone(), own.clone()], true, None),
            (
                vec![own.clone(), other.clone()],
                false,
                writes(json!([other.clone()])),
            ),
            (vec![own.clone()], false, writes(Value::Null)),
            (vec![same_key.clone()], false, None),
            (
                vec![same_key.clone()],
                true,
                writes(json!([same_key, own.clone()])),
            ),
        ] {
            assert_eq!(of(&before, short), expected, "{before:?} {short}");
        }
        let without: Node =
            serde_json::from_str(r#"{"metadata": {"resourceVersion": "7"}, "spec": {}}"#).unwrap();
        assert!(patch(without, true, "2026-01-02T03:04:05Z").is_some());
    }

    #[test]
    fn it_is_written_at_the_start_when_it_changes_and_again_while_it_lasts() {
        let pressure = NodePressure::default();
        let part = MemoryTaint::new(&pressure);
        let now = Instant::now();
        let mut pace = Pace::new(MemoryTaint::LEAST);
        assert!(part.is_due(&false, &pace, now), "another may have left it");
        pace.wrote(false, now);
        assert!(!part.is_due(&false, &pace, now + REFRESH * 9));
        assert_eq!(part.value(), Some(false));
        pressure.set(true);
        assert_eq!(part.value(), Some(true));
        assert!(part.is_due(&true, &pace, now) && pace.allows(now));
        pace.wrote(true, now);
        assert!(!part.is_due(&true, &pace, now + REFRESH - LOOK));
        assert!(part.is_due(&true, &pace, now + REFRESH));
        assert_eq!(part.last(&true, false), Some(false));
        assert_eq!(part.last(&false, true), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_waits_for_the_taint_and_not_for_one_that_cannot_be_written() {
        let pressure = NodePressure::default();
        let settled = || pressure.settled().now_or_never().is_some();
        assert!(settled(), "no memory is short");
        pressure.set(true);
        assert!(settled(), "no task keeps it");
        pressure.taint.send_replace(Taint::Absent);
        assert!(!settled());
        let start = clock::of_timers();
        pressure.settled().await;
        assert!(clock::of_timers() - start >= PATIENCE, "not for ever");
        let start = clock::of_timers();
        pressure.taint.send_replace(Taint::Present(start));
        assert!(!settled(), "the scheduler may not have seen it");
        pressure.settled().await;
        assert!(clock::of_timers() - start >= WATCHED);
        assert!(settled(), "it has it since long");
        pressure.taint.send_replace(Taint::Unkept);
        assert!(settled());
    }
}
