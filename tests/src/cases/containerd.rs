//! The agent beside a real containerd, with its pods from an API server.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwarden::api::types::PodStats;

use super::apiserver::{NAMESPACE, World};
use super::eviction_status::{expect_delivered, expect_status};
use super::{Case, Context, case};
use crate::containerd::{
    Containerd, DEFAULT_HANDLER, OTHER_HANDLER, RunningPod, TEARDOWN, WORKLOAD,
};
use crate::harness::{Node, Options, PodSpec, eventually, state_of, until};

mod gone;
mod graceful;

pub(super) const CASES: &[Case] = &[
    case("containerd_pods_named", containerd_pods_named),
    case("containerd_comes_later", containerd_comes_later),
    case("containerd_eviction", containerd_eviction),
    case("containerd_sandbox_killed", containerd_sandbox_killed),
    case("containerd_sandbox_holds_all", containerd_sandbox_holds_all),
    case("containerd_graceful", graceful::containerd_graceful),
    case("containerd_pod_gone", gone::containerd_pod_gone),
];

const MIB: u64 = 1 << 20;

/// How often a case does what it is about, unless it is told.
const RUNS: u32 = 2;

/// A node of 512 MiB that evicts with 128 MiB left, and asks the runtime at this socket.
fn options(socket: &Path) -> Options {
    Options {
        memory: "512Mi".to_owned(),
        eviction_hard: Some("128Mi".to_owned()),
        config: format!("containerRuntimeEndpoint: unix://{}\n", socket.display()),
        ..Options::default()
    }
}

/// A node, and a pod on it that does something once it may.
struct Scene {
    world: World,
    spec: PodSpec,
    pod: RunningPod,
}

impl Scene {
    fn new(context: &Context, containerd: &Containerd) -> Result<Self> {
        Self::by_handler(DEFAULT_HANDLER, context, containerd)
    }

    /// The pod is of a RuntimeClass.
    fn by_handler(handler: &str, context: &Context, containerd: &Containerd) -> Result<Self> {
        let scene = Self::asking(handler, context, containerd, &containerd.socket())?;
        scene.named()?;
        Ok(scene)
    }

    /// The agent asks the runtime at this socket.
    fn asking(
        handler: &str,
        context: &Context,
        containerd: &Containerd,
        socket: &Path,
    ) -> Result<Self> {
        let fills = |level: u64| {
            let mib = level / MIB + 96;
            format!("/e2e workload fill --mib {mib} --rate 500 --step-kib 64; true")
        };
        Self::running(handler, context, containerd, options(socket), fills)
    }

    /// What the pod's shell does once it may depends on the node's level.
    fn running(
        handler: &str,
        context: &Context,
        containerd: &Containerd,
        options: Options,
        script: impl FnOnce(u64) -> String,
    ) -> Result<Self> {
        let mut world = World::with(context, options, |_| Ok(()))?;
        world.ready(context)?;
        let node = &world.node;
        let go = node.sandbox.dir().join("go");
        fs::create_dir(&go)?;
        let spec = PodSpec::best_effort("hog");
        let cgroup = world.add(&spec)?;
        until(node.limit(), "the pod's cgroup", || cgroup.exists())?;
        // As process 1 of its namespace this program would take itself for a machine's first.
        let script = format!(
            "exec 2> /go/said; while [ ! -e /go/now ]; do usleep 10000; done; {}",
            script(node.level()?)
        );
        let pod = containerd.run_pod_by(handler, &spec, &cgroup, &go, &script)?;
        Ok(Self { world, spec, pod })
    }

    fn node(&self) -> &Node {
        &self.world.node
    }

    /// Waits until the agent knows the pod's containers by name.
    fn named(&self) -> Result<PodStats> {
        self.node().expect(&self.spec.uid, |stats| {
            let mut found: Vec<_> = stats
                .containers
                .iter()
                .map(|one| (one.name.as_str(), one.id.as_str(), one.sandbox))
                .collect();
            found.sort_unstable();
            let wanted = [
                ("POD", self.pod.sandbox.as_str(), true),
                (WORKLOAD, self.pod.container.as_str(), false),
            ];
            ensure!(found == wanted, "its containers are {found:?}");
            Ok(())
        })
    }

    /// Has the pod fill memory.
    fn go(&self) -> Result<()> {
        fs::write(self.node().sandbox.dir().join("go/now"), "").context("let the pod go on")
    }

