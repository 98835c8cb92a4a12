//! Why a pod's values are what they are.

use crate::run::{file, json, podwarden, text};

#[test]
fn an_explanation_for_scripts_says_what_people_read() {
    let arguments = ["explain", "shop/web", "-f", "pressure.yaml", "-o", "json"];
    let found = json(&arguments, "");
    assert_eq!(found["podRef"]["uid"], "w1");
    assert_eq!(found["knownBy"], "manifest");
    assert_eq!(found["qosClass"], "Burstable");
    assert_eq!(found["eviction"]["candidacy"], "candidate");
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
    let unknown = podwarden(&["explain", "lost-2", "-f", "-"], &snapshot(true));
    assert_eq!(unknown.status.code(), Some(2));
}
