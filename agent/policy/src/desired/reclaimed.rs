//! The cgroups of pods that ask for reclaimed resources, and of their containers: shares, quota and memory limit,
//! which a kubelet does not give them ([`crate::colocation::batch_pod`]).

use alloc::vec::Vec;

use super::{Desired, MadeBy};
use crate::{
    colocation::{
        batch_pod::{self, BatchOptions, BatchValues},
        class::{self, Class},
    },
    model::{Container, Pod, QosClass, ReclaimedTier},
    qos,
    reason::Reason,
    settings::Setting,
    snapshot::{ContainerCgroup, Snapshot},
};

/// Puts the values into a pod's cgroup, over those of a BestEffort pod.
pub(super) fn pod(snapshot: &Snapshot, pod: &Pod, desired: &mut Desired) {
    let Some((tier, options)) = asks(snapshot, pod) else {
        return;
    };
    let Some(values) = batch_pod::pod(pod, &options) else {
        return;
    };
    for (setting, reason) in settings(tier, &values, &options) {
        let property = setting.property();
        let found = desired.settings.iter_mut();
        match found.into_iter().find(|(s, _)| s.property() == property) {
            Some(entry) => *entry = (setting, reason),
            None => desired.settings.push((setting, reason)),
        }
    }
}

/// The cgroups of the containers of such pods, as far as they are known.
pub(super) fn containers(snapshot: &Snapshot, pods: &[&Pod]) -> Vec<Desired> {
    let all = snapshot.container_cgroups.iter();
    let mut found: Vec<_> = all
        .filter_map(|cgroup| {
            let at = pods.binary_search_by(|pod| pod.uid.cmp(&cgroup.pod)).ok()?;
            container(snapshot, pods.get(at)?, cgroup)
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// What one container's cgroup is to hold; `None` where its pod does not ask for reclaimed resources, or where it is
/// not known which container it is.
pub fn container(snapshot: &Snapshot, pod: &Pod, cgroup: &ContainerCgroup) -> Option<Desired> {
    let (tier, options) = asks(snapshot, pod)?;
    let container = named(pod, cgroup.container.as_deref())?;
    let values = batch_pod::container(&container.resources, &options)?;
    Some(Desired {
        name: cgroup.cgroup.clone(),
        made_by: MadeBy::Others,
        reason: Reason::PodMissing {
            qos: QosClass::BestEffort,
        },
        settings: settings(tier, &values, &options),
    })
}

/// A container by its name; without one the only container there is. A sandbox with an overhead may be a virtual
/// machine with all containers in it, which one container's memory limit would kill.
fn named<'a>(pod: &'a Pod, name: Option<&str>) -> Option<&'a Container> {
    match (name, pod.containers.as_slice()) {
        (Some(name), all) => all.iter().find(|c| c.name == name),
        (None, [only]) if pod.overhead.is_none() => Some(only),
        (None, _) => None,
    }
}

/// What a pod asks for, where it is enforced. A pod that asks for `cpu` or `memory` as well is not BestEffort in
/// Kubernetes, and keeps the kubelet's values.
pub(super) fn asks(snapshot: &Snapshot, pod: &Pod) -> Option<(ReclaimedTier, BatchOptions)> {
    if !snapshot.enforce_reclaimed || qos::classify(pod) != QosClass::BestEffort {
        return None;
    }
    let tier = batch_pod::tier(pod)?;
    if class::classify(pod).class != Class::Be {
        return None;
    }
    let options = BatchOptions {
        enforce_cpu_limits: snapshot.limits.enforce_cpu_limits,
        cpu_period_us: snapshot.limits.cpu_period_us,
        ..BatchOptions::default()
    };
    Some((tier, options))
}

fn settings(
    tier: ReclaimedTier,
    values: &BatchValues,
    options: &BatchOptions,
) -> Vec<(Setting, Reason)> {
    let quota = match values.cpu_limit {
        None => Reason::NotAllLimited,
        Some(_) if !options.enforce_cpu_limits => Reason::QuotaNotEnforced,
        Some(cpu_limit) => Reason::ReclaimedQuota {
            tier,
            cpu_limit,
            period_us: values.cpu_max.period_us,
            quota_us: values.cpu_max.quota_us,
        },
    };
    let memory = match values.memory_limit.bound() {
        Some(limit) => Reason::ReclaimedMemory { tier, limit },
        None => Reason::NotAllLimited,
    };
    Vec::from([
        (
            Setting::CpuShares(values.shares),
            Reason::ReclaimedShares {
                tier,
                cpu_request: values.cpu_request,
                shares: values.shares,
            },
        ),
        (Setting::CpuMax(values.cpu_max), quota),
        (Setting::MemoryLimit(values.memory_limit), memory),
    ])
}
