//! What the agent beside a kubelet knows of pods, beside what the kubelet wrote.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::LIMIT;
use super::compare::{Comparison, until_same};
use super::shapes::{Fate, Shape, amounts, container, limited, one, shape, stays, with_own_limits};
use crate::cases::{Case, Context, case};
use crate::containerd::BUSYBOX;
use crate::harness::eventually;
use crate::kubernetes::{Cluster, PODS};

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_values", kubernetes_values)];

/// Pods with resources of their own, a sidecar and a static pod: each value that follows from what the agent knows is in
/// the files, of pods and of containers.
fn kubernetes_values(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.agent_with(str::to_owned)?;
    for shape in &shapes()? {
        cluster.api.create(PODS, &shape.manifest)?;
    }
    let file = one("in-a-file", &json!({"requests": amounts("15m", "8Mi")}))?;
    cluster.write_static(&file.name, &file.manifest)?;
    eventually(LIMIT, || all_run(&cluster))?;
    let compared = until_same(LIMIT, || {
        let own = Comparison::now(&cluster, context.agent())?;
        let told = Comparison::as_told(&cluster, context.agent())?;
        Ok([own, told])
    })?;
    for (name, compared) in [("own", &compared[0]), ("told", &compared[1])] {
        context.figure(format!("{name}_values"), compared.values as f64, "");
        // Four pods of the case, the agent's own, the tiers.
        ensure!(
            compared.cgroups >= 8 && compared.containers >= 8,
            "{name}: {compared:?}"
        );
    }
    cluster.clear()
}

fn shapes() -> Result<[Shape; 3]> {
    let spec = json!({
        "resources": {"requests": amounts("30m", "40Mi"), "limits": amounts("90m", "96Mi")},
        "initContainers": [
            {"name": "beside", "image": BUSYBOX, "command": stays(), "restartPolicy": "Always"},
        ],
        "containers": [container("main", &stays(), &limited())],
    });
    let [guaranteed, limits] = with_own_limits()?;
    let sidecar = shape("pod-sidecar", json!({"spec": spec}), Fate::Runs)?;
    Ok([guaranteed, limits, sidecar])
}

fn all_run(cluster: &Cluster) -> Result<()> {
    let pods = cluster.api.list(PODS)?;
    ensure!(pods.len() == 4, "{} pods", pods.len());
    pods.iter().try_for_each(|pod| {
        let status = &pod["status"];
        let of_it = status["containerStatuses"].as_array();
        let mut of_it = of_it.context("no container has a status")?.iter();
        let running = of_it.all(|one| one["state"]["running"].is_object());
        ensure!(running, "{status}");
        Ok(())
    })
}
