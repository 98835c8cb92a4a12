//! A pod's quotas as they were found.

use super::Pod;
use crate::colocation::{
    burst::{Parts, container::Cgroup},
    found::Originals,
};

impl Pod {
    /// Puts everything back as it was found. True once it is, or the pod is gone.
    pub(in crate::colocation::burst) fn restore(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
    ) -> bool {
        if !originals.has(&self.cgroup.path) {
            return true;
        }
        let adopt = |cgroup: &mut Cgroup, originals: &mut Originals| {
            cgroup.adopt(&parts.tree, originals).is_ok()
        };
        if !adopt(&mut self.cgroup, originals) {
            self.forget(parts, originals);
            return true;
        }
        self.tracked
            .retain_mut(|one| adopt(&mut one.cgroup, originals));
        let pod = self.cgroup.found.bandwidth();
        let containers = self.tracked.iter().map(|one| one.cgroup.found.bandwidth());
        match self.carry_out(parts, pod, containers) {
            Ok(()) => {}
            Err(error) if error.is_gone() => {}
            Err(error) => {
                tracing::warn!(%error, pod = %self.cgroup.path, "its CPU quota is not what was found");
                return false;
            }
        }
        self.forget(parts, originals);
        true
    }

    /// Nothing of the pod is ours any more.
    fn forget(&self, parts: &Parts, originals: &mut Originals) {
        let containers = self.protected.containers.iter().map(|(_, path)| path);
        let all = || containers.clone().chain([&self.cgroup.path]);
        originals.forget(all());
        all().for_each(|path| parts.ours.forget(path));
    }
}
