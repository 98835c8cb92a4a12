//! One pod: its cgroups as they were found and as they are, a step decided, and written.

use std::time::{Duration, Instant};

use podwarden_cgroup::{CgroupPath, Error};
use podwarden_policy::{
    colocation::burst::{self, Bandwidth, NodeState, Rates},
    limits::Limit,
};

use super::{
    Parts, Protected, Report, Step, What, Why,
    container::{Cgroup, PACE, Tracked, note},
    meter::Meter,
};
use crate::{
    base::{clock, error::chain},
    colocation::found::{Found, Originals, carry_out},
};

mod restore;

/// Between two looks at the quotas that others may have set.
const RESCAN: Duration = Duration::from_secs(5);
/// The same where a container has none: the runtime makes its cgroup before it sets its quota.
const RESCAN_UNLIMITED: Duration = Duration::from_secs(1);
/// Between two reports of one container.
const REPORTS_EACH: Duration = Duration::from_secs(1);
/// How long a pod is left alone after the kernel refused a write.
const REFUSED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Pod {
    pub(super) protected: Protected,
    cgroup: Cgroup,
    /// Containers with a quota.
    tracked: Vec<Tracked>,
    scanned: Instant,
    refused: Option<Instant>,
    /// The refusal that was reported last.
    told: Option<String>,
}

impl Pod {
    pub(super) fn open(parts: &Parts, protected: Protected, now: Instant) -> Result<Self, Error> {
        let mut pod = Self {
            cgroup: Cgroup::open(&parts.tree, &protected.path)?,
            protected,
            tracked: Vec::new(),
            scanned: now,
            refused: None,
            told: None,
        };
        pod.open_containers(parts, now);
        Ok(pod)
    }

    /// Opens the containers that have a quota and are not open; a container whose period is another than
    /// the pod's is left alone.
    fn open_containers(&mut self, parts: &Parts, now: Instant) {
        let rates = parts.config.period_seconds.map(|period_seconds| Rates {
            period_seconds,
            quota_percent: parts.config.quota_percent,
        });
        for (name, path) in &self.protected.containers {
            if self.tracked.iter().any(|one| one.cgroup.path == *path) {
                continue;
            }
            let Ok(cgroup) = Cgroup::open(&parts.tree, path) else {
                continue;
            };
            let Limit::At(quota) = cgroup.found.max.quota_us else {
                continue;
            };
            let pod = self.cgroup.found.max;
            let fits =
                pod.quota_us == Limit::Unlimited || pod.period_us == cgroup.found.max.period_us;
            let Ok(meter) = Meter::open(&parts.tree, path, rates, now) else {
                continue;
            };
            if fits {
                self.tracked.push(Tracked {
                    name: name.clone(),
                    cgroup,
                    meter,
                    lowered: None,
                    reported: (None, quota),
                    why: (Why::Throttled, 0),
                });
            }
        }
    }

    /// Time until the next look; the longest where no container has a quota.
    pub(super) fn due(&self, now: Instant) -> Duration {
        let scan = self.scan_due(now);
        let looks = self.tracked.iter().map(|one| one.meter.due(now));
        looks.chain([scan]).min().unwrap_or(scan)
    }

    /// Another list of containers; of those that are gone nothing is ours any more.
    pub(super) fn update(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        protected: Protected,
        now: Instant,
    ) {
        let before = std::mem::replace(&mut self.protected, protected);
        let listed = |path: &CgroupPath| {
            let mut containers = self.protected.containers.iter();
            containers.any(|(_, listed)| listed == path)
        };
        self.tracked.retain(|one| listed(&one.cgroup.path));
        let gone = |path: &&CgroupPath| {
            !listed(path) && parts.tree.id(path).is_err_and(|error| error.is_gone())
        };
        let paths = before.containers.iter().map(|(_, path)| path);
        let gone: Vec<_> = paths.filter(gone).collect();
        gone.iter().for_each(|path| parts.ours.forget(path));
        originals.forget(gone);
        self.open_containers(parts, now);
    }

