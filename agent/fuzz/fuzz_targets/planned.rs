//! Pods that were read are planned on an ordinary node, and the laws of `plan` hold.

use podwarden_policy::{
    Bytes, MilliCpu, Node, Pod,
    name::{self, CgroupName},
    plan::Snapshot,
};

use crate::plan_laws;

/// Checks every law, and panics where one is broken, or a pod has no uid or name.
pub(crate) fn all(pods: Vec<Pod>) {
    for pod in &pods {
        assert!(
            !pod.uid.as_str().is_empty() && !pod.name.is_empty(),
            "{pod:?}"
        );
    }
    let node = Node {
        cpu_capacity: MilliCpu(8000),
        memory_capacity: Bytes::gibi(32),
        pids_capacity: Some(1 << 22),
        ..Node::default()
    };
    let mut snapshot = Snapshot::new(node, name::kubepods(&CgroupName::root()));
    snapshot.pods = pods;
    plan_laws::all(&snapshot, true);
}
