use std::fs;

use podwarden_cgroup::{Controller, Errno, Error, MemoryReader, Reclaims, Tree, Version};
use podwarden_policy::{
    Bytes, CpuShares, CpuWeight,
    limits::{CpuMax, Limit},
    settings::{CpuShare, Property, Setting, Value},
};

use crate::support::{Attach, Sandbox, Victim, eat, eventually};

/// What a property holds.
fn value(tree: &Tree, cgroup: &str, property: Property) -> Value {
    tree.value(&cgroup.into(), property.row()).unwrap()
}

#[test]
fn cpu_shares_are_read_back() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let on_v2 = tree.hierarchies().version == Version::V2;
    for (shares, weight) in [(2, 1), (1024, 39), (262_144, 10_000)] {
        let shares = CpuShares(shares);
        tree.write(&pod.into(), &Setting::CpuShares(shares))
            .unwrap();
        let want = if on_v2 {
            CpuShare::Weight(CpuWeight(weight))
        } else {
            CpuShare::Shares(shares)
        };
        assert_eq!(value(tree, pod, Property::CpuShares), Value::Share(want));
    }
}

#[test]
fn cpu_quota_is_set_changed_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("tier/pod");
    let held = || value(tree, pod, Property::CpuMax);
    assert_eq!(held(), Value::CpuMax(CpuMax::UNLIMITED));
    let quota = |quota_us, period_us| CpuMax {
        quota_us: Limit::At(quota_us),
        period_us,
    };
    let set = |cgroup: &str, max| tree.write(&cgroup.into(), &Setting::CpuMax(max));
    // With a limit above, v1 refuses a period that would raise the ratio on the way.
    set("tier", quota(100_000, 100_000)).unwrap();
    for max in [
        quota(90_000, 100_000),
        quota(5_000, 10_000),
        quota(45_000, 100_000),
        CpuMax::UNLIMITED,
    ] {
        set(pod, max).unwrap();
        assert_eq!(held(), Value::CpuMax(max));
    }
    let too_short = set(pod, quota(10, 100_000)).unwrap_err();
    assert_eq!(too_short.errno(), Some(Errno::INVAL));
}

