//! Pods that ask for reclaimed resources: their containers' cgroups, and values at once when a cgroup appears.

use std::collections::BTreeMap;

use podwarden_policy::{
    Pod, PodUid, QosClass,
    colocation::batch_pod,
    desired,
    plan::{self, ContainerCgroup, Snapshot},
    settings::Observed,
};

use super::{Context, Environment, Fact, Hierarchy};
use crate::{
    accounting::index::PodEntry, config::Mode, hierarchy::act::Actor, hierarchy::sense,
    pods::PodSet,
};

/// The cgroups of the containers of every such pod. Sandboxes are left out as far as the runtime names them.
pub(super) fn containers(cx: Context<'_>, set: &PodSet) -> Vec<ContainerCgroup> {
    let pods = set.pods.iter().map(|p| &p.pod);
    pods.filter(|pod| asks(cx.env, pod))
        .filter_map(|pod| Some(of_pod(cx, pod, cx.entries.get(&pod.uid)?)))
        .flatten()
        .collect()
}

fn asks(env: &Environment, pod: &Pod) -> bool {
    env.config.colocation.reclaimed.enforce && batch_pod::tier(pod).is_some()
}

fn of_pod<'a>(
    cx: Context<'a>,
    pod: &'a Pod,
    entry: &'a PodEntry,
) -> impl Iterator<Item = ContainerCgroup> + 'a {
    let Context { env, known, .. } = cx;
    let uid = &pod.uid;
    let own = env.layout.kubepods.pod(entry.class, &pod.uid);
    let containers = entry.containers.iter();
    containers
        .filter(move |(id, container)| container.live && !known.identities.is_sandbox(uid, id))
        .filter_map(move |(id, container)| {
            let component = container.path.last()?;
            let cgroup = own.child(component);
            // A container of a container has its pod's values from the outer one.
            (env.layout.path(&cgroup) == container.path).then(|| ContainerCgroup {
                pod: pod.uid.clone(),
                container: known.identities.container(uid, id).map(str::to_owned),
                cgroup,
            })
        })
}

impl Hierarchy {
    /// A cgroup of a pod or of a container appeared: a pod that asks for reclaimed resources gets its values now, and
    /// a pass over the tree follows, which watches the files.
    pub(in crate::agent::reconciler) fn reclaimed_appeared(
        &mut self,
        cx: Context<'_>,
        uid: &PodUid,
    ) -> Option<Fact> {
        let env = cx.env;
        let entry = cx.entries.get(uid)?;
        let set = cx.known.set();
        let pod = set.pods.iter().find(|p| p.pod.uid == *uid)?;
        if !asks(env, &pod.pod) || env.config.mode != Mode::Enforce {
            return None;
        }
        let mut snapshot = Snapshot::new(env.node.clone(), env.layout.kubepods.clone());
        env.config.decide(&mut snapshot);
        snapshot.controllers = sense::controllers_of(&env.tree, &env.layout);
        snapshot.page_size = sense::page_size();
        snapshot.pods = vec![pod.pod.clone()];
        snapshot.container_cgroups = of_pod(cx, &pod.pod, entry).collect();
        let own = env.layout.kubepods.pod(QosClass::BestEffort, &pod.pod.uid);
        let mut desired = desired::tree(&snapshot);
        desired.retain(|cgroup| cgroup.name.is_within(&own));
        let observed: BTreeMap<_, Observed> = desired
            .iter()
            .map(|cgroup| (cgroup.name.clone(), env.layout.path(&cgroup.name)))
            .filter(|(_, path)| env.tree.id(path).is_ok())
            .map(|(name, path)| (name, env.tree.read(&path)))
            .collect();
        let actions = plan::corrections(&snapshot, &desired, &observed);
        Actor::perform(&mut self.actor, &env.tree, &env.layout, &actions);
        Some(Fact::Reconcile)
    }
}
