//! Pods that have time to end when a soft threshold evicts them, where no kubelet tells them.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::{MIB, Scene, options};
use crate::cases::Context;
use crate::cases::eviction_status::expect_status;
use crate::cases::graceful::soft;
use crate::containerd::{Containerd, DEFAULT_HANDLER};

/// A pod that a soft threshold evicts has time to end, where no kubelet tells it: the runtime does, once. What goes on is
/// killed when the time is over.
pub(super) fn containerd_graceful(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    for heeds in [true, false] {
        end_gracefully(context, &containerd, heeds)
            .with_context(|| format!("it ends when told: {heeds}"))?;
    }
    Ok(())
}

fn end_gracefully(context: &Context, containerd: &Containerd, heeds: bool) -> Result<()> {
    let most = if heeds { 60 } else { 4 };
    let mut options = options(&containerd.socket());
    options.config += &soft(256, most);
    let then = if heeds { "sleep 1; exit 0" } else { "true" };
    // Between the soft and the hard level.
    let holds = |hard: u64| {
        let mib = hard / MIB - 64;
        format!(
            "trap 'echo told >> /go/told; {then}' TERM; /e2e workload anon --mib {mib} & \
             while true; do wait; sleep 1; done"
        )
    };
    let scene = Scene::running(DEFAULT_HANDLER, context, containerd, options, holds)?;
    scene.named()?;
    let hard = scene.node().level()?;
    scene.go()?;
    scene.evicted()?;
    scene.end(|| scene.pod.workload())?;
    let said = fs::read_to_string(scene.node().sandbox.dir().join("go/told"));
    ensure!(
        said.context("it was not told")? == "told\n",
        "it was told more than once"
    );
    // The runtime kills what goes on at the same time.
    let log = scene.node().agent.log.text();
    ensure!(
        !heeds || !log.contains("its time to end is over"),
        "it was killed"
    );
    let eviction = scene.node().agent.evictions()?.remove(0);
    // What the pod asks for, at most.
    let grace = eviction.grace_seconds;
    ensure!(
        grace == Some(most.min(30)) && eviction.usage_bytes < hard,
        "{eviction:?}"
    );
    expect_status(&scene.world, &scene.spec)?;
    scene.torn_down(containerd)?;
    scene.left_nothing(containerd)?;
    scene.finish(containerd)
}
