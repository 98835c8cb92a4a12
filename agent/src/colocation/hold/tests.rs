//! On files in the place of a v2 hierarchy.

use std::{fs, path::Path, time::Instant};

use podwarden_cgroup::{Controller, Hierarchies, Version};
use podwarden_policy::colocation::suppress::{Capacity, Policy, Threshold};

use super::*;

fn holder(directory: &Path) -> Holder {
    let mount = directory.join("cgroup");
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.clone()),
        controllers: [(Controller::Cpu, mount)].into(),
    };
    let parts = Parts {
        tree: Tree::new(hierarchies, "").unwrap(),
        tier: "kubepods/besteffort".into(),
        bounds: Bounds {
            cpus: MilliCpu(2000),
            floor: MilliCpu(100),
        },
        suppress: Some(Strategy {
            node: Capacity {
                capacity: MilliCpu(2000),
                reserved: MilliCpu::ZERO,
            },
            threshold: Threshold::default(),
            policy: Policy::CfsQuota,
            kubepods: "kubepods".into(),
        }),
        enforce: true,
        found: directory.join("found.json"),
        found_cpus: directory.join("cpus.json"),
        cgroup_root: "/".to_owned(),
        real_time: false,
    };
    Holder::start(parts, None).unwrap()
}

#[test]
fn a_tier_without_a_cpu_controller_is_reported_and_one_that_is_not_there_yet_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut holder = holder(directory.path());
    std::thread::sleep(Duration::from_millis(600));
    let early = holder.reports.try_recv().ok();
    assert_eq!(early, None, "it comes with its first pod");
    // As the kernel makes it where no cpu controller is delegated: cpu.stat alone.
    let tier = directory.path().join("cgroup/kubepods/besteffort");
    fs::create_dir_all(&tier).unwrap();
    fs::write(tier.join("cpu.stat"), "usage_usec 0\n").unwrap();
    let start = Instant::now();
    let report = loop {
        match holder.reports.try_recv() {
            Ok(report) => break report,
            Err(_) => assert!(start.elapsed() < Duration::from_secs(10), "no report"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let What::Refused(why) = report.what else {
        panic!("{:?}", report.what);
    };
    assert!(why.contains("besteffort/cpu.max"), "{why}");
}
