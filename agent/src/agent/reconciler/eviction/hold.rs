//! Evicted pods -> what holds them dead.

use std::sync::Arc;

use podwarden_policy::PodUid;

use super::EvictionManager;
use crate::pods::PodSet;

impl EvictionManager {
    /// Holds evicted pods whose files are open. A static pod has no status that would end it: its kubelet
    /// starts it again.
    pub(super) fn hold_dead(&mut self, set: &PodSet) {
        let Some(status) = self.status.as_mut().filter(|_| !self.to_hold.is_empty()) else {
            self.to_hold.clear();
            return;
        };
        let armed = self.reactor.armed();
        let is_static = |uid: &PodUid| {
            let found = set.pods.iter().find(|known| known.pod.uid == *uid);
            found.is_some_and(|known| known.pod.static_pod)
        };
        self.to_hold.retain(|uid| {
            let victim = armed
                .victims
                .iter()
                .find(|victim| *victim.uid == *uid.as_str());
            let Some(victim) = victim else { return true };
            if !is_static(uid) {
                status.hold(uid.as_str(), Arc::clone(&victim.files));
            }
            false
        });
    }

    /// A container was made in a pod.
    pub(in crate::agent::reconciler) fn container_appeared(&self, uid: &str) {
        if let Some(status) = &self.status {
            status.container_appeared(uid);
        }
    }
}
