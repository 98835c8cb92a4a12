//! The tree, the ranking and the actions of a snapshot.

use serde_json::Value;

use crate::run::{file, json, podwarden, printed, text, tree};

/// The document's figures in the units of the files: 110m is 112 shares and a quota of 11000.
const WORKED_EXAMPLE: &[&str] = &[
    "/kubepods/cpu.shares = 2048",
    "/kubepods/memory.limit_in_bytes = 21474836480",
    "/kubepods/burstable/cpu.shares = 30",
    "/kubepods/burstable/memory.limit_in_bytes = 16106127360",
    "/kubepods/besteffort/cpu.shares = 2",
    "/kubepods/besteffort/memory.limit_in_bytes = 13958643712",
    "/kubepods/pod1/cpu.shares = 112",
    "/kubepods/pod1/cpu.cfs_period_us = 100000",
    "/kubepods/pod1/cpu.cfs_quota_us = 11000",
    "/kubepods/pod1/memory.limit_in_bytes = 3221225472",
    "/kubepods/pod1/pids.max = max",
    "/kubepods/pod2/cpu.shares = 20",
    "/kubepods/pod2/cpu.cfs_period_us = 100000",
    "/kubepods/pod2/cpu.cfs_quota_us = 2000",
    "/kubepods/pod2/memory.limit_in_bytes = 2147483648",
    "/kubepods/pod2/pids.max = max",
    "/kubepods/burstable/pod3/cpu.shares = 20",
    "/kubepods/burstable/pod3/cpu.cfs_period_us = 100000",
    "/kubepods/burstable/pod3/cpu.cfs_quota_us = 15000",
    "/kubepods/burstable/pod3/memory.limit_in_bytes = 3221225472",
    "/kubepods/burstable/pod3/pids.max = max",
    "/kubepods/burstable/pod4/cpu.shares = 10",
    "/kubepods/burstable/pod4/cpu.cfs_period_us = 100000",
    "/kubepods/burstable/pod4/cpu.cfs_quota_us = 2000",
    "/kubepods/burstable/pod4/memory.limit_in_bytes = 2147483648",
    "/kubepods/burstable/pod4/pids.max = max",
    "/kubepods/besteffort/pod5/cpu.shares = 2",
    "/kubepods/besteffort/pod5/cpu.cfs_quota_us = -1",
    "/kubepods/besteffort/pod5/memory.limit_in_bytes = -1",
    "/kubepods/besteffort/pod5/pids.max = max",
];

#[test]
fn the_worked_example_to_the_last_value() {
    let found = tree(&printed(&[
        "plan",
        "-o",
        "json",
        "-f",
        "worked-example.yaml",
    ]));
    assert_eq!(found, WORKED_EXAMPLE);
}

#[test]
fn the_worked_example_as_the_api_server_fills_it_in() {
    let example = std::fs::read_to_string(file("worked-example.yaml")).unwrap();
    let zeros = ", requests: {cpu: 0, memory: 0}";
    assert_eq!(example.matches(zeros).count(), 1);
    let output = podwarden(
        &["plan", "-o", "json", "-f", "-"],
        &example.replace(zeros, ""),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // 130m; 120m; allocatable - (5 + 3)Gi.
    let mut expected = WORKED_EXAMPLE.to_vec();
    for (before, after) in [
        (
            "/kubepods/burstable/cpu.shares = 30",
            "/kubepods/burstable/cpu.shares = 133",
        ),
        (
            "/kubepods/burstable/pod3/cpu.shares = 20",
            "/kubepods/burstable/pod3/cpu.shares = 122",
        ),
        (
            "/kubepods/besteffort/memory.limit_in_bytes = 13958643712",
            "/kubepods/besteffort/memory.limit_in_bytes = 12884901888",
        ),
    ] {
        let row = expected.iter_mut().find(|row| **row == before);
        *row.unwrap() = after;
    }
    assert_eq!(tree(text(&output.stdout)), expected);
}

#[test]
fn tables_read_as_they_did() {
    for (arguments, golden) in [
        (&["plan", "-f", "pressure.yaml"][..], "golden/plan.txt"),
        (
            &["explain", "shop/web", "-f", "pressure.yaml"],
            "golden/explain-web.txt",
        ),
        (
            &[
                "explain",
                "d1",
                "-f",
                "pressure.yaml",
                "--cgroup-version",
                "v1",
            ],
            "golden/explain-db-v1.txt",
        ),
        (
            &[
                "explain",
                "batch",
                "-f",
                "pressure.yaml",
                "--cgroup-driver",
                "systemd",
            ],
            "golden/explain-batch-systemd.txt",
        ),
        (
            &["explain", "dns", "-f", "pressure.yaml"],
            "golden/explain-dns.txt",
        ),
    ] {
        let found = printed(arguments);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(file(golden), &found).unwrap();
        }
        let expected = std::fs::read_to_string(file(golden)).unwrap();
        assert_eq!(found, expected, "{golden}");
    }
}

#[test]
fn a_thousand_pods_have_a_place_each() {
    let pod = |i: usize| {
        serde_json::json!({
            "metadata": {"name": format!("p{i}"), "uid": format!("u{i}")},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1m"}}}]},
        })
    };
    let list = serde_json::json!({
        "apiVersion": "v1", "kind": "PodList", "items": (0..1000).map(pod).collect::<Vec<_>>(),
    });
    let output = podwarden(&["plan", "-o", "json", "-f", "-"], &list.to_string());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ranking"].as_array().unwrap().len(), 1000);
}

#[test]
fn files_below_slices_are_named_as_systemd_names_them() {
    let found = tree(&printed(&[
        "plan",
        "-o",
        "json",
        "-f",
        "pressure.yaml",
        "--cgroup-driver",
        "systemd",
    ]));
    let slice = "/kubepods.slice/kubepods-burstable.slice";
    for expected in [
        "/kubepods.slice/cpu.weight = 149".to_owned(),
        format!("{slice}/cpu.weight = 14"),
        format!("{slice}/kubepods-burstable-podw1.slice/cpu.weight = 10"),
        "/kubepods.slice/kubepods-podd1.slice/memory.max = 2147483648".to_owned(),
    ] {
        assert!(found.contains(&expected), "{expected} is not in {found:#?}");
    }
}

#[test]
fn a_recorded_crossing_is_replayed() {
    let crossing = serde_json::json!({
        "threshold": {
            "signal": "allocatableMemory.available", "grace": {"secs": 0, "nanos": 0},
            "lessThan": {"quantity": 104_857_600}, "minReclaim": null,
        },
        "needed": 104_857_600, "available": 4096,
    });
    let recorded = serde_json::json!({
        "apiVersion": "podwarden.io/v1alpha1", "kind": "Snapshot", "cgroupVersion": "v2",
        "recorded": {
            "node": {"cpuCapacity": 2000, "memoryCapacity": 4_294_967_296_u64},
            "kubepods": "/kubepods",
            "pods": [{"uid": "u1", "name": "web", "namespace": "shop"}],
            "cgroups": {"/kubepods/besteffort/podu1": {"memoryWorkingSet": 8192}},
            "crossing": crossing,
        },
    });
    let report = json(&["plan", "-f", "-", "-o", "json"], &recorded.to_string());
    let first = &report["actions"][0];
    assert_eq!(first["action"], "evict");
    assert_eq!(first["podRef"]["name"], "web");
    let reason = first["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("allocatableMemory.available<100Mi: 4Ki left of 100Mi; first of 1:"),
        "{reason}"
    );
}
