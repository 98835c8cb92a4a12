//! The kernel's notices. Each is recorded with its time; the present state is read
//! afterwards.

use std::sync::Arc;

use podwarden_abi::{Crossing, Source};
use podwarden_cgroup::PsiKind;

use super::{Core, SCOPES};
use crate::{
    kernel::events,
    reactor::{plan::Scope, poll::drain, report::Detector, watch::Watch},
};

impl Core {
    /// Notes what the kernel programs saw.
    pub(super) fn take_crossings(&mut self, wake: u64) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        while let Some(record) = kernel.decisions.next() {
            let Ok(crossing) = events::record::<Crossing>(&record) else {
                continue;
            };
            let detector = if crossing.source == Source::Charge as u32 {
                Detector::Charge
            } else {
                Detector::Switch
            };
            for (scope, watch) in self.plan.scopes.iter().zip(&mut self.watches) {
                if scope.memory_id == crossing.cgroup {
                    watch.reported(crossing.time_ns, detector, wake);
                }
            }
        }
    }

    /// Notes that a v1 threshold was passed, in either direction.
    pub(super) fn notified(&mut self, index: u64, wake: u64) {
        let Some((scope, watch)) = at(index, &self.plan.scopes, &mut self.watches) else {
            return;
        };
        if let Some(fd) = scope.notice.fd() {
            drain(fd);
        }
        watch.notified(wake, Detector::EventFd);
    }

    /// Notes that a limit was reached in a scope, of its own or of a cgroup in it.
    pub(super) fn limit_reached(&mut self, index: u64, wake: u64) {
        let Some((scope, watch)) = at(index, &self.plan.scopes, &mut self.watches) else {
            return;
        };
        // Of one that is gone nothing more is said.
        let there = scope.events.as_ref().is_some_and(|e| e.silence().is_ok());
        if there {
            watch.notified(wake, Detector::MemoryEvents);
        }
    }

    /// Notes that tasks have waited for memory.
    pub(super) fn stalled(&mut self, index: u64, wake: u64) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let pressure = self.plan.pressure.as_ref();
        let Some(trigger) = pressure.and_then(|p| p.triggers.get(index)) else {
            return;
        };
        self.stalls.noticed(
            wake,
            match trigger.kind {
                PsiKind::Some => Detector::PsiSome,
                PsiKind::Full => Detector::PsiFull,
            },
        );
    }
}

/// A scope of the plan and its watch.
fn at<'a>(
    index: u64,
    scopes: &'a [Arc<Scope>],
    watches: &'a mut [Watch; SCOPES],
) -> Option<(&'a Arc<Scope>, &'a mut Watch)> {
    let index = usize::try_from(index).ok()?;
    Some((scopes.get(index)?, watches.get_mut(index)?))
}
