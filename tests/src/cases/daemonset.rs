//! The agent as the shipped DaemonSet has it run: with the mounts that it asks for and no others, in a pod
//! of its own below kubepods, with the rights of its service account.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::EventKind;
use podwarden::kernel::pins;
use serde_json::{Value, json};

use super::{Case, Context, case, skip};
use crate::apiserver::ApiServer;
use crate::harness::{
    Agent, Container, NODE, Node, PodSpec, Sandbox, Shipped, Workload, eventually, files_below,
};

pub(super) const CASES: &[Case] = &[case("daemonset_pod", daemonset_pod)];

const MIB: u64 = 1 << 20;
/// The token of the service account.
const TOKEN: &str = "of-the-service-account";
/// A node on which 500Mi are reserved by the shipped configuration, and little is left.
const CAPACITY: &str = "capacity: {cpu: \"2\", memory: 756Mi}\n";

fn daemonset_pod(context: &Context) -> Result<()> {
    if context.emulated() {
        skip("what a container sees is no different on a machine that is emulated")?;
    }
    let shipped = Shipped::read()?;
    let sandbox = Sandbox::new()?;
    let (_, kubepods) = sandbox.kubepods("cgroupfs");

    // Its own pod is never a victim, whatever its QoS class.
    let own = PodSpec::best_effort("podwarden");
    let hog = PodSpec::best_effort("hog");
    let calm = PodSpec::burstable("calm", "32Mi");
    let place = |spec: &PodSpec| {
        spec.components()
            .fold(kubepods.clone(), |cgroup, name| cgroup.child(&name))
            .child("main")
    };
    for spec in [&own, &hog, &calm] {
        place(spec).create_below(&sandbox.root)?;
    }
    let mut server = ApiServer::start()?;
    server.manners(|manners| manners.tokens = BTreeSet::from([TOKEN.to_owned()]));
    let kubeconfig = sandbox.dir().join("kubeconfig");
    server.kubeconfig(&kubeconfig, Some(TOKEN))?;
    for spec in [&own, &hog, &calm] {
        let mut manifest = spec.manifest();
        let status = json!({"name": "app", "containerID": "containerd://main"});
        manifest["status"] = json!({"phase": "Running", "containerStatuses": [status]});
        server.create_pod(NODE, manifest)?;
    }

    let fields = BTreeMap::from([
        ("spec.nodeName", NODE.to_owned()),
        ("metadata.uid", own.uid.clone()),
    ]);
    let mut container = Container::new(
        &shipped,
        &sandbox.dir().join("container"),
        context.agent(),
        &fields,
        |config| config.to_owned() + CAPACITY,
        place(&own),
    )?;
    container.with_file(&kubeconfig, "/kubeconfig")?;
    same_facts(context, &container)?;

    let root = format!("--cgroup-root=/{}", sandbox.root.path());
    let further = ["--mode=enforce", "--kubeconfig=/kubeconfig", &root];
    let socket = container.on_host("/run/podwarden/podwarden.sock");
    let agent = Agent::launch(container.start(&further)?, &socket)?;
    let mut node = Node::of(context, sandbox, agent);
    node.agent.wait_ready(context.limit(30))?;

    let facts = node.agent.node()?;
    ensure!(facts.mode == "enforce", "{facts:?}");
    // Where the machine has a file system for them, and kernel programs that count.
    if pins::is_bpf_fs(Path::new(pins::BPF_FS)) && facts.profile != "sampling" {
        let pinned = files_below(&Path::new(pins::BPF_FS).join("podwarden"));
        let ours = |path: &PathBuf| {
            path.display()
                .to_string()
                .contains(node.sandbox.root.path())
        };
        let count = pinned.iter().filter(|path| ours(path)).count();
        ensure!(count == pins::NAMES.len(), "pinned: {pinned:?}");
    }
    let mut beside = Workload::start(&place(&calm), &["anon", "--mib", "24"])?;
    node.expect(&calm.uid, |stats| {
        let names: Vec<_> = stats
            .containers
            .iter()
            .map(|c| (&*c.name, &*c.id))
            .collect();
        ensure!(names == [("app", "main")], "its containers are {names:?}");
        Ok(())
    })?;
    let level = node.level()?;
    ensure!(level <= 256 * MIB, "the level is {level} bytes");
    let mut victim = Workload::start(
        &place(&hog),
        &["fill", "--mib", "320", "--rate", "400", "--step-kib", "64"],
    )?;
    let status = victim
        .wait(context.limit(30))
        .context("the hog was not killed")?;
    ensure!(!status.success(), "the hog ended by itself");
    eventually(node.limit(), || {
        let events = node.agent.events(0)?;
        let evicted: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Eviction(_)))
            .filter_map(|event| event.pod.as_ref())
            .map(|pod| pod.name.as_str())
            .collect();
        ensure!(evicted == ["hog"], "{evicted:?} were evicted");
        Ok(())
    })?;
    ensure!(beside.is_alive(), "another pod was killed as well");

    // As `kubectl exec` does it.
    let top = output(container.exec(&["top", "--once", "-o", "json"])?)?;
    ensure!(top.contains("calm") && top.contains("podwarden"), "{top}");
    let own_pod = output(container.exec(&["explain", "podwarden"])?)?;
    ensure!(own_pod.contains("podwarden's own pod"), "{own_pod}");
    let log = container.on_host("/var/log/podwarden/events.jsonl");
    ensure!(log.is_file(), "there is no {}", log.display());

    // The API server has been told of it.
    eventually(node.limit(), || {
        let events = server.events()?;
        ensure!(events.len() == 2, "{events:?}");
        ensure!(
            server.pod(hog.namespace, &hog.name)?["status"]["reason"] == "Evicted",
            "it is not marked"
        );
        Ok(())
    })?;
    let used: BTreeSet<String> = server
        .take_seen()
        .into_iter()
        .map(|seen| format!("{} {}", seen.verb, seen.resource))
        .collect();
    let rights = shipped.rights()?;
    ensure!(
        used.iter().eq(&rights),
        "the service account may {rights:?}, the agent did {used:?}"
    );
    drop((beside, victim));
    server.stop();
    node.finish_with(&kubepods)
}

/// The container hides nothing from `podwarden check` that the node shows.
fn same_facts(context: &Context, container: &Container) -> Result<()> {
    let facts = |mut command: Command| -> Result<Vec<(String, String)>> {
        let output = command.stdin(Stdio::null()).output()?;
        let answer: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("check: {}", String::from_utf8_lossy(&output.stderr)))?;
        let facts = answer["facts"].as_array().context("check tells no facts")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(facts
            .iter()
            .map(|fact| (text(&fact["fact"]), text(&fact["found"])))
            .collect())
    };
    let args = ["check", "-o", "json"];
    let mut outside = Command::new(context.agent());
    outside.args(args);
    let (outside, inside) = (facts(outside)?, facts(container.exec(&args)?)?);
    ensure!(
        outside == inside,
        "on the node {outside:?}, in the container {inside:?}"
    );
    Ok(())
}

fn output(mut command: Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