    /// Looks at what is due and takes a step.
    pub(super) fn look(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        state: NodeState,
        tell: &mut impl FnMut(Report),
    ) -> Result<(), Error> {
        let now = Instant::now();
        if self.scan_due(now).is_zero() {
            self.scan(parts, originals, now)?;
        }
        let targets = self.targets(parts, state, now)?;
        if self
            .refused
            .is_some_and(|at| now.duration_since(at) < REFUSED)
        {
            return Ok(());
        }
        if parts.enforce {
            self.apply(parts, originals, &targets, now, tell)?;
        }
        self.report(parts, &targets, now, tell);
        Ok(())
    }

    /// The quota of each container after this look; containers that are gone go.
    fn targets(
        &mut self,
        parts: &Parts,
        state: NodeState,
        now: Instant,
    ) -> Result<Vec<u64>, Error> {
        let mut targets = Vec::with_capacity(self.tracked.len());
        let mut failed = None;
        self.tracked.retain_mut(|one| {
            let mut target = one.quota().now_us;
            if one.meter.due(now).is_zero() {
                let seen = match one.meter.look(one.quota(), parts.online, now) {
                    Ok(seen) => seen,
                    Err(error) => {
                        failed = failed
                            .take()
                            .or(Some(error).filter(|error| !error.is_gone()));
                        return false;
                    }
                };
                let (next, why) = one.next(&seen, &parts.config, state, now);
                if next != target {
                    one.why = (why, seen.throttled_nanos);
                } else if seen.throttled {
                    one.meter.rest(now + PACE / 2);
                }
                target = next;
            }
            targets.push(target);
            true
        });
        failed.map_or(Ok(targets), Err)
    }

    /// Time until the next look at what others may have set.
    fn scan_due(&self, now: Instant) -> Duration {
        let each = if self.tracked.len() < self.protected.containers.len() {
            RESCAN_UNLIMITED
        } else {
            RESCAN
        };
        each.saturating_sub(now.duration_since(self.scanned))
    }

    /// Reads what others may have set.
    fn scan(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        now: Instant,
    ) -> Result<(), Error> {
        self.scanned = now;
        self.cgroup.adopt(&parts.tree, originals)?;
        self.tracked.retain_mut(|one| {
            let there = one.cgroup.adopt(&parts.tree, originals).is_ok();
            there && one.cgroup.found.max.quota_us != Limit::Unlimited
        });
        self.open_containers(parts, now);
        Ok(())
    }

    /// Brings the containers' quotas to `targets`, with the bursts beside them, and the pod's quota and burst
    /// to what these need.
    fn apply(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        targets: &[u64],
        now: Instant,
        tell: &mut impl FnMut(Report),
    ) -> Result<(), Error> {
        let then: Vec<Bandwidth> = self
            .tracked
            .iter()
            .zip(targets)
            .map(|(one, quota)| Bandwidth {
                quota_us: Some(*quota),
                burst_us: match one.cgroup.found.burst_us {
                    Some(_) => one.burst(&parts.config, *quota),
                    None => 0,
                },
            })
            .collect();
        if self.is_at(&then) {
            return Ok(());
        }
        // What another writer has set since the last look is not overwritten: it is the next look's base.
        let mut foreign = self.cgroup.adopt(&parts.tree, originals)?;
        for one in &mut self.tracked {
            // One that is gone goes with its next look.
            foreign |= one.cgroup.adopt(&parts.tree, originals).unwrap_or(true);
        }
        if foreign {
            return Ok(());
        }
        for (one, then) in self.tracked.iter_mut().zip(&then) {
            if then.quota_us < one.cgroup.now.bandwidth().quota_us {
                one.lowered = Some(now);
            }
        }
        if let Err(error) = self.write(parts, originals, &then)
            && !error.is_gone()
        {
            self.refuse(&error, now, tell);
        }
        Ok(())
    }

    fn is_at(&self, then: &[Bandwidth]) -> bool {
        let mut pairs = self.tracked.iter().zip(then);
        pairs.all(|(one, then)| one.cgroup.now.bandwidth() == *then)
    }