    /// Waits until the eviction is over: the pod's memory is free.
    fn evicted(&self) -> Result<()> {
        eventually(self.node().limit(), || {
            let mut evictions = self.node().agent.evictions()?.into_iter();
            let eviction = evictions.next().with_context(|| {
                let said = fs::read_to_string(self.node().sandbox.dir().join("go/said"));
                format!("no eviction is reported; the pod said {said:?}")
            })?;
            ensure!(evictions.next().is_none(), "more than one eviction");
            ensure!(*eviction.pod.uid == *self.spec.uid, "{eviction:?}");
            ensure!(eviction.timeline.freed_nanos.is_some(), "{eviction:?}");
            Ok(())
        })
    }

    /// Waits for the end of these processes: their memory is free a moment before they are gone.
    fn end(&self, processes: impl Fn() -> Vec<u32>) -> Result<()> {
        eventually(self.node().limit(), || {
            let running: Vec<_> = (processes().into_iter())
                .filter(|pid| is_running(*pid))
                .collect();
            ensure!(running.is_empty(), "processes {running:?} live on");
            Ok(())
        })
    }

    /// Waits until the pod is torn down, and looks that it was in the right order.
    fn torn_down(&self, containerd: &Containerd) -> Result<()> {
        eventually(TEARDOWN, || {
            let state = containerd.state_of(&self.pod)?;
            ensure!(state == (false, false), "ready and running: {state:?}");
            let log = self.node().agent.log.text();
            ensure!(log.contains(": torn down "), "the agent does not say so");
            Ok(())
        })?;
        network_is_down(containerd, &self.pod)?;
        // Only now is there nothing left to do for it.
        expect_delivered(&self.world, &[&self.spec])
    }

    /// Looks that the runtime has removed its containers' cgroups.
    fn left_nothing(&self, containerd: &Containerd) -> Result<()> {
        let left = self.pod.cgroup.children();
        let left: Vec<_> = left.iter().map(|one| (one.path(), one.procs())).collect();
        ensure!(
            left.is_empty(),
            "cgroups are left: {left:?}; the runtime says {:?}",
            containerd.said(&self.pod.sandbox)
        );
        Ok(())
    }

    fn finish(self, containerd: &Containerd) -> Result<()> {
        containerd.remove(&self.pod)?;
        self.world.server.remove_pod(NAMESPACE, &self.spec.name)?;
        self.world.node.expect_pods(&[])?;
        let is_gone = || self.pod.cgroup.dirs().all(|dir| !dir.exists());
        until(self.node().limit(), "the end of the pod's cgroup", is_gone)?;
        self.world.node.finish()
    }
}

/// Looks that the pod's network was made and taken down once, each with its namespace.
fn network_is_down(containerd: &Containerd, pod: &RunningPod) -> Result<()> {
    let asked = containerd.asked()?;
    let own = asked.iter().filter(|one| one.sandbox == pod.sandbox);
    let own: Vec<_> = own
        .map(|one| (one.command.as_str(), one.has_namespace))
        .collect();
    ensure!(
        own == [("ADD", true), ("DEL", true)],
        "the network plugin saw {own:?}"
    );
    Ok(())
}

