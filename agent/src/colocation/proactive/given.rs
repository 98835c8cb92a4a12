//! What pods gave back, as the API shows it.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use podwarden_policy::{PodUid, colocation::proactive::Verdict};

use crate::api::types::{PodStats, ProactiveReclaimStats};

/// Written by the thread, read by a sampling pass.
#[derive(Debug, Default)]
pub struct Given(Mutex<HashMap<PodUid, ProactiveReclaimStats>>);

impl Given {
    /// A pod was looked at; it gave `bytes`, and missed `refaults` pages meanwhile.
    pub(super) fn note(&self, uid: &PodUid, verdict: Verdict, bytes: u64, refaults: u64) {
        let mut all = self.lock();
        let stats = all.entry(uid.clone()).or_default();
        verdict.as_str().clone_into(&mut stats.last);
        stats.reclaimed_bytes += bytes;
        stats.steps += u64::from(verdict == Verdict::Taken);
        stats.refaults += refaults;
    }

    /// Pods that are not among these are gone.
    pub(super) fn keep(&self, uids: &HashSet<&PodUid>) {
        self.lock().retain(|uid, _| uids.contains(uid));
    }

    /// Puts it beside the pods' figures.
    pub fn put(&self, pods: &mut [PodStats]) {
        let all = self.lock();
        for pod in pods {
            pod.proactive_reclaim = all.get(&pod.pod_ref.uid).cloned();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, ProactiveReclaimStats>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
