//! Values that stay while not all pods are known ([`Snapshot::incomplete`]).
//!
//! Without all pods, sums over pods would be too low: the CPU share of the
//! burstable tier, what is kept from it by the reserve, what is protected from reclaim. So `kubepods`
//! and the tiers keep what they hold until the sums are right. Where they do not exist yet there is
//! nothing to keep.

use super::Desired;
use crate::{model::QosClass, settings::Setting, snapshot::Snapshot};

/// Takes out of `tree` what must not be written yet.
pub(super) fn hold(snapshot: &Snapshot, tree: &mut [Desired]) {
    if !snapshot.incomplete {
        return;
    }
    let tiers = [QosClass::Burstable, QosClass::BestEffort].map(|c| snapshot.kubepods.tier(c));
    for cgroup in tree {
        if !snapshot.cgroups.contains_key(&cgroup.name) {
            continue;
        }
        if tiers.contains(&cgroup.name) {
            cgroup.settings.clear();
        } else if cgroup.name == snapshot.kubepods {
            let sum = |s: &Setting| matches!(s, Setting::MemoryMin(_) | Setting::MemoryLow(_));
            cgroup.settings.retain(|(setting, _)| !sum(setting));
        }
    }
}
