//! `kubectl podwarden` over several agents. kubectl's part is a script that lists three pods and runs the program beside
//! the agent that it names; that of a real kubectl is in the cases of a real Kubernetes.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Case, Context, portable};
use crate::harness::{Node, Options, PodSpec, eventually};

pub(super) const CASES: &[Case] = &[portable("kubectl_fleet", kubectl_fleet)];

/// Three agents answer as one, and a node whose agent is away is named beside the others' answers.
fn kubectl_fleet(context: &Context) -> Result<()> {
    let mut nodes = Vec::new();
    for name in ["one", "two", "three"] {
        let node = Node::start(context, &Options::default())?;
        let pod = node.pod(PodSpec::burstable(&format!("web-{name}"), "64Mi"))?;
        node.expect(pod.uid(), |_| Ok(()))?;
        nodes.push((name, node, pod));
    }
    let dir = tempfile::tempdir()?;
    let sockets = nodes
        .iter()
        .map(|(name, node, _)| (*name, node.agent.socket()));
    write_kubectl(dir.path(), context.agent(), sockets.collect())?;
    let plugin = dir.path().join("kubectl-podwarden");
    symlink(context.agent(), &plugin)?;
    let run = |args: &[&str]| -> Result<Output> {
        let mut command = Command::new(&plugin);
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        command.args(args).env("PATH", path);
        command.output().context("start kubectl-podwarden")
    };

    eventually(nodes[0].1.limit(), || {
        let done = run(&["top", "--all"])?;
        let text = String::from_utf8(done.stdout)?;
        ensure!(
            done.status.success(),
            "{}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        );
        for (name, ..) in &nodes {
            let line = format!("\nnode-{name} ");
            ensure!(
                text.contains(&line) && text.contains(&format!("e2e/web-{name} ")),
                "{text}"
            );
        }
        Ok(())
    })?;
    let done = run(&["top", "--node", "node-two", "-o", "json"])?;
    let answer: Value = serde_json::from_slice(&done.stdout)?;
    ensure!(
        answer["nodes"][0]["pods"][0]["podRef"]["name"] == "web-two",
        "{answer}"
    );
    ensure!(
        answer["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.len() == 1),
        "{answer}"
    );
    let done = run(&["events", "-o", "json"])?;
    let events = String::from_utf8(done.stdout)?;
    for (name, ..) in &nodes {
        ensure!(
            events.contains(&format!("\"node\":\"node-{name}\"")),
            "{name}: {events}"
        );
    }
    let done = run(&["explain", "e2e/web-three"])?;
    let text = String::from_utf8(done.stdout)?;
    ensure!(
        text.contains("web-three") && text.contains("Burstable"),
        "{text}"
    );

    // One agent is away: the others' answers are there, and the exit code says that some are missing.
    fs::write(dir.path().join("web-two.away"), "")?;
    let done = run(&["top"])?;
    let (text, said) = (
        String::from_utf8(done.stdout)?,
        String::from_utf8(done.stderr)?,
    );
    ensure!(done.status.code() == Some(1), "{}", done.status);
    ensure!(
        said.contains("node-two: ") && said.contains("is away"),
        "{said}"
    );
    ensure!(
        text.contains("\nnode-one ") && !text.contains("\nnode-two "),
        "{text}"
    );
    nodes.into_iter().try_for_each(|(_, node, _)| node.finish())
}

/// `kubectl get pods`, `kubectl get pod` and `kubectl exec`, for what the plugin asks of them.
fn write_kubectl(dir: &Path, agent: &Path, sockets: Vec<(&str, &Path)>) -> Result<()> {
    let items: Vec<_> = sockets
        .iter()
        .map(|(name, _)| {
            json!({
                "metadata": {"name": format!("podwarden-{name}")}, "spec": {"nodeName": format!("node-{name}")},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            })
        })
        .collect();
    for item in &items {
        let node = item["spec"]["nodeName"].as_str().unwrap_or_default();
        fs::write(
            dir.join(format!("{node}.json")),
            json!({"items": [item]}).to_string(),
        )?;
        let name = node.replace("node-", "web-");
        fs::write(dir.join(format!("{name}.json")), item.to_string())?;
    }
    fs::write(dir.join("all.json"), json!({"items": items}).to_string())?;
    for (name, socket) in sockets {
        symlink(socket, dir.join(format!("podwarden-{name}.sock")))?;
    }
    let script = format!(
        r#"#!/bin/sh -e
cd "{dir}"
case "$1 $2" in
"get pods")
    for arg; do last_node=${{arg#--field-selector=spec.nodeName=}}; [ "$last_node" = "$arg" ] || node=$last_node; done
    exec cat "${{node:-all}}.json" ;;
"get pod") exec cat "$5.json" ;;
"exec --namespace")
    pod=$4; while [ "$1" != "--" ]; do shift; done; shift 2
    if [ -e "web-${{pod#podwarden-}}.away" ]; then echo "error: $pod is away" >&2; exit 1; fi
    exec "{agent}" "$@" --api-socket "$pod.sock" ;;
esac
echo "not understood: $*" >&2
exit 1
"#,
        dir = dir.display(),
        agent = agent.canonicalize()?.display(),
    );
    let kubectl = dir.join("kubectl");
    fs::write(&kubectl, script)?;
    fs::set_permissions(&kubectl, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
