//! The Node object, whose kubelet says what it keeps from pods.

use std::{collections::BTreeMap, time::Duration};

use kube::core::Request;
use podwarden_policy::{
    quantity::{self, QuantityError},
    reserve::{Advertised, Amounts},
};
use serde::Deserialize;
use tokio::sync::watch;

use super::{Apiserver, connect};
use crate::{
    base::error::chain,
    pods::http::{HttpError, Operation, RequestError, Server},
};

const NODES: &str = "/api/v1/nodes";

const GET: Operation = Operation {
    name: "get of this Node",
    right: "get of nodes",
    time: Duration::from_secs(30),
};

/// A kubelet changes what it keeps from pods when it starts again; up to half as long more, so that not all nodes
/// ask at once.
const INTERVAL: Duration = Duration::from_secs(300);

/// After a failure, and while there is no Node; doubled up to [`INTERVAL`].
const RETRY: Duration = Duration::from_secs(5);

/// Follows what the Node object says, until the receiver is gone; `None` while that is not known. Needs a tokio
/// runtime.
pub fn follow(apiserver: Apiserver, node_name: &str) -> watch::Receiver<Option<Advertised>> {
    let (said, receiver) = watch::channel(None);
    let node_name = node_name.to_owned();
    tokio::spawn(async move {
        let asking = ask_for_ever(&apiserver, &node_name, &said);
        tokio::select! {
            () = said.closed() => {}
            () = asking => {}
        }
    });
    receiver
}

async fn ask_for_ever(
    apiserver: &Apiserver,
    node_name: &str,
    said: &watch::Sender<Option<Advertised>>,
) {
    let mut retry = RETRY;
    let mut problem = String::new();
    loop {
        let pause = match ask(apiserver, node_name).await {
            Ok(advertised) => {
                said.send_if_modified(|last| last.replace(advertised) != Some(advertised));
                retry = RETRY;
                INTERVAL
            }
            Err(error) => {
                let error = chain(&error);
                // The same problem is logged once.
                if problem != error {
                    tracing::warn!(
                        "reserves are those of the configuration: {error}; set kubeReserved and systemReserved, \
                         or grant the right"
                    );
                    problem = error;
                }
                let pause = retry;
                retry = retry.saturating_mul(2).min(INTERVAL);
                pause
            }
        };
        tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
    }
}

/// With the credentials as they are now: this is seldom.
async fn ask(apiserver: &Apiserver, node_name: &str) -> Result<Advertised, HttpError> {
    let (client, url) = connect::client(apiserver).await?;
    let name = format!("the API server {url}");
    let server = Server { client, name };
    let request = Request::new(NODES).get(node_name, &kube::core::params::GetParams::default());
    let text = server.text(GET, request).await?;
    advertised(&text).map_err(|error| server.error(GET, RequestError::Answer(error)))
}

#[derive(Deserialize)]
struct Node {
    status: Status,
}

/// Fields that are not there are those of a Node that no kubelet has written to yet.
#[derive(Deserialize)]
struct Status {
    capacity: BTreeMap<String, String>,
    allocatable: BTreeMap<String, String>,
}

pub(in crate::pods) fn advertised(text: &str) -> Result<Advertised, serde_json::Error> {
    let Node { status } = serde_json::from_str(text)?;
    Ok(Advertised {
        capacity: amounts("capacity", &status.capacity)?,
        allocatable: amounts("allocatable", &status.allocatable)?,
    })
}

fn amounts(
    field: &'static str,
    of: &BTreeMap<String, String>,
) -> Result<Amounts, serde_json::Error> {
    Ok(Amounts {
        cpu: amount(field, of, "cpu", quantity::parse_cpu)?,
        memory: amount(field, of, "memory", quantity::parse_memory)?,
        ephemeral_storage: amount(field, of, "ephemeral-storage", quantity::parse_memory)?,
    })
}

/// A resource that is not listed is none.
fn amount<T: Default>(
    field: &'static str,
    of: &BTreeMap<String, String>,
    resource: &str,
    parse: impl Fn(&str) -> Result<T, QuantityError>,
) -> Result<T, serde_json::Error> {
    let Some(text) = of.get(resource) else {
        return Ok(T::default());
    };
    let problem = |error| format!("status.{field}.{resource}: {text:?}: {error}");
    parse(text).map_err(|error| serde::de::Error::custom(problem(error)))
}

#[cfg(test)]
mod tests {
    use podwarden_policy::{Bytes, MilliCpu};

    use super::*;

    #[test]
    fn capacity_and_allocatable_are_read_from_the_status() {
        let text = r#"{"metadata": {"name": "n"}, "status": {
            "capacity": {"cpu": "8", "memory": "24587512Ki", "pods": "110", "ephemeral-storage": "100Gi"},
            "allocatable": {"cpu": "7500m", "memory": "6Gi", "pods": "110"}}}"#;
        let found = advertised(text).unwrap();
        assert_eq!(found.capacity.cpu, MilliCpu(8000));
        assert_eq!(found.capacity.memory, Bytes(24_587_512 << 10));
        assert_eq!(found.allocatable.cpu, MilliCpu(7500));
        assert_eq!(found.allocatable.ephemeral_storage, Bytes::ZERO);
    }

    #[test]
    fn a_node_that_no_kubelet_has_written_to_says_nothing() {
        assert!(advertised(r#"{"status": {}}"#).is_err());
        let wrong = r#"{"status": {"capacity": {"memory": "much"}, "allocatable": {}}}"#;
        let error = advertised(wrong).unwrap_err().to_string();
        assert!(error.contains("status.capacity.memory"), "{error}");
    }
}
