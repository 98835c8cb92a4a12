//! In which order a pod's bandwidth is written, so that no write is refused.
//!
//! The kernel refuses a burst above the quota, on both versions; v1 besides refuses a quota above the
//! parent's and one below a child's (`tg_set_cfs_bandwidth`, `tg_cfs_schedulable_down` of
//! `kernel/sched/core.c`). So a quota that rises is written from the pod down, each quota before its burst; one
//! that falls from the containers up, each burst before its quota.

use alloc::vec::Vec;

/// Quota and burst of one cgroup, microseconds in a period of 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// `None` for no quota.
    pub quota_us: Option<u64>,
    /// At most the quota.
    pub burst_us: u64,
}

/// A cgroup of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cgroup {
    /// The pod's own.
    Pod,
    /// That of the container with this index.
    Container(usize),
}

/// One write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The quota; `None` removes it.
    Quota(Cgroup, Option<u64>),
    /// The burst.
    Burst(Cgroup, u64),
}

/// What takes a pod and its containers from `now` to `then`; one entry for each container, in both.
pub fn writes(pod: (Bandwidth, Bandwidth), containers: &[(Bandwidth, Bandwidth)]) -> Vec<Write> {
    let mut writes = Vec::new();
    let numbered = || {
        let cgroups = (0..).map(Cgroup::Container);
        cgroups.zip(containers.iter().copied())
    };
    // A container without a quota fits below any pod.
    let freed = |change: &(Bandwidth, Bandwidth)| change.1.quota_us.is_none();
    for (cgroup, change) in numbered().filter(|(_, change)| freed(change)) {
        raise(cgroup, change, &mut writes);
    }
    if !falls(&pod) {
        raise(Cgroup::Pod, pod, &mut writes);
    }
    for (cgroup, change) in numbered().filter(|(_, change)| falls(change)) {
        lower(cgroup, change, &mut writes);
    }
    if falls(&pod) {
        lower(Cgroup::Pod, pod, &mut writes);
    }
    for (cgroup, change) in numbered().filter(|(_, change)| !falls(change) && !freed(change)) {
        raise(cgroup, change, &mut writes);
    }
    writes
}

/// True where the quota falls.
fn falls((now, then): &(Bandwidth, Bandwidth)) -> bool {
    let quota = |bandwidth: &Bandwidth| bandwidth.quota_us.unwrap_or(u64::MAX);
    quota(then) < quota(now)
}

/// Burst before quota, with a burst that both quotas allow.
fn lower(cgroup: Cgroup, (now, then): (Bandwidth, Bandwidth), writes: &mut Vec<Write>) {
    burst(cgroup, now.burst_us, then.burst_us, writes);
    quota(cgroup, now, then, writes);
}

/// Quota before burst.
fn raise(cgroup: Cgroup, (now, then): (Bandwidth, Bandwidth), writes: &mut Vec<Write>) {
    quota(cgroup, now, then, writes);
    burst(cgroup, now.burst_us, then.burst_us, writes);
}

fn quota(cgroup: Cgroup, now: Bandwidth, then: Bandwidth, writes: &mut Vec<Write>) {
    if now.quota_us != then.quota_us {
        writes.push(Write::Quota(cgroup, then.quota_us));
    }
}

fn burst(cgroup: Cgroup, now: u64, then: u64, writes: &mut Vec<Write>) {
    if now != then {
        writes.push(Write::Burst(cgroup, then));
    }
}
