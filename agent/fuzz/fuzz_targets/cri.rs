//! Any bytes as the runtime's two lists; the first byte says where the second begins. Nothing panics, and each container
//! is known, of one pod, and a sandbox or a workload.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden::pods::runtime::{
    RuntimeState, SANDBOX_NAME,
    cri::{ListContainersResponse, ListPodSandboxResponse, VersionResponse},
};
use prost::Message as _;

fuzz_target!(|bytes: &[u8]| {
    let Some((share, bytes)) = bytes.split_first() else {
        return;
    };
    let _ = VersionResponse::decode(bytes);
    let (sandboxes, containers) = bytes.split_at(bytes.len() * usize::from(*share) / 255);
    let sandboxes = ListPodSandboxResponse::decode(sandboxes)
        .unwrap_or_default()
        .items;
    let containers = ListContainersResponse::decode(containers)
        .unwrap_or_default()
        .containers;
    let state = RuntimeState::new(&sandboxes, &containers);

    let ids = containers.iter().map(|container| &container.id);
    for id in ids.chain(sandboxes.iter().map(|sandbox| &sandbox.id)) {
        if !state.has(id) {
            continue;
        }
        let uids = sandboxes.iter().flat_map(|sandbox| {
            let metadata = sandbox.metadata.iter().map(|metadata| &metadata.uid);
            metadata.chain(sandbox.labels.values())
        });
        let uids = uids.chain(
            containers
                .iter()
                .flat_map(|container| container.labels.values()),
        );
        let mut of: Vec<_> = uids
            .filter(|uid| state.container(uid, id).is_some())
            .collect();
        of.sort_unstable();
        of.dedup();
        let [uid] = of[..] else {
            panic!("{id:?} is of {of:?}");
        };
        assert!(!uid.is_empty());
        let Some(known) = state.container(uid, id) else {
            return;
        };
        assert!(!known.is_sandbox || known.name == SANDBOX_NAME);
        let kinds = state.child_kinds(uid, [(&**id, "kubepods/pod/child")]);
        let (workload, sandbox) = (kinds.workloads.len(), kinds.sandboxes.len());
        let unknown = usize::from(known.is_sandbox && known.of_other_handler);
        assert_eq!(workload + sandbox + unknown, 1);
        assert_eq!(workload == 1, !known.is_sandbox);
    }
});
