//! Pods from an API server, one that is unpleasant at times.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::EventKind;
use serde_json::{Value, json};

use super::{Case, Context, portable, skip};
use crate::apiserver::ApiServer;
use crate::harness::{
    Agent, Cgroup, NODE, Node, Options, PodSpec, Sandbox, eventually, http_get, until,
};
use cut_off::apiserver_cut_off;

mod cut_off;

pub(super) const CASES: &[Case] = &[
    portable("apiserver_pods", apiserver_pods),
    portable("apiserver_cut_off", apiserver_cut_off),
    portable("apiserver_500_pods", apiserver_500_pods),
    portable("apiserver_away_at_start", apiserver_away_at_start),
];

pub(crate) const NAMESPACE: &str = "e2e";

/// A server and an agent that takes its pods from it.
pub(crate) struct World {
    pub(crate) node: Node,
    pub(crate) server: ApiServer,
    kubeconfig: PathBuf,
    /// What the agent was started with.
    pub(super) options: Options,
}

impl World {
    /// The agent is not waited for: `before` may leave the server in a state that keeps it from being
    /// ready.
    fn start(context: &Context, before: impl FnOnce(&mut ApiServer) -> Result<()>) -> Result<Self> {
        Self::with(context, Options::default(), before)
    }

    /// The same with other options. What is kept is in `state` of the sandbox's directory.
    pub(crate) fn with(
        context: &Context,
        options: Options,
        before: impl FnOnce(&mut ApiServer) -> Result<()>,
    ) -> Result<Self> {
        if context.emulated() {
            skip("what a source of pods does is seen on a machine that is not emulated")?;
        }
        Self::anywhere(context, options, before)
    }

    /// The same where the machine may be emulated.
    pub(super) fn anywhere(
        context: &Context,
        options: Options,
        before: impl FnOnce(&mut ApiServer) -> Result<()>,
    ) -> Result<Self> {
        let mut server = ApiServer::start()?;
        server.manners(|m| m.tokens = BTreeSet::from(["first".to_owned()]));
        let sandbox = Sandbox::new()?;
        let kubeconfig = sandbox.dir().join("kubeconfig");
        server.kubeconfig(&kubeconfig, Some("first"))?;
        before(&mut server)?;
        let state = sandbox.dir().join("state");
        let options = Options {
            kubeconfig: Some(kubeconfig.clone()),
            config: format!("stateDir: {}\n{}", state.display(), options.config),
            ..options
        };
        let node = Node::unready(context, sandbox, &options)?;
        Ok(Self {
            node,
            server,
            kubeconfig,
            options,
        })
    }

    pub(crate) fn ready(&mut self, context: &Context) -> Result<()> {
        self.node.agent.wait_ready(context.limit(30))
    }

    pub(crate) fn add(&self, spec: &PodSpec) -> Result<Cgroup> {
        self.server.create_pod(NODE, spec.manifest())?;
        Ok(self.node.cgroup_of(spec))
    }

    /// The verbs since the last call, each with how often.
    pub(crate) fn verbs(&self) -> BTreeMap<String, usize> {
        let mut verbs = BTreeMap::new();
        for seen in self.server.take_seen() {
            *verbs
                .entry(format!("{} {}", seen.verb, seen.resource))
                .or_default() += 1;
        }
        verbs
    }

    fn ensure_no_list(&self, when: &str) -> Result<()> {
        let verbs = self.verbs();
        ensure!(!verbs.contains_key("list pods"), "{when}: {verbs:?}");
        Ok(())
    }
}

