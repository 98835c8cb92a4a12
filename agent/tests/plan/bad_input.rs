//! What is wrong is named; what can be planned is.

use crate::run::{podwarden, text, tree};

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
        (&["explain", "no-such-pod", "-f", "pressure.yaml"], "", 2),
        (&["explain", "web", "--api-socket", "/nonexistent"], "", 3),
    ];
    for (arguments, stdin, code) in cases {
        let output = podwarden(arguments, stdin);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {stderr}");
        assert_eq!(stderr.is_empty(), *code == 0, "{arguments:?}: {stderr}");
    }
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
