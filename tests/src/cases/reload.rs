//! The configuration's file changes under a running agent.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;

use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, Sandbox, eventually, http_get};

pub(super) const CASES: &[Case] = &[portable("config_reload", config_reload)];

/// Where a pod's first series begins.
const OF_PODS: &str = "podwarden_pod_cpu_usage_seconds_total{";

/// A ConfigMap is swapped: what can change does at once, the rest is named, and a bad file changes nothing.
fn config_reload(context: &Context) -> Result<()> {
    let sandbox = Sandbox::new()?;
    let dir = sandbox.dir().to_owned();
    // As the kubelet lays it out; the harness writes through the links.
    fs::create_dir(dir.join("..1"))?;
    symlink("..1", dir.join("..data"))?;
    symlink("..data/config.yaml", dir.join("config.yaml"))?;
    let node = Node::on(context, sandbox, &Options::default())?;
    let pod = node.pod(PodSpec::burstable("web", "64Mi"))?;
    node.expect(pod.uid(), |_| Ok(()))?;
    let first = fs::read_to_string(dir.join("config.yaml"))?;
    let metrics = || -> Result<String> { Ok(http_get(node.agent.socket(), "/metrics")?.text()) };
    let hash = || -> Result<String> {
        let text = metrics()?;
        let (_, rest) = text
            .split_once("\npodwarden_config_info{hash=\"")
            .context("no hash")?;
        let (hash, _) = rest.split_once('"').context("no end of the hash")?;
        Ok(hash.to_owned())
    };
    let degraded = || -> Result<String> { Ok(node.agent.node()?.degradations.join("\n")) };
    let of_first = hash()?;
    eventually(node.limit(), || {
        ensure!(metrics()?.contains(OF_PODS), "a pod has no series");
        Ok(())
    })?;

    swap(&dir, 2, &format!("{first}metrics: {{pods: none}}\n"))?;
    eventually(node.limit(), || {
        ensure!(!metrics()?.contains(OF_PODS), "pods still have series");
        Ok(())
    })
    .context("a key that can change")?;
    let changes = node.agent.events(0)?;
    let mut changes = changes.iter().filter_map(|event| match &event.kind {
        EventKind::ConfigChanged { applied, pending } => Some((applied, pending)),
        _ => None,
    });
    let (applied, pending) = changes.next().context("no event says what changed")?;
    ensure!(
        *applied == ["metrics.pods: none (was its default)"] && pending.is_empty(),
        "{applied:?} {pending:?}"
    );
    ensure!(changes.next().is_none(), "a second event");
    let of_second = hash()?;
    ensure!(of_second != of_first, "the hash is {of_first} as before");

    swap(&dir, 3, &format!("{first}podPidsLimit: 4000\n"))?;
    eventually(node.limit(), || {
        let degraded = degraded()?;
        ensure!(degraded.contains("podPidsLimit was changed"), "{degraded}");
        ensure!(metrics()?.contains(OF_PODS), "a pod has no series");
        Ok(())
    })
    .context("a key that waits")?;
    ensure!(hash()? == of_second, "a file is in force that is not");

    swap(&dir, 4, "kind: Nonsense\n")?;
    eventually(node.limit(), || {
        let degraded = degraded()?;
        ensure!(
            degraded.contains("from before stays in force"),
            "{degraded}"
        );
        let text = metrics()?;
        let found = text.contains("\npodwarden_config_last_reload_successful 0");
        ensure!(found, "the metrics do not say so");
        Ok(())
    })
    .context("a file that cannot be used")?;

    swap(&dir, 5, &first)?;
    eventually(node.limit(), || {
        let degraded = degraded()?;
        ensure!(!degraded.contains("config.yaml"), "{degraded}");
        ensure!(hash()? == of_first, "the hash is another one");
        Ok(())
    })
    .context("the first file again")?;
    node.finish()
}

/// A new directory, and a link that is renamed over the old one.
fn swap(dir: &Path, generation: u32, text: &str) -> Result<()> {
    let name = format!("..{generation}");
    fs::create_dir(dir.join(&name))?;
    fs::write(dir.join(&name).join("config.yaml"), text)?;
    symlink(&name, dir.join("..data_tmp"))?;
    fs::rename(dir.join("..data_tmp"), dir.join("..data"))?;
    fs::remove_dir_all(dir.join(format!("..{}", generation - 1)))?;
    Ok(())
}
