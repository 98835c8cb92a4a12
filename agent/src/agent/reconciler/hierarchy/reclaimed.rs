//! Pods that ask for reclaimed resources: their containers' cgroups, and what the thread for new cgroups goes by.

use podwarden_policy::{Pod, PodUid, colocation::batch_pod, plan::ContainerCgroup};

use super::{Context, Environment, Fact, Hierarchy};
use crate::{
    accounting::index::{ContainerEntry, PodEntry},
    hierarchy::{
        fresh::{Aim, Asking},
        sense,
    },
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

/// What new cgroups of such pods are written by. Sandboxes have a name that no container of a spec has.
fn aim(cx: Context<'_>, set: &PodSet) -> Aim {
    let Context { env, known, .. } = cx;
    let terms = sense::terms(&env.tree, &env.layout, &env.config, &env.node);
    let pods = set.pods.iter().map(|p| &p.pod);
    let asking = pods.filter(|pod| asks(env, pod)).map(|pod| {
        let entry = cx.entries.get(&pod.uid);
        let containers = entry.into_iter().flat_map(|entry| &entry.containers);
        let containers = containers.map(|(id, container)| (id.as_str(), container));
        let name = |(id, container): (&str, &ContainerEntry)| {
            let name = known.identities.container(&pod.uid, id)?;
            Some((container.path.last()?.to_owned(), name.to_owned()))
        };
        Asking {
            pod: pod.clone(),
            containers: containers.filter_map(name).collect(),
        }
    });
    let mut pods: Vec<_> = asking.collect();
    pods.sort_by(|a, b| a.pod.uid.cmp(&b.pod.uid));
    Aim { terms, pods }
}

impl Hierarchy {
    /// Hands the thread that writes to new cgroups the pods as they are now.
    pub(super) fn aim_fresh(&mut self, cx: Context<'_>, set: &PodSet) {
        if let Some(fresh) = &mut self.fresh {
            fresh.aim(aim(cx, set));
        }
    }

    /// A cgroup of a pod or of a container appeared: where the pod asks for reclaimed resources a pass over the tree
    /// follows, which watches the files.
    pub(in crate::agent::reconciler) fn reclaimed_appeared(
        cx: Context<'_>,
        uid: &PodUid,
    ) -> Option<Fact> {
        let set = cx.known.set();
        let pod = set.pods.iter().find(|p| p.pod.uid == *uid)?;
        asks(cx.env, &pod.pod).then_some(Fact::Reconcile)
    }
}