/// From a node where nothing answers yet to one that follows every change.
fn apiserver_pods(context: &Context) -> Result<()> {
    let mut world = World::start(context, |server| {
        server.stop();
        Ok(())
    })?;
    no_answer(&world)?;

    let specs = [
        PodSpec::guaranteed("first", "64Mi"),
        PodSpec::limited("second", "128Mi"),
        PodSpec::best_effort("third"),
    ];
    for spec in &specs {
        world.add(spec)?;
    }
    let elsewhere = PodSpec::best_effort("elsewhere");
    world
        .server
        .create_pod("another-node", elsewhere.manifest())?;
    world.server.resume()?;
    world.ready(context)?;
    world.node.expect_pods(&specs.each_ref())?;
    for spec in &specs {
        let stats = world.node.agent.pod(&spec.uid)?;
        ensure!(
            stats.source == "apiserver"
                && stats.pod_ref.name == spec.name
                && stats.pod_ref.namespace == NAMESPACE
                && stats.qos_class == spec.qos.as_str(),
            "{stats:?}"
        );
    }
    let verbs = world.verbs();
    ensure!(verbs.get("list pods") == Some(&1), "{verbs:?}");
    changes(&world, &specs)?;
    unusable(&world)?;
    // Two parts of the Node are looked at as well, once each, when their pauses after an outage end.
    let mut verbs = world.verbs();
    let reads = verbs.remove("get nodes").unwrap_or_default();
    ensure!(reads <= 2, "the Node was read {reads} times");
    ensure!(verbs.keys().all(|verb| verb == "watch pods"), "{verbs:?}");
    world.node.finish()
}

/// Until the API server has told its pods, the agent works and says what it waits for.
fn no_answer(world: &World) -> Result<()> {
    eventually(world.node.limit(), || {
        let answer = http_get(world.node.agent.socket(), "/readyz")?;
        let text = answer.text();
        ensure!(answer.status == 503 && text.contains("apiserver"), "{text}");
        let source = world.node.source("apiserver")?;
        let problem = source.problem.unwrap_or_default();
        ensure!(
            !source.reported && problem.contains("127.0.0.1"),
            "{problem:?}"
        );
        Ok(())
    })
}

/// A pod is resized, ends, is deleted, comes back under its name.
fn changes(world: &World, [first, second, third]: &[PodSpec; 3]) -> Result<()> {
    world.server.change_pod(NAMESPACE, &second.name, |pod| {
        let resources = &mut pod["spec"]["containers"][0]["resources"];
        resources["limits"]["memory"] = "192Mi".into();
    })?;
    world.node.expect(&second.uid, |stats| {
        let limit = stats.memory.as_ref().and_then(|memory| memory.limit_bytes);
        ensure!(limit == Some(192 << 20), "its limit is {limit:?}");
        Ok(())
    })?;
    // On its way out it still counts.
    let deleting =
        |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.server.change_pod(NAMESPACE, &first.name, deleting)?;
    world.server.change_pod(NAMESPACE, &third.name, |pod| {
        pod["status"]["phase"] = "Succeeded".into();
    })?;
    world.node.expect_pods(&[first, second])?;
    world.server.remove_pod(NAMESPACE, &first.name)?;
    world.node.expect_pods(&[second])?;
    ensure!(
        !world.node.cgroup_of(first).exists() && !world.node.cgroup_of(third).exists(),
        "a cgroup is left"
    );
    let again = PodSpec::guaranteed(&first.name, "64Mi");
    world.add(&again)?;
    world.node.expect_pods(&[&again, second])?;
    world.server.remove_pod(NAMESPACE, &again.name)?;
    world.node.expect_pods(&[second])
}

/// A pod that makes no sense is said to, and changes nothing for others or for what it was.
fn unusable(world: &World) -> Result<()> {
    let spec = PodSpec::limited("spoilt", "64Mi");
    let cgroup = world.add(&spec)?;
    until(world.node.limit(), "the pod's cgroup", || cgroup.exists())?;
    world.server.change_pod(NAMESPACE, &spec.name, |pod| {
        pod["metadata"]["annotations"] = json!({"note": "x".repeat(1 << 20)});
        pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "64 megabytes".into();
    })?;
    eventually(world.node.limit(), || {
        let events = world.node.agent.events(0)?;
        let said = |kind: &EventKind| {
            matches!(kind, EventKind::Degraded { message }
            if message.contains("e2e/spoilt") && message.contains("64 megabytes"))
        };
        ensure!(
            events.iter().any(|event| said(&event.kind)),
            "nothing is said of the spoilt pod"
        );
        Ok(())
    })?;
    let after = PodSpec::best_effort("after");
    let beside = world.add(&after)?;
    until(world.node.limit(), "the next pod's cgroup", || {
        beside.exists()
    })?;
    ensure!(cgroup.exists(), "the spoilt pod's cgroup is gone");
    world.server.remove_pod(NAMESPACE, &spec.name)?;
    world.server.remove_pod(NAMESPACE, &after.name)?;
    until(world.node.limit(), "the end of both", || {
        !cgroup.exists() && !beside.exists()
    })
}