    /// The pod's quota with the containers' beyond what was found, and the sum of their bursts.
    fn pod_then(&self, then: &[Bandwidth]) -> Bandwidth {
        let found = self.cgroup.found.bandwidth();
        let beyond = self.tracked.iter().zip(then).map(|(one, then)| {
            let base = one.cgroup.found.bandwidth().quota_us.unwrap_or(0);
            then.quota_us.unwrap_or(0).saturating_sub(base)
        });
        let quota_us = found
            .quota_us
            .map(|quota| quota.saturating_add(beyond.sum()));
        let bursts: u64 = then.iter().map(|then| then.burst_us).sum();
        let burst_us = match (self.cgroup.found.burst_us, found.quota_us) {
            (Some(found), Some(quota)) => bursts.max(found).min(quota),
            (found, _) => found.unwrap_or(0),
        };
        Bandwidth { quota_us, burst_us }
    }

    fn write(
        &mut self,
        parts: &Parts,
        originals: &mut Originals,
        then: &[Bandwidth],
    ) -> Result<(), Error> {
        // Kept before the first write.
        originals.of(&self.cgroup.path, self.cgroup.found);
        for one in &self.tracked {
            originals.of(&one.cgroup.path, one.cgroup.found);
        }
        let pod_then = self.pod_then(then);
        note(parts, &self.cgroup, pod_then);
        for (one, then) in self.tracked.iter().zip(then) {
            note(parts, &one.cgroup, *then);
        }
        let written = self.carry_out(parts, pod_then, then.iter().copied());
        let all = self.tracked.iter_mut().map(|one| &mut one.cgroup);
        for cgroup in all.chain([&mut self.cgroup]) {
            if let Ok(read) = Found::read(&parts.tree, &cgroup.path) {
                cgroup.now = read;
            }
        }
        written
    }

    /// Writes what pod and containers are to have, in an order that the kernel takes.
    fn carry_out(
        &self,
        parts: &Parts,
        pod: Bandwidth,
        containers: impl Iterator<Item = Bandwidth>,
    ) -> Result<(), Error> {
        let tracked = || self.tracked.iter().map(|one| &one.cgroup);
        let there: Vec<_> = tracked().map(|one| (&one.path, &one.found)).collect();
        let changes = tracked().zip(containers);
        let changes: Vec<_> = changes.map(|(one, then)| one.change(then)).collect();
        let writes = burst::writes(self.cgroup.change(pod), &changes);
        let pod = (&self.cgroup.path, &self.cgroup.found);
        carry_out(&parts.tree, &writes, pod, &there)
    }

    /// Leaves the pod alone for a while, and reports why once.
    fn refuse(&mut self, error: &Error, now: Instant, tell: &mut impl FnMut(Report)) {
        self.refused = Some(now);
        let error = chain(error);
        if self.told.as_ref() == Some(&error) {
            return;
        }
        self.told = Some(error.clone());
        tell(Report {
            pod: self.protected.pod.clone(),
            at: clock::monotonic(),
            what: What::Refused(error),
            dry_run: false,
        });
    }

    fn report(
        &mut self,
        parts: &Parts,
        targets: &[u64],
        now: Instant,
        tell: &mut impl FnMut(Report),
    ) {
        for (one, target) in self.tracked.iter_mut().zip(targets) {
            let quota = one.quota();
            let to_us = if parts.enforce { quota.now_us } else { *target };
            let (last, from_us) = one.reported;
            let due = last.is_none_or(|at| now.duration_since(at) >= REPORTS_EACH);
            if to_us == from_us || !due {
                continue;
            }
            let (why, throttled_nanos) = one.why;
            // In observe mode the quota stays where it is.
            one.reported = (Some(now), if parts.enforce { to_us } else { from_us });
            tell(Report {
                pod: self.protected.pod.clone(),
                at: clock::monotonic(),
                what: What::Step {
                    container: one.name.clone(),
                    step: Step {
                        throttled_nanos,
                        from_us,
                        to_us,
                        period_us: quota.period_us,
                        why,
                    },
                },
                dry_run: !parts.enforce,
            });
        }
    }
}
