//! Pods with a purpose each.

use anyhow::Result;
use podwarden_policy::{Bytes, MilliCpu, QosClass};
use serde_json::json;

use crate::cases::kubernetes::shapes::{
    self, Fate, From, Shape, Then, WITH_OVERHEAD, amounts, brief, container, ends, guaranteed, one,
    pod_level, shape, stays,
};
use crate::containerd::BUSYBOX;
use crate::harness::RandomPods;

/// `count` pods, those with a purpose among random ones, which may ask for huge pages of these sizes; of fewer than have
/// a purpose, any.
pub(super) fn all(seed: u64, count: usize, page_sizes: Vec<Bytes>) -> Result<Vec<Shape>> {
    let mut all = with_a_purpose()?;
    let mut pods = RandomPods::new(seed, page_sizes);
    for class in QosClass::ALL
        .into_iter()
        .cycle()
        .take(count.saturating_sub(all.len()))
    {
        all.push(shapes::random(&mut pods, class)?);
    }
    pods.random().shuffle(&mut all);
    all.truncate(count);
    Ok(all)
}

/// All of them.
fn with_a_purpose() -> Result<Vec<Shape>> {
    let mut all = plain()?;
    all.extend(of_pods()?);
    all.extend(of_lives()?);
    all.extend(changed()?);
    Ok(all)
}

/// One container each.
fn plain() -> Result<Vec<Shape>> {
    let rows = [
        ("nothing", json!({})),
        ("zeros", json!({"requests": amounts("0", "0")})),
        (
            "disk-only",
            json!({"requests": {"ephemeral-storage": "1Mi"}}),
        ),
        ("least-cpu", json!({"requests": {"cpu": "1m"}})),
        ("two-shares", json!({"requests": {"cpu": "2m"}})),
        ("odd-cpu", json!({"requests": {"cpu": "333m"}})),
        ("least-quota", json!({"limits": {"cpu": "1m"}})),
        (
            "quota-floor",
            json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "9m"}}),
        ),
        (
            "cpu-limit",
            json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "1500m"}}),
        ),
        (
            "cpu-fraction",
            json!({"requests": {"cpu": "0.05"}, "limits": {"cpu": "1.25"}}),
        ),
        (
            "many-cpus",
            json!({"requests": {"cpu": "1m"}, "limits": {"cpu": "512"}}),
        ),
        (
            "zero-request",
            json!({"requests": {"cpu": "0"}, "limits": {"cpu": "700m"}}),
        ),
        ("memory-request", json!({"requests": {"memory": "24Mi"}})),
        ("memory-limit", json!({"limits": {"memory": "40Mi"}})),
        (
            "no-page",
            json!({"requests": {"memory": "1"}, "limits": {"memory": "33554433"}}),
        ),
        (
            "decimal",
            json!({"requests": {"memory": "1e6"}, "limits": {"memory": "65M"}}),
        ),
        (
            "fraction",
            json!({"requests": {"memory": "1.5Mi"}, "limits": {"memory": "0.1Gi"}}),
        ),
        (
            "large-memory",
            json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "512Gi"}}),
        ),
        (
            "largest-memory",
            json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "3Ei"}}),
        ),
        (
            "cpu-and-memory",
            json!({"requests": amounts("10m", "8Mi"), "limits": amounts("20m", "48Mi")}),
        ),
        (
            "cpu-limited",
            json!({"requests": amounts("10m", "8Mi"), "limits": {"cpu": "100m"}}),
        ),
        (
            "memory-limited",
            json!({"requests": amounts("10m", "8Mi"), "limits": {"memory": "48Mi"}}),
        ),
        ("whole-cpu", guaranteed("1", "64Mi")),
        ("small-guaranteed", guaranteed("10m", "32Mi")),
        ("odd-guaranteed", guaranteed("123m", "34567890")),
    ];
    let rows = rows.iter().map(|(name, resources)| one(name, resources));
    rows.collect()
}

/// Several containers, pod-level resources, overhead.
fn of_pods() -> Result<Vec<Shape>> {
    let (none, small) = (json!({}), json!({"requests": amounts("5m", "4Mi")}));
    let limited = shapes::limited();
    let both = json!({"requests": amounts("50m", "64Mi"), "limits": amounts("50m", "64Mi")});
    let mut all = vec![
        pod_level("pod-guaranteed", &both, [&none, &none])?,
        pod_level(
            "pod-requests",
            &json!({"requests": amounts("40m", "32Mi")}),
            [&none, &small],
        )?,
        pod_level(
            "pod-cpu",
            &json!({"limits": {"cpu": "100m"}}),
            [&limited, &none],
        )?,
        pod_level(
            "pod-memory",
            &json!({"requests": {"memory": "48Mi"}}),
            [&limited, &limited],
        )?,
        pod_level(
            "pod-beside",
            &json!({"limits": amounts("900m", "256Mi")}),
            [&limited, &limited],
        )?,
    ];
    all.extend(shapes::with_own_limits()?);
    let spec = json!({
        "resources": {"requests": amounts("30m", "40Mi"), "limits": amounts("90m", "96Mi")},
        "initContainers": [
            container("first", &ends(), &none),
            {"name": "beside", "image": BUSYBOX, "command": stays(), "restartPolicy": "Always"},
        ],
        "containers": [container("main", &stays(), &limited)],
    });
    all.push(shape("pod-sidecar", json!({"spec": spec}), Fate::Runs)?);
    let spec = json!({
        "initContainers": [container("large", &ends(), &json!({"requests": amounts("80m", "48Mi")}))],
        "containers": [container("main", &stays(), &small)],
    });
    all.push(shape("init-larger", json!({"spec": spec}), Fate::Runs)?);
    let spec = json!({
        "initContainers": [
            {"name": "beside", "image": BUSYBOX, "command": stays(), "restartPolicy": "Always",
             "resources": limited},
            container("large", &ends(), &json!({"requests": amounts("70m", "40Mi")})),
        ],
        "containers": [container("main", &stays(), &limited), container("other", &stays(), &none)],
    });
    all.push(shape(
        "sidecar-then-init",
        json!({"spec": spec}),
        Fate::Runs,
    )?);
    for (name, resources) in [
        ("overhead-besteffort", &none),
        ("overhead-burstable", &limited),
        ("overhead-guaranteed", &both),
    ] {
        let mut with = one(name, resources)?;
        with.manifest["spec"]["runtimeClassName"] = WITH_OVERHEAD.into();
        all.push(with);
    }
    let mut with = pod_level("overhead-pod", &both, [&none, &small])?;
    with.manifest["spec"]["runtimeClassName"] = WITH_OVERHEAD.into();
    all.push(with);
    let mut host = one("host-network", &small)?;
    host.manifest["spec"]["hostNetwork"] = true.into();
    all.push(host);
    for (name, resources) in [("critical", &small), ("critical-guaranteed", &both)] {
        let mut critical = one(name, resources)?;
        critical.manifest["spec"]["priorityClassName"] = "system-node-critical".into();
        all.push(critical);
    }
    Ok(all)
}

