//! What is shipped to be installed, as a real API server takes it.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use xtask::documents::commands;
use xtask::paths::Workspace;

use super::LIMIT;
use crate::cases::{Case, Context, case};
use crate::harness::eventually;
use crate::kubernetes::Cluster;

pub(in crate::cases) const CASES: &[Case] = &[case("kubernetes_installs", kubernetes_installs)];

/// The server takes the shipped objects and every overlay without a warning, and a new agent is Ready.
fn kubernetes_installs(context: &Context) -> Result<()> {
    let cluster = context.kubernetes()?;
    cluster.clear()?;
    cluster.deploy()?;
    cluster.without_agent()?;
    let start = Instant::now();
    without_warning(
        &cluster,
        &["apply", "-f", &deploy("kubernetes/podwarden.yaml")],
    )?;
    eventually(LIMIT, || cluster.agent_is_ready())?;
    context.figure("ready_after", start.elapsed().as_secs_f64(), "s");
    as_documented(&cluster)?;

    let definitions = OperatorTypes::make(&cluster)?;
    for overlay in ["observe", "enforce", "colocation"] {
        would_apply(&cluster, &deploy(&format!("kustomize/{overlay}")))?;
        let with_monitoring = tempfile::tempdir_in("/var/tmp")?;
        let up = "../".repeat(with_monitoring.path().components().count() - 1);
        let from_here = |of: &str| format!("{up}{}", deploy(of).trim_start_matches('/'));
        let kustomization = json!({
            "resources": [from_here(&format!("kustomize/{overlay}"))],
            "components": [from_here("kustomize/monitoring")],
        });
        // JSON is YAML.
        let file = with_monitoring.path().join("kustomization.yaml");
        fs::write(file, kustomization.to_string())?;
        would_apply(&cluster, &with_monitoring.path().display().to_string())?;
    }
    drop(definitions);
    cluster.clear()
}

/// What the documents tell to run in the agent's namespace, but for what takes a terminal.
fn as_documented(cluster: &Cluster) -> Result<()> {
    let pod = cluster.agent_pod()?;
    let pod = pod["metadata"]["name"].as_str().context("it has no name")?;
    let mut run = 0;
    for command in commands(&Workspace::locate())? {
        let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
        let is_ours = words.starts_with(&["kubectl", "-n", "podwarden"]);
        // The kubectl of the tests has no `rollout` and knows pods alone, and a terminal is not there.
        let is_known = !words.contains(&"-it") && !words.contains(&"rollout");
        if command.in_block && is_ours && is_known {
            let words = words[1..].iter().map(|word| match *word {
                "ds/podwarden" | "daemonset/podwarden" => pod,
                word => word,
            });
            cluster
                .kubectl(&words.collect::<Vec<_>>())
                .with_context(|| format!("{}:{}", command.file.display(), command.line))?;
            run += 1;
        }
    }
    ensure!(run >= 2, "{run} commands are in the documents");
    Ok(())
}

/// A file or folder of `deploy/`.
fn deploy(path: &str) -> String {
    let workspace = Workspace::locate();
    let path = workspace.root().join("deploy").join(path);
    path.display().to_string()
}

/// The server has nothing against it and warns of nothing.
fn would_apply(cluster: &Cluster, directory: &str) -> Result<()> {
    let args = ["apply", "--dry-run=server", "-k", directory];
    without_warning(cluster, &args).with_context(|| format!("kustomization {directory}"))
}

fn without_warning(cluster: &Cluster, args: &[&str]) -> Result<()> {
    let said = cluster.kubectl_warns(args)?;
    ensure!(!said.contains("Warning:"), "{said}");
    Ok(())
}

/// The Prometheus Operator's types that monitoring uses, by name alone: the operator does not run here.
struct OperatorTypes<'a> {
    cluster: &'a Cluster,
    file: tempfile::NamedTempFile,
}

impl<'a> OperatorTypes<'a> {
    fn make(cluster: &'a Cluster) -> Result<Self> {
        const GROUP: &str = "monitoring.coreos.com";
        let of = |kind: &str, plural: &str| {
            json!({
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": format!("{plural}.{GROUP}")},
                "spec": {
                    "group": GROUP,
                    "scope": "Namespaced",
                    "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
                    "versions": [{
                        "name": "v1", "served": true, "storage": true,
                        "schema": {"openAPIV3Schema": {
                            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                        }},
                    }],
                },
            })
        };
        let items = [
            of("PodMonitor", "podmonitors"),
            of("PrometheusRule", "prometheusrules"),
        ];
        let file = tempfile::Builder::new().suffix(".json").tempfile()?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        fs::write(file.path(), list.to_string())?;
        let this = Self { cluster, file };
        this.cluster.kubectl(&["apply", "-f", &this.path()])?;
        cluster.kubectl(&[
            "wait",
            "--for=condition=Established",
            "--timeout=60s",
            "-f",
            &this.path(),
        ])?;
        Ok(this)
    }

    fn path(&self) -> String {
        self.file.path().display().to_string()
    }
}

impl Drop for OperatorTypes<'_> {
    fn drop(&mut self) {
        // A case that fails says why itself.
        let _ = self.cluster.kubectl(&["delete", "-f", &self.path()]);
    }
}