fn is_running(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// A pod of a manifest and one that only the runtime has heard of.
fn containerd_pods_named(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    let scene = Scene::new(context, &containerd)?;
    let stats = scene.named()?;
    let workload = stats.containers.iter().find(|one| one.name == WORKLOAD);
    let workload = workload.context("it has no workload")?;
    ensure!(workload.cpu.context_switches > 0, "{:?}", workload.cpu);

    let spec = PodSpec::best_effort("stranger").in_namespace("elsewhere");
    let cgroup = scene.node().cgroup_of(&spec);
    cgroup.create()?;
    let go = scene.node().sandbox.dir().join("go");
    let stranger = containerd.run_pod(&spec, &cgroup, &go, "sleep 1000")?;
    let stats = scene.node().expect(&spec.uid, |stats| {
        ensure!(stats.containers.len() == 2, "{:?}", stats.containers);
        ensure!(stats.source == "runtime", "known by {}", stats.source);
        Ok(())
    })?;
    let named = (
        stats.pod_ref.name.as_str(),
        stats.pod_ref.namespace.as_str(),
    );
    ensure!(named == ("stranger", "elsewhere"), "it is called {named:?}");
    let told = scene
        .node()
        .agent
        .node()?
        .runtime
        .context("no runtime is told of")?;
    ensure!(told.name.as_deref() == Some("containerd"), "{told:?}");
    ensure!(told.problem.is_none(), "{told:?}");
    containerd.remove(&stranger)?;
    eventually(scene.node().limit(), || cgroup.remove())?;
    scene.finish(&containerd)
}

/// The agent is there before the runtime: it works without names, says so, and learns them.
fn containerd_comes_later(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    let place = tempfile::tempdir()?;
    let socket = place.path().join("runtime.sock");
    let scene = Scene::asking(DEFAULT_HANDLER, context, &containerd, &socket)?;
    let node = scene.node();
    let is_missed = |missed: bool| {
        eventually(node.limit(), || {
            let told = node.agent.node()?;
            let said = |text: &String| text.contains("containerRuntimeEndpoint");
            let degraded = told.degradations.iter().any(said);
            ensure!(degraded == missed, "degradations: {:?}", told.degradations);
            let problem = told.runtime.context("no runtime is told of")?.problem;
            ensure!(problem.is_some() == missed, "its problem: {problem:?}");
            Ok(())
        })
    };
    is_missed(true)?;
    node.expect(&scene.spec.uid, |stats| {
        let named = stats.containers.iter().all(|one| one.name == one.id);
        ensure!(
            named && stats.containers.len() == 2,
            "{:?}",
            stats.containers
        );
        Ok(())
    })?;
    symlink(containerd.socket(), &socket).context("put the socket in place")?;
    scene.named()?;
    is_missed(false)?;
    scene.finish(&containerd)
}

/// The runtime hangs while the pod is evicted: the workload dies all the same, the pod is marked, the sandbox
/// stays alive, and once the runtime goes on the pod is torn down.
fn containerd_eviction(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    for run in 1..=context.repetitions(RUNS) {
        evict_once(context, &containerd).with_context(|| format!("run {run}"))?;
    }
    Ok(())
}

fn evict_once(context: &Context, containerd: &Containerd) -> Result<()> {
    let scene = Scene::new(context, containerd)?;
    let sandbox = scene.pod.sandbox_pid()?;
    containerd.hang(true)?;
    let result = kill_while_it_hangs(&scene, sandbox);
    containerd.hang(false)?;
    result?;
    scene.torn_down(containerd)?;
    scene.left_nothing(containerd)?;
    ensure!(!is_running(sandbox), "the sandbox lives on");
    scene.finish(containerd)
}

fn kill_while_it_hangs(scene: &Scene, sandbox: u32) -> Result<()> {
    scene.go()?;
    scene.evicted()?;
    scene.end(|| scene.pod.workload())?;
    // Before the runtime stops anything, or a kubelet would start it again.
    expect_status(&scene.world, &scene.spec)?;
    ensure!(is_running(sandbox), "the sandbox died with its workload");
    Ok(())
}

/// The sandbox is dead before the pod is evicted: its network is taken down all the same.
fn containerd_sandbox_killed(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    for run in 1..=context.repetitions(RUNS) {
        let scene = Scene::new(context, &containerd)?;
        let with_run = || format!("run {run}");
        kill_sandbox_and_evict(&scene, &containerd).with_context(with_run)?;
        scene.finish(&containerd).with_context(with_run)?;
    }
    Ok(())
}

fn kill_sandbox_and_evict(scene: &Scene, containerd: &Containerd) -> Result<()> {
    let sandbox = scene.pod.sandbox_pid()?;
    kill(Pid::from_raw(i32::try_from(sandbox)?), Signal::SIGKILL)?;
    eventually(scene.node().limit(), || {
        let (ready, running) = containerd.state_of(&scene.pod)?;
        ensure!(!ready, "the runtime has not noticed");
        ensure!(running, "the workload died with its sandbox");
        Ok(())
    })?;
    scene.go()?;
    scene.evicted()?;
    scene.torn_down(containerd)?;
    scene.left_nothing(containerd)
}

/// A runtime whose sandbox is a virtual machine has the workload in the sandbox's cgroup (Kata Containers with
/// `sandbox_cgroup_only`): there it is killed, though the runtime calls it a sandbox. runc leaves that cgroup if its
/// last process takes more than 150 ms to free its memory; here another one is left for sure. Both go with the pod's.
fn containerd_sandbox_holds_all(context: &Context) -> Result<()> {
    let containerd = Containerd::start(context)?;
    let scene = Scene::by_handler(OTHER_HANDLER, context, &containerd)?;
    let held = scene.pod.cgroup.child(&scene.pod.sandbox);
    eventually(scene.node().limit(), || {
        let pids = scene.pod.workload();
        // What the first one starts meanwhile may have ended by now.
        for pid in &pids {
            let _ = held.attach(*pid);
        }
        ensure!(pids.is_empty(), "processes {pids:?} are in the workload");
        Ok(())
    })?;
    scene.pod.cgroup.child("left").create()?;
    scene.go()?;
    scene.evicted()?;
    scene.end(|| held.procs())?;
    scene.torn_down(&containerd)?;
    scene.finish(&containerd)
}
