use std::fs;

use podwarden_cgroup::{
    Controller, CpuQuota, CpuShare, Errno, Error, MemoryReader, Reclaims, Version,
};

use crate::support::{Sandbox, Victim, eat, eventually};

#[test]
fn cpu_shares_are_read_back() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let on_v2 = tree.hierarchies().version == Version::V2;
    for (shares, weight) in [(2, 1), (1024, 39), (262_144, 10_000)] {
        tree.set_cpu_shares(&pod.into(), shares).unwrap();
        let want = if on_v2 {
            CpuShare::Weight(weight)
        } else {
            CpuShare::Shares(shares)
        };
        assert_eq!(tree.cpu_share(&pod.into()).unwrap(), want);
    }
}

#[test]
fn cpu_quota_is_set_changed_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("tier/pod");
    assert_eq!(tree.cpu_quota(&pod.into()).unwrap(), None);
    let quota = |quota_us, period_us| {
        Some(CpuQuota {
            quota_us,
            period_us,
        })
    };
    // With a limit above, v1 refuses a period that would raise the ratio on the way.
    tree.set_cpu_quota(&"tier".into(), quota(100_000, 100_000))
        .unwrap();
    for value in [
        quota(90_000, 100_000),
        quota(5_000, 10_000),
        quota(45_000, 100_000),
        None,
    ] {
        tree.set_cpu_quota(&pod.into(), value).unwrap();
        assert_eq!(tree.cpu_quota(&pod.into()).unwrap(), value);
    }
    let too_short = tree
        .set_cpu_quota(&pod.into(), quota(10, 100_000))
        .unwrap_err();
    assert_eq!(too_short.errno(), Some(Errno::INVAL));
}

#[test]
fn memory_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    assert_eq!(tree.memory_limit(&pod.into()).unwrap(), None);
    for value in [Some(64 << 20), Some(0), None] {
        tree.set_memory_limit(&pod.into(), value).unwrap();
        assert_eq!(tree.memory_limit(&pod.into()).unwrap(), value);
    }
    let missing = tree.set_memory_limit(&"other".into(), None).unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn pids_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    assert_eq!(tree.pids_limit(&pod.into()).unwrap(), None);
    for value in [Some(100), Some(0), None] {
        tree.set_pids_limit(&pod.into(), value).unwrap();
        assert_eq!(tree.pids_limit(&pod.into()).unwrap(), value);
    }
}

#[test]
fn what_the_kernel_rounds_is_no_mismatch_and_what_it_bounds_is() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let page = rustix::param::page_size() as u64;
    tree.set_memory_limit(&pod.into(), Some(10 * page + 1))
        .unwrap();
    assert_eq!(tree.memory_limit(&pod.into()).unwrap(), Some(10 * page));
    if tree.hierarchies().is_on_v2(Controller::Cpu) {
        println!("skipped in part: cgroup v2 has no shares to bound");
        return;
    }
    // The kernel takes one share and keeps two.
    let error = tree.set_cpu_shares(&pod.into(), 1).unwrap_err();
    let Error::NotKept {
        path,
        wanted,
        found,
    } = &error
    else {
        panic!("{error}");
    };
    assert!(path.ends_with("pod/cpu.shares"), "{error}");
    assert_eq!((wanted.as_str(), found.as_str()), ("1", "2"));
}

#[test]
fn memory_protection_is_set_on_v2_and_refused_on_v1() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    if !tree.hierarchies().is_on_v2(Controller::Memory) {
        for refused in [
            tree.set_memory_min(&pod.into(), 1).unwrap_err(),
            tree.set_memory_low(&pod.into(), 1).unwrap_err(),
            tree.memory_min(&pod.into()).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
        return;
    }
    let page = rustix::param::page_size() as u64;
    for bytes in [64 * page, 64 * page + 1, 0] {
        let whole = bytes / page * page;
        tree.set_memory_min(&pod.into(), bytes).unwrap();
        tree.set_memory_low(&pod.into(), 2 * bytes).unwrap();
        assert_eq!(tree.memory_min(&pod.into()).unwrap(), Some(whole));
        assert_eq!(
            tree.memory_low(&pod.into()).unwrap(),
            Some(2 * bytes / page * page)
        );
    }
}