/// Agent and server are gone, and only the agent comes back: it knows the pods by what it kept, is not
/// ready, and makes and removes nothing that it was not told of.
fn apiserver_away_at_start(context: &Context) -> Result<()> {
    let mut world = World::start(context, |_| Ok(()))?;
    world.ready(context)?;
    let (first, second) = (
        PodSpec::guaranteed("first", "64Mi"),
        PodSpec::best_effort("second"),
    );
    let ended = PodSpec::best_effort("ended");
    let all = [&first, &second, &ended];
    for spec in all {
        world.add(spec)?;
    }
    world.node.expect_pods(&all)?;
    let file = world.node.sandbox.dir().join("state/pods.json");
    eventually(world.node.limit(), || {
        let text = fs::read_to_string(&file).context("there is no checkpoint")?;
        let kept = all.iter().all(|spec| text.contains(&spec.uid));
        ensure!(kept, "not every pod is kept: {text}");
        Ok(())
    })?;
    world.server.stop();
    world.node.agent.signal(Signal::SIGKILL)?;
    world.node.agent.wait(world.node.limit())?;
    // What ends meanwhile.
    world.node.cgroup_of(&ended).remove()?;

    world.node.agent = Agent::spawn(context.agent(), &world.node.sandbox, &world.options)?;
    context.watch(&world.node.agent.log);
    eventually(world.node.limit(), || {
        let answer = http_get(world.node.agent.socket(), "/readyz")?;
        ensure!(answer.status == 503, "/readyz answers {}", answer.status);
        Ok(())
    })?;
    world.node.expect_pods(&[&first, &second])?;
    for spec in [&first, &second] {
        let stats = world.node.agent.pod(&spec.uid)?;
        ensure!(
            stats.pod_ref.name == spec.name && stats.source == "apiserver",
            "{stats:?}"
        );
    }
    ensure!(
        !world.node.cgroup_of(&ended).exists(),
        "a pod that ended came back"
    );

    // What the server says stands, also where it is not what was kept.
    world.server.remove_pod(NAMESPACE, &second.name)?;
    world.server.resume()?;
    world.ready(context)?;
    world.node.expect_pods(&[&first, &ended])?;
    eventually(world.node.limit(), || {
        let text = fs::read_to_string(&file)?;
        ensure!(!text.contains(&second.uid), "still kept: {text}");
        Ok(())
    })?;
    for spec in [&first, &ended] {
        world.server.remove_pod(NAMESPACE, &spec.name)?;
    }
    world.node.expect_pods(&[])?;
    world.node.finish()
}

/// A full node: how long the first list takes, and what it costs.
fn apiserver_500_pods(context: &Context) -> Result<()> {
    const PODS: u32 = 500;
    let mut world = World::start(context, |server| {
        for n in 0..PODS {
            let mut manifest = PodSpec::limited(&format!("pod-{n}"), "16Mi").manifest();
            // About what a real pod has: 12 KiB.
            manifest["metadata"]["managedFields"] = json!([{"fieldsV1": "x".repeat(8 << 10)}]);
            let env: Vec<_> = (0..40)
                .map(|i| json!({"name": format!("VARIABLE_{i}"), "value": "x".repeat(60)}))
                .collect();
            manifest["spec"]["containers"][0]["env"] = env.into();
            server.create_pod(NODE, manifest)?;
        }
        Ok(())
    })?;
    world.ready(context)?;
    eventually(context.limit(60), || {
        let pods = world.node.agent.pods()?.len();
        ensure!(pods == PODS as usize, "{pods} pods");
        Ok(())
    })?;
    let rss = world.node.agent.rss()?;
    context.figure("rss_with_500_pods", rss as f64 / f64::from(1 << 20), "MiB");
    let verbs = world.verbs();
    ensure!(verbs.get("list pods") == Some(&1), "{verbs:?}");
    let allowed = 64 << 20;
    ensure!(
        rss < allowed,
        "{rss} bytes are resident, {allowed} are allowed"
    );
    world.node.finish()
}