/// Pods that end, do not start, or come from elsewhere.
fn of_lives() -> Result<Vec<Shape>> {
    let nowhere = json!({
        "name": "main", "image": "registry.invalid/none:1", "imagePullPolicy": "Never",
        "resources": {"requests": amounts("20m", "8Mi"), "limits": {"memory": "64Mi"}},
    });
    let beside = container("beside", &stays(), &guaranteed("10m", "32Mi"));
    let spec = json!({"containers": [nowhere, beside]});
    let no_image = shape("no-image", json!({"spec": spec}), Fate::Waits)?;
    let spec = json!({
        "initContainers": [container("long", &stays(), &json!({"requests": amounts("30m", "16Mi")}))],
        "containers": [container("main", &stays(), &guaranteed("20m", "32Mi"))],
    });
    let in_init = shape("in-init", json!({"spec": spec}), Fate::Waits)?;
    let mut all = vec![
        no_image,
        in_init,
        brief("succeeds", &["/bin/sleep", "0"], "Never", Fate::Ends)?,
        brief("fails", &["/bin/sleep", "no"], "Never", Fate::Ends)?,
        brief("fails-again", &["/bin/sleep", "no"], "Always", Fate::Waits)?,
    ];
    for name in ["job-a", "job-b"] {
        let mut job = brief(name, &["/bin/sleep", "0"], "Never", Fate::Ends)?;
        job.from = From::Job;
        all.push(job);
    }
    for (name, resources) in [
        ("static-besteffort", json!({})),
        (
            "static-burstable",
            json!({"requests": amounts("15m", "8Mi"), "limits": {"memory": "48Mi"}}),
        ),
        ("static-guaranteed", guaranteed("25m", "40Mi")),
    ] {
        let mut file = one(name, &resources)?;
        file.from = From::File;
        all.push(file);
    }
    Ok(all)
}

/// Pods that are changed while they run.
fn changed() -> Result<Vec<Shape>> {
    let small = json!({"requests": amounts("10m", "8Mi"), "limits": amounts("60m", "48Mi")});
    let mut all = Vec::new();
    let resizes = [
        (
            "grows",
            small.clone(),
            json!({"requests": amounts("30m", "16Mi"), "limits": amounts("90m", "64Mi")}),
        ),
        (
            "shrinks",
            small.clone(),
            json!({"requests": amounts("5m", "4Mi"), "limits": amounts("30m", "40Mi")}),
        ),
        (
            "grows-guaranteed",
            guaranteed("20m", "40Mi"),
            json!({
                "requests": amounts("40m", "56Mi"), "limits": amounts("40m", "56Mi"),
            }),
        ),
        (
            "grows-request",
            json!({"requests": {"cpu": "5m"}}),
            json!({"requests": {"cpu": "45m"}}),
        ),
        (
            "too-large",
            small.clone(),
            json!({"requests": {"cpu": "1950m"}, "limits": {"cpu": "1950m"}}),
        ),
    ];
    for (name, before, after) in resizes {
        let mut resized = one(name, &before)?;
        let spec = json!({"containers": [{"name": "main", "resources": after}]});
        resized.then = Then::Resize(json!({"spec": spec}));
        // Both count while it is under way.
        resized.cpu = resized.cpu.saturating_add(MilliCpu(50));
        resized.memory = resized.memory.saturating_add(Bytes::mebi(20));
        all.push(resized);
    }
    let mut ending = one("ending", &small)?;
    ending.manifest["spec"]["terminationGracePeriodSeconds"] = 3600.into();
    ending.then = Then::Delete;
    all.push(ending);
    for (name, resources) in [("debugged", &json!({})), ("debugged-burstable", &small)] {
        let mut debugged = one(name, resources)?;
        debugged.then = Then::Debug;
        all.push(debugged);
    }
    let own = json!({"requests": amounts("20m", "32Mi"), "limits": amounts("80m", "64Mi")});
    let mut debugged = pod_level("debugged-pod", &own, [&json!({}), &small])?;
    debugged.then = Then::Debug;
    all.push(debugged);
    Ok(all)
}