#[test]
fn what_slows_a_cgroup_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    if !tree.hierarchies().is_on_v2(Controller::Memory) {
        for refused in [
            tree.set_memory_high(&pod.into(), None).unwrap_err(),
            tree.memory_high(&pod.into()).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
        assert_eq!(tree.reclaims(&pod.into()), Reclaims::Nothing);
        assert!(!tree.reclaim(&pod.into(), 4096, Reclaims::Nothing).unwrap());
        return;
    }
    let refused = tree.reclaim_by_limit(&pod.into(), 0, None).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let page = rustix::param::page_size() as u64;
    for bytes in [Some(64 * page), Some(64 * page + 1), None] {
        tree.set_memory_high(&pod.into(), bytes).unwrap();
        let whole = bytes.map(|bytes| bytes / page * page);
        assert_eq!(tree.memory_high(&pod.into()).unwrap(), whole);
    }
    let how = tree.reclaims(&pod.into());
    assert_ne!(how, Reclaims::Nothing);
    assert!(
        !tree.reclaim(&pod.into(), 64 << 20, how).unwrap(),
        "it has none"
    );
}

#[test]
fn v1_reclaims_by_a_limit_that_does_not_stay_and_kills_nobody() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    if tree.hierarchies().is_on_v2(Controller::Memory) {
        println!("skipped: the memory controller is on cgroup v2");
        return;
    }
    let container = sandbox.cgroup("pod/container");
    let limit = Some(256 << 20);
    tree.set_memory_limit(&"pod".into(), limit).unwrap();
    // Nobody has that much: the limit is taken, and the other one comes after it.
    assert!(
        tree.reclaim_by_limit(&"pod".into(), 8 << 20, limit)
            .unwrap()
    );
    assert_eq!(tree.memory_limit(&"pod".into()).unwrap(), limit);
    let swaps = fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    if swaps {
        println!("skipped in part: anonymous memory would go to swap");
        return;
    }
    let victim = Victim::spawn(&tree.open_attach(&container.into()).unwrap(), eat::<32>);
    let memory = MemoryReader::open(tree, &"pod".into()).unwrap();
    eventually("it has its memory", || memory.usage().unwrap() >= 32 << 20);
    assert!(
        !tree.reclaim_by_limit(&"pod".into(), 0, None).unwrap(),
        "refused"
    );
    assert_eq!(
        tree.memory_limit(&"pod".into()).unwrap(),
        limit,
        "as it was"
    );
    assert!(victim.is_running());
}

#[test]
fn huge_pages_of_every_size_are_limited() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let limits = match tree.hugetlb_limits(&pod.into()) {
        Ok(limits) if !limits.is_empty() => limits,
        other => {
            println!("skipped: no hugetlb controller ({other:?})");
            return;
        }
    };
    for size in limits.into_keys() {
        for (written, kept) in [
            (Some(3 * size), Some(3 * size)),
            (Some(2 * size + 1), Some(2 * size)),
            (Some(0), Some(0)),
            (None, None),
        ] {
            tree.set_hugetlb_limit(&pod.into(), size, written).unwrap();
            assert_eq!(tree.hugetlb_limits(&pod.into()).unwrap()[&size], kept);
        }
    }
    let missing = tree
        .set_hugetlb_limit(&pod.into(), 3 << 20, None)
        .unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn a_cgroup_is_in_use_while_there_is_something_in_it() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    assert!(!tree.is_in_use(&"pod".into()).unwrap(), "it does not exist");
    sandbox.cgroup("pod");
    assert!(!tree.is_in_use(&"pod".into()).unwrap());
    sandbox.cgroup("pod/container");
    assert!(tree.is_in_use(&"pod".into()).unwrap());
    assert!(!tree.is_in_use(&"pod/container".into()).unwrap());
    let victim = Victim::sleeper(&tree.open_attach(&"pod/container".into()).unwrap());
    assert!(tree.is_in_use(&"pod/container".into()).unwrap());
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    eventually("the dead process has left", || {
        !tree.is_in_use(&"pod/container".into()).unwrap()
    });
}
