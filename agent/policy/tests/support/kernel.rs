//! What the kernel makes of actions, on a snapshot.

use podwarden_policy::{
    Bytes, CpuShares, CpuWeight, Node, convert,
    limits::{CpuMax, Limit},
    plan::{Action, Snapshot},
    settings::{CpuShare, Observed, Setting},
};

/// Does one action, as a kernel of the version that `weights` tells would.
pub(crate) fn apply(snapshot: &mut Snapshot, action: &Action, weights: bool) {
    match action {
        Action::EnsureCgroup { cgroup, .. } => {
            if let Some(parent) = cgroup.parent().filter(|p| p.is_within(&snapshot.kubepods)) {
                assert!(
                    snapshot.cgroups.contains_key(&parent),
                    "{cgroup} has a parent"
                );
            }
            let fresh = fresh(&snapshot.node, weights);
            let before = snapshot.cgroups.insert(cgroup.clone(), fresh);
            assert_eq!(before, None, "{cgroup} is made once");
        }
        Action::Write {
            cgroup, setting, ..
        } => {
            let page = snapshot.page_size;
            let cgroup = snapshot.cgroups.get_mut(cgroup).expect("written to");
            write(cgroup, setting, page);
        }
        Action::RemoveCgroup { cgroup, .. } => {
            let removed = snapshot.cgroups.remove(cgroup).expect("removed");
            assert!(removed.ours, "{cgroup} was not made by podwarden");
        }
        Action::Evict { .. } => {}
    }
}

/// A cgroup as it is made.
pub(crate) fn fresh(node: &Node, weights: bool) -> Observed {
    Observed {
        ours: true,
        cpu: Some(if weights {
            CpuShare::Weight(CpuWeight(100))
        } else {
            CpuShare::Shares(CpuShares(1024))
        }),
        cpu_max: Some(CpuMax {
            quota_us: Limit::Unlimited,
            period_us: convert::DEFAULT_PERIOD_US,
        }),
        memory_limit: Some(Limit::Unlimited),
        memory_min: Some(Bytes::ZERO),
        memory_low: Some(Bytes::ZERO),
        pids_limit: Some(Limit::Unlimited),
        hugetlb: node
            .hugepages
            .keys()
            .map(|size| (*size, Limit::Unlimited))
            .collect(),
        memory_usage: Some(Bytes::ZERO),
        memory_working_set: Some(Bytes::ZERO),
    }
}

fn write(cgroup: &mut Observed, setting: &Setting, page: Bytes) {
    let whole = |limit: Limit<Bytes>, size: Bytes| match limit {
        Limit::At(bytes) => Limit::At(bytes.round_down(size)),
        Limit::Unlimited => Limit::Unlimited,
    };
    match *setting {
        Setting::CpuShares(shares) => {
            cgroup.cpu = Some(match cgroup.cpu {
                Some(CpuShare::Weight(_)) => CpuShare::Weight(convert::shares_to_weight(shares)),
                _ => CpuShare::Shares(shares),
            });
        }
        Setting::CpuMax(max) => cgroup.cpu_max = Some(max),
        Setting::MemoryLimit(limit) => cgroup.memory_limit = Some(whole(limit, page)),
        Setting::MemoryMin(bytes) => cgroup.memory_min = Some(bytes.round_down(page)),
        Setting::MemoryLow(bytes) => cgroup.memory_low = Some(bytes.round_down(page)),
        Setting::PidsLimit(limit) => cgroup.pids_limit = Some(limit),
        Setting::HugetlbLimit { page_size, limit } => {
            cgroup.hugetlb.insert(page_size, whole(limit, page_size));
        }
    }
}
