//! `podwarden plan` and `explain` as they are called.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/plan")
        .join(name)
}

/// Runs the binary in the directory of the files, with `stdin`.
fn podwarden(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_podwarden"))
        .args(arguments)
        .current_dir(file(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Standard output of a run without an error.
fn printed(arguments: &[&str]) -> String {
    let output = podwarden(arguments, "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    text(&output.stdout).to_owned()
}

/// `path/file = value` of the tree.
fn tree(stdout: &str) -> Vec<String> {
    let report: Value = serde_json::from_str(stdout).unwrap();
    let rows = report["tree"].as_array().unwrap().iter();
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.inspect(|row| assert!(!text(row, "reason").is_empty(), "{row}"))
        .map(|row| {
            let [path, file, value] = ["path", "file", "value"].map(|key| text(row, key));
            format!("{path}/{file} = {value}")
        })
        .collect()
}

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
fn what_is_wrong_is_named_and_the_rest_is_planned() {
    let output = podwarden(&["plan", "-o", "json", "-f", "bad.yaml", "--cpu", "2"], "");
    assert_eq!(output.status.code(), Some(1));
    let paths = tree(text(&output.stdout));
    assert!(
        paths
            .iter()
            .any(|row| row.starts_with("/kubepods/besteffort/pod5/"))
    );
    let errors: Vec<_> = text(&output.stderr).lines().collect();
    let expected: &[&[&str]] = &[
        &["document 1", "Deployment (apps/v1)"],
        &[
            "pod a/overflow",
            "[0].resources.requests.memory",
            "`99999999999999999999Gi`",
        ],
        &["pod negative", "requests.cpu", "`-1`"],
        &["pod malformed", "limits.memory", "`1Go`"],
        &["pod below", "requests.memory", "`2Gi`", "above the limit"],
        &["pod unknown", "limits.memry", "`1Gi`"],
        &["pod default/twin", "uid 5"],
        &["pod wrongtype", "spec.containers"],
        &["document 3", "not YAML"],
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for (error, parts) in errors.iter().zip(expected) {
        for part in ["bad.yaml"].iter().chain(*parts) {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

#[test]
fn exit_codes() {
    let deployment = "apiVersion: apps/v1\nkind: Deployment\n";
    let cases: &[(&[&str], &str, i32)] = &[
        (&["plan", "-f", "-"], deployment, 2),
        (&["plan", "-f", "-"], "", 2),
        (
            &["plan", "-f", "-"],
            r#"{"apiVersion": "v1", "kind": "PodList", "items": []}"#,
            0,
        ),
        (&["plan", "-f", "missing.yaml"], "", 2),
        (&["plan"], "", 3),
        (&["plan", "-f", "bad.yaml", "--record"], "", 3),
        (&["plan", "-f", "bad.yaml", "--memory", "1Go"], "", 3),
        (&["plan", "--record", "--api-socket", "/nonexistent"], "", 3),
        (&["explain", "web", "-f", "pressure.yaml"], "", 0),
        (&["explain", "nobody", "-f", "pressure.yaml"], "", 2),
        (&["explain", "web", "--api-socket", "/nonexistent"], "", 3),
    ];
    for (arguments, stdin, code) in cases {
        let output = podwarden(arguments, stdin);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {stderr}");
        assert_eq!(stderr.is_empty(), *code == 0, "{arguments:?}: {stderr}");
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

/// What `-o json` prints.
fn json(arguments: &[&str], stdin: &str) -> Value {
    let output = podwarden(arguments, stdin);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_explanation_for_scripts_says_what_people_read() {
    let arguments = ["explain", "shop/web", "-f", "pressure.yaml", "-o", "json"];
    let found = json(&arguments, "");
    assert_eq!(found["podRef"]["uid"], "w1");
    assert_eq!(found["knownBy"], "manifest");
    assert_eq!(found["qosClass"], "Burstable");
    assert_eq!(found["eviction"]["standing"], "candidate");
    assert_eq!(found["eviction"]["place"], 2);
    assert_eq!(found["eviction"]["after"]["podRef"]["name"], "batch");

    // Each value of the text is there, with its formula and what changes it.
    let text = std::fs::read_to_string(file("golden/explain-web.txt")).unwrap();
    let cgroups = found["cgroups"].as_array().unwrap().iter();
    let containers = found["containers"].as_array().unwrap().iter();
    let mut seen = 0;
    for value in cgroups
        .chain(containers)
        .flat_map(|c| c["values"].as_array().unwrap())
    {
        let part = |key: &str| {
            value[key]
                .as_str()
                .unwrap_or_else(|| panic!("{key}: {value}"))
        };
        let [file, amount, reason, changes] = ["file", "value", "reason", "changesWith"].map(part);
        assert!(
            text.contains(&format!("  {file} = {amount}\n    {reason}\n")),
            "{value}"
        );
        assert!(
            text.contains(&format!("    changes with {changes}\n")),
            "{value}"
        );
        seen += 1;
    }
    assert_eq!(seen, text.matches("    changes with ").count());
}

#[test]
fn a_pod_without_a_manifest_is_explained_from_its_cgroup() {
    let snapshot = |ours: bool| {
        serde_json::json!({
            "apiVersion": "podwarden.io/v1alpha1", "kind": "Snapshot",
            "node": {"cpu": 2, "memory": "4Gi"},
            "cgroups": {
                "/kubepods": {}, "/kubepods/burstable": {},
                "/kubepods/burstable/podlost-1": {
                    "ours": ours,
                    "cpu": {"weight": 7},
                    "memoryLimit": {"at": 1_073_741_824},
                    "pidsLimit": "unlimited",
                },
            },
        })
        .to_string()
    };
    let arguments = ["explain", "lost-1", "-f", "-", "-o", "json"];
    let found = json(&arguments, &snapshot(false));
    assert_eq!(found["knownBy"], "cgroup");
    assert_eq!(found["qosClass"], "Burstable");
    assert_eq!(found["podRef"]["name"], "lost-1");
    let of_pod = &found["cgroups"][0];
    assert_eq!(of_pod["path"], "/kubepods/burstable/podlost-1");
    let values: Vec<_> = of_pod["values"].as_array().unwrap().iter().collect();
    let pairs: Vec<_> = values
        .iter()
        .map(|v| {
            format!(
                "{}={}",
                v["file"].as_str().unwrap(),
                v["value"].as_str().unwrap()
            )
        })
        .collect();
    // What could not be read is not made up.
    assert_eq!(
        pairs,
        ["cpu.weight=7", "memory.max=1073741824", "pids.max=max"]
    );
    assert_eq!(found["cgroups"][1]["path"], "/kubepods/burstable");
    let notes = found["notes"].to_string();
    assert!(notes.contains("No manifest names this pod"), "{notes}");
    assert!(
        notes.contains("did not make its cgroup and leaves it"),
        "{notes}"
    );

    let output = podwarden(&["explain", "lost-1", "-f", "-"], &snapshot(true));
    let stdout = text(&output.stdout);
    assert!(stdout.starts_with("lost-1, uid lost-1: Burstable\n  by where its cgroup is\n"));
    assert!(
        stdout.contains("podwarden made its cgroup and removes it."),
        "{stdout}"
    );
    let nobody = podwarden(&["explain", "lost-2", "-f", "-"], &snapshot(true));
    assert_eq!(nobody.status.code(), Some(2));
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

/// One bad pod beside a good one: the good one is planned, the bad one is named with field and value.
#[test]
fn what_can_be_wrong_with_a_pod() {
    let resources = |written: &str| {
        format!(
            "{{name: bad, uid: x1}}\n  spec: {{containers: [{{name: c, resources: {written}}}]}}"
        )
    };
    let cases = [
        (
            resources("{requests: {memory: 9223372036854775808}}"),
            &["requests.memory", "`9223372036854775808`", "2^63-1"][..],
        ),
        (
            resources("{requests: {cpu: '1e999'}}"),
            &["requests.cpu", "`1e999`", "2^63-1"],
        ),
        (
            resources("{limits: {memory: -1Gi}}"),
            &["limits.memory", "`-1Gi`", "negative"],
        ),
        (
            resources("{limits: {cpu: ''}}"),
            &["limits.cpu", "``", "empty"],
        ),
        (
            resources("{limits: {cpu: 1 Gi}}"),
            &["limits.cpu", "`1 Gi`", "suffix"],
        ),
        (
            resources("{limits: {cpu: 1}, requests: {cpu: 1001m}}"),
            &["requests.cpu", "`1001m`", "above the limit"],
        ),
        (
            resources("{limits: {gpu: 1}}"),
            &["limits.gpu", "`1`", "no such resource"],
        ),
        (
            resources("{limits: {hugepages-2Xi: 1}}"),
            &["limits.hugepages-2Xi", "page size"],
        ),
        (resources("7"), &["spec.containers[0].resources", "7"]),
        (
            "{name: bad, uid: a/b}\n  spec: {containers: [{name: c}]}".to_owned(),
            &["metadata.uid", "`a/b`"],
        ),
        (
            "{name: bad, uid: good-1}\n  spec: {containers: [{name: c}]}".to_owned(),
            &["default/bad", "uid good-1"],
        ),
        (
            "{name: bad, uid: x1}\n  spec: {containers: []}".to_owned(),
            &["spec.containers is missing"],
        ),
        (
            "{name: bad, uid: x1}\n  spec: {containers: [{image: i}]}".to_owned(),
            &["spec.containers[0].name"],
        ),
        (
            "{name: bad, uid: x1}\n  spec: {containers: [{name: c}, {name: c}]}".to_owned(),
            &["spec.containers[1].name", "`c`"],
        ),
        ("{name: bad, uid: x1}".to_owned(), &["spec is missing"]),
        (
            "{uid: x1}\n  spec: {containers: [{name: c}]}".to_owned(),
            &["metadata.name is missing"],
        ),
        (
            "{name: Bad_Name, uid: x1}\n  spec: {containers: [{name: c}]}".to_owned(),
            &["metadata.name", "`Bad_Name`"],
        ),
    ];
    for (bad, parts) in cases {
        let list = format!(
            "apiVersion: v1\nkind: PodList\nitems:\n\
             - metadata: {{name: good, uid: good-1}}\n  spec: {{containers: [{{name: c}}]}}\n\
             - metadata: {bad}\n"
        );
        let output = podwarden(&["plan", "-o", "json", "-f", "-"], &list);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{bad}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{bad}: {stderr}");
        for part in parts {
            assert!(
                stderr.contains(part),
                "{bad}: {part:?} is not in {stderr:?}"
            );
        }
        let good = "/kubepods/besteffort/podgood-1/";
        let tree = tree(text(&output.stdout));
        assert!(tree.iter().any(|row| row.starts_with(good)), "{bad}");
    }
}

#[test]
fn reserves_that_cannot_be_kept_are_said() {
    let snapshot = |config: &str, cgroups: &str| {
        format!(
            "apiVersion: podwarden.io/v1alpha1\nkind: Snapshot\ncgroupVersion: v1\n\
             node: {{cpu: 2, memory: 4Gi}}\nconfig: {config}\ncgroups: {cgroups}\n"
        )
    };
    let enforced = "{enforceNodeAllocatable: [pods, kube-reserved], kubeReservedCgroup: /kube, \
                    kubeReserved: {cpu: 500m, memory: 1Gi}}";
    let cases = [
        (
            enforced,
            "{/kubepods: {}}",
            "kubeReservedCgroup is /kube, and there is no such cgroup",
        ),
        (
            "{systemReserved: {memory: 5Gi}}",
            "{}",
            "take 5220Mi memory of 4Gi, which leaves none",
        ),
        ("{kubeReserved: {cpu: 3}}", "{}", "take 3000m CPU of 2000m"),
    ];
    for (config, cgroups, expected) in cases {
        let output = podwarden(&["plan", "-f", "-"], &snapshot(config, cgroups));
        assert_eq!(output.status.code(), Some(1), "{config}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(expected), "{config}: {stderr}");
    }
    // Where it exists, it is written as far as it can be read.
    let there =
        "{/kubepods: {}, /kube: {cpu: {shares: 1024}, memoryLimit: unlimited, memoryUsage: 4096}}";
    let output = podwarden(
        &["plan", "-o", "json", "-f", "-"],
        &snapshot(enforced, there),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let rows = tree(text(&output.stdout));
    assert_eq!(
        rows[..2],
        [
            "/kube/cpu.shares = 512",
            "/kube/memory.limit_in_bytes = 1073741824"
        ]
    );
}
