//! Reads the usage of the followed cgroups, at low cost.
//!
//! Every pass reads the cgroup of all pods. Only when that has moved, and every 5 s, is every pod
//! read. A pass that took long is followed by a long pause: the whole costs at most a two-hundredth of
//! a CPU, however many pods there are.

use std::{collections::BTreeMap, time::Duration};

use nix::time::{ClockId, clock_gettime};
use podwarden_cgroup::{CgroupPath, Tree, UsageReader};
use podwarden_policy::PodUid;

use super::curve::Ring;
use crate::{base::clock::monotonic, reactor::plan::ScopeName};

/// Time between two passes while they are cheap.
const GRAIN: Duration = Duration::from_millis(100);

/// Time between two passes at most: there are ten of them in what is kept.
const COARSEST: Duration = Duration::from_secs(1);

/// A pass may take this part of the time until the next.
const SHARE: u32 = 200;

/// Every pod is read at least this often, nanoseconds.
const EVERY: u64 = 5_000_000_000;

/// Less than this is what the kernel charges ahead (`MEMCG_CHARGE_BATCH`, 64 pages, for each of a few
/// CPUs), bytes.
const MOVED: u64 = 512 << 10;

/// Pods that are followed at most; each has up to 2 KiB.
const MOST_PODS: usize = 4096;

/// A cgroup to follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// One with a level, and its cgroup relative to the root.
    Scope(ScopeName, CgroupPath),
    /// A pod by its uid, and its cgroup relative to the root.
    Pod(PodUid, CgroupPath),
}

/// One cgroup.
#[derive(Debug, Default)]
pub(super) struct Followed {
    path: CgroupPath,
    reader: Option<UsageReader>,
    pub(super) ring: Ring,
    /// Still to be followed; else it is here for the sake of an incident.
    wanted: bool,
}

impl Followed {
    fn read(&mut self, tree: &Tree) -> Option<u64> {
        if self.reader.is_none() && self.wanted {
            self.reader = UsageReader::open(tree, &self.path).ok();
        }
        let Ok(usage) = self.reader.as_ref()?.usage() else {
            // Gone: an open file would hold its memory in the kernel.
            self.reader = None;
            return None;
        };
        self.ring.push((monotonic(), usage));
        Some(usage)
    }
}

/// All that is followed.
#[derive(Debug, Default)]
pub(super) struct Curves {
    pub(super) scopes: BTreeMap<ScopeName, Followed>,
    pub(super) pods: BTreeMap<PodUid, Followed>,
    /// Time and usage of kubepods when every pod was read last.
    last: Option<(u64, u64)>,
}

impl Curves {
    /// Follows these and no others; pods that `needed` names stay for what is known of them.
    pub(super) fn follow(&mut self, wanted: Vec<Wanted>, needed: impl Fn(&PodUid) -> bool) {
        let all = self.scopes.values_mut().chain(self.pods.values_mut());
        all.for_each(|followed| followed.wanted = false);
        for one in wanted {
            let (followed, path) = match one {
                Wanted::Scope(scope, path) => (self.scopes.entry(scope).or_default(), path),
                Wanted::Pod(uid, path) => {
                    if self.pods.len() >= MOST_PODS && !self.pods.contains_key(&uid) {
                        continue;
                    }
                    (self.pods.entry(uid).or_default(), path)
                }
            };
            if followed.path != path {
                followed.path = path;
                followed.reader = None;
            }
            followed.wanted = true;
        }
        self.scopes.retain(|_, followed| followed.wanted);
        self.pods
            .retain(|uid, followed| followed.wanted || needed(uid));
        let left = self.pods.values_mut().filter(|followed| !followed.wanted);
        left.for_each(|followed| followed.reader = None);
    }

    /// Reads the pods that are due, every pod when `all`; returns how long to pause.
    pub(super) fn pass(&mut self, tree: &Tree, all: bool) -> Duration {
        let began = cpu_time();
        let now = monotonic();
        let mut total = 0;
        for (scope, followed) in &mut self.scopes {
            let usage = followed.read(tree);
            if *scope == ScopeName::Kubepods {
                total = usage.unwrap_or(0);
            }
        }
        let due = self.last.is_none_or(|(at, before)| {
            now.saturating_sub(at) >= EVERY || total.abs_diff(before) >= MOVED
        });
        if due || all {
            self.last = Some((now, total));
            for followed in self.pods.values_mut() {
                followed.read(tree);
            }
        }
        pause(cpu_time().saturating_sub(began))
    }
}

fn pause(took: Duration) -> Duration {
    took.saturating_mul(SHARE).clamp(GRAIN, COARSEST)
}

/// CPU time of this thread: on a busy machine a pass that was interrupted is not a costly one.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_costly_pass_is_followed_by_a_long_pause() {
        let micros = Duration::from_micros;
        assert_eq!(pause(micros(10)), GRAIN);
        assert_eq!(pause(micros(500)), GRAIN);
        assert_eq!(pause(micros(2_000)), Duration::from_millis(400));
        assert_eq!(pause(micros(50_000)), COARSEST);
    }

    #[test]
    fn what_an_incident_needs_stays_and_everything_else_goes() {
        let pod = |uid: &str| Wanted::Pod(uid.into(), format!("kubepods/pod{uid}").into());
        let mut curves = Curves::default();
        let kubepods = Wanted::Scope(ScopeName::Kubepods, "kubepods".into());
        curves.follow(vec![kubepods, pod("a"), pod("b"), pod("c")], |_| false);
        assert_eq!(curves.scopes.len(), 1);
        curves.follow(vec![pod("a")], |uid| uid == "b");
        assert_eq!(curves.pods.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!(!curves.pods["b"].wanted && curves.scopes.is_empty());
        curves.follow(vec![pod("a")], |_| false);
        assert_eq!(curves.pods.keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn the_number_of_pods_is_bounded() {
        let pod = |n: usize| Wanted::Pod(n.to_string().into(), CgroupPath::ROOT);
        let mut curves = Curves::default();
        curves.follow((0..MOST_PODS + 10).map(pod).collect(), |_| false);
        assert_eq!(curves.pods.len(), MOST_PODS);
    }
}
