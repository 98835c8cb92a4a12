use podwarden_cgroup::{CpuQuota, CpuShare, Errno, Version};

use crate::support::Sandbox;

#[test]
fn cpu_shares_are_read_back() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let on_v2 = tree.hierarchies().version == Version::V2;
    for (shares, weight) in [(2, 1), (1024, 39), (262_144, 10_000)] {
        tree.set_cpu_shares(pod, shares).unwrap();
        let want = if on_v2 {
            CpuShare::Weight(weight)
        } else {
            CpuShare::Shares(shares)
        };
        assert_eq!(tree.cpu_share(pod).unwrap(), want);
    }
}

#[test]
fn cpu_quota_is_set_changed_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("tier/pod");
    assert_eq!(tree.cpu_quota(pod).unwrap(), None);
    let quota = |quota_us, period_us| {
        Some(CpuQuota {
            quota_us,
            period_us,
        })
    };
    // With a limit above, v1 refuses a period that would raise the ratio on the way.
    tree.set_cpu_quota("tier", quota(100_000, 100_000)).unwrap();
    for value in [
        quota(90_000, 100_000),
        quota(5_000, 10_000),
        quota(45_000, 100_000),
        None,
    ] {
        tree.set_cpu_quota(pod, value).unwrap();
        assert_eq!(tree.cpu_quota(pod).unwrap(), value);
    }
    let too_short = tree.set_cpu_quota(pod, quota(10, 100_000)).unwrap_err();
    assert_eq!(too_short.errno(), Some(Errno::INVAL));
}

#[test]
fn memory_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    assert_eq!(tree.memory_limit(pod).unwrap(), None);
    for value in [Some(64 << 20), Some(0), None] {
        tree.set_memory_limit(pod, value).unwrap();
        assert_eq!(tree.memory_limit(pod).unwrap(), value);
    }
    let missing = tree.set_memory_limit("other", None).unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn pids_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    assert_eq!(tree.pids_limit(pod).unwrap(), None);
    for value in [Some(100), Some(0), None] {
        tree.set_pids_limit(pod, value).unwrap();
        assert_eq!(tree.pids_limit(pod).unwrap(), value);
    }
}