#[test]
fn memory_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    assert_eq!(tree.memory_limit(&pod.into()).unwrap(), Limit::Unlimited);
    let set = |cgroup: &str, limit| tree.write(&cgroup.into(), &Setting::MemoryLimit(limit));
    for limit in [
        Limit::At(Bytes::mebi(64)),
        Limit::At(Bytes(0)),
        Limit::Unlimited,
    ] {
        set(pod, limit).unwrap();
        assert_eq!(tree.memory_limit(&pod.into()).unwrap(), limit);
    }
    let missing = set("other", Limit::Unlimited).unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn pids_limit_is_set_and_lifted() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let held = || value(tree, pod, Property::PidsLimit);
    assert_eq!(held(), Value::Tasks(Limit::Unlimited));
    for limit in [Limit::At(100), Limit::At(0), Limit::Unlimited] {
        tree.write(&pod.into(), &Setting::PidsLimit(limit)).unwrap();
        assert_eq!(held(), Value::Tasks(limit));
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
    let uneven = Setting::MemoryLimit(Limit::At(Bytes(10 * page + 1)));
    tree.write(&pod.into(), &uneven).unwrap();
    let whole = Limit::At(Bytes(10 * page));
    assert_eq!(tree.memory_limit(&pod.into()).unwrap(), whole);
    if tree.hierarchies().is_on_v2(Controller::Cpu) {
        println!("skipped in part: cgroup v2 has no shares to bound");
        return;
    }
    // The kernel takes one share and keeps two.
    let one = Setting::CpuShares(CpuShares(1));
    let error = tree.write(&pod.into(), &one).unwrap_err();
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
    let set = |setting| tree.write(&pod.into(), &setting);
    if !tree.hierarchies().is_on_v2(Controller::Memory) {
        let min = Property::MemoryMin.row();
        for refused in [
            set(Setting::MemoryMin(Bytes(1))).unwrap_err(),
            set(Setting::MemoryLow(Bytes(1))).unwrap_err(),
            tree.value(&pod.into(), min).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
        return;
    }
    let page = rustix::param::page_size() as u64;
    for bytes in [64 * page, 64 * page + 1, 0] {
        let whole = |bytes| Value::Bytes(Bytes(bytes / page * page));
        set(Setting::MemoryMin(Bytes(bytes))).unwrap();
        set(Setting::MemoryLow(Bytes(2 * bytes))).unwrap();
        assert_eq!(value(tree, pod, Property::MemoryMin), whole(bytes));
        assert_eq!(value(tree, pod, Property::MemoryLow), whole(2 * bytes));
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
            tree.set_memory_high(&pod.into(), Limit::Unlimited)
                .unwrap_err(),
            tree.memory_high(&pod.into()).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
        assert_eq!(tree.reclaims(&pod.into()), Reclaims::Nothing);
        assert!(!tree.reclaim(&pod.into(), 4096, Reclaims::Nothing).unwrap());
        return;
    }
    let refused = tree
        .reclaim_by_limit(&pod.into(), Limit::At(Bytes(0)), Limit::Unlimited)
        .unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    let page = rustix::param::page_size() as u64;
    for bytes in [Some(64 * page), Some(64 * page + 1), None] {
        let high = bytes.map(Bytes).into();
        tree.set_memory_high(&pod.into(), high).unwrap();
        let whole = bytes.map(|bytes| Bytes(bytes / page * page)).into();
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
fn v1_reclaims_by_a_limit_that_does_not_stay_and_kills_no_process() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    if tree.hierarchies().is_on_v2(Controller::Memory) {
        println!("skipped: the memory controller is on cgroup v2");
        return;
    }
    let container = sandbox.cgroup("pod/container");
    let limit = Limit::At(Bytes::mebi(256));
    tree.write(&"pod".into(), &Setting::MemoryLimit(limit))
        .unwrap();
    // No machine has that much: the limit is taken, and the other one comes after it.
    assert!(
        tree.reclaim_by_limit(&"pod".into(), Limit::At(Bytes::mebi(8)), limit)
            .unwrap()
    );
    assert_eq!(tree.memory_limit(&"pod".into()).unwrap(), limit);
    let swaps = fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    if swaps {
        println!("skipped in part: anonymous memory would go to swap");
        return;
    }
    let victim = Victim::spawn(&Attach::open(tree, container), eat::<32>);
    let memory = MemoryReader::open(tree, &"pod".into()).unwrap();
    eventually("it has its memory", || memory.usage().unwrap() >= 32 << 20);
    assert!(
        !tree
            .reclaim_by_limit(&"pod".into(), Limit::At(Bytes(0)), Limit::Unlimited)
            .unwrap(),
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
    let sizes = match tree.huge_page_sizes(&pod.into()) {
        Ok(sizes) if !sizes.is_empty() => sizes,
        other => {
            println!("skipped: no hugetlb controller ({other:?})");
            return;
        }
    };
    let set = |page_size, bytes: Option<u64>| {
        let limit = bytes.map(Bytes).into();
        tree.write(&pod.into(), &Setting::HugetlbLimit { page_size, limit })
    };
    for page_size in sizes {
        let size = page_size.0;
        for (written, kept) in [
            (Some(3 * size), Some(3 * size)),
            (Some(2 * size + 1), Some(2 * size)),
            (Some(0), Some(0)),
            (None, None),
        ] {
            set(page_size, written).unwrap();
            let kept: Limit<Bytes> = kept.map(Bytes).into();
            assert_eq!(tree.read(&pod.into()).hugetlb[&page_size], kept);
        }
    }
    let missing = set(Bytes::mebi(3), None).unwrap_err();
    assert!(missing.is_gone(), "{missing}");
}

#[test]
fn a_cgroup_is_in_use_while_there_is_a_process_in_it_or_below_it() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    assert!(!tree.is_in_use(&"pod".into()).unwrap(), "it does not exist");
    sandbox.cgroup("pod");
    assert!(!tree.is_in_use(&"pod".into()).unwrap());
    sandbox.cgroup("pod/container");
    assert!(!tree.is_in_use(&"pod".into()).unwrap());
    let victim = Victim::sleeper(&Attach::open(tree, "pod/container"));
    assert!(tree.is_in_use(&"pod/container".into()).unwrap());
    assert!(tree.is_in_use(&"pod".into()).unwrap());
    // SAFETY: a signal to our own child.
    unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    eventually("the dead process has left", || {
        !tree.is_in_use(&"pod/container".into()).unwrap()
    });
}
