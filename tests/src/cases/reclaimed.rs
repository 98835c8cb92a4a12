//! Pods that ask for reclaimed resources: what their cgroups hold, from when on, and against whom.

mod clock;
mod node_restart;
mod starts;
mod truth;

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail, ensure};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::apiserver::World;
use super::{Case, Context, case, portable};
use crate::apiserver::{ApiServer, Refusal};
use crate::harness::{
    Cgroup, NODE, Node, Options, PodSpec, check_interrupt, eventually, make_fifo,
};

pub(super) const CASES: &[Case] = &[
    portable("batch_pod_alone", |context| batch_pod(context, false)),
    portable("batch_pod_beside_a_kubelet", |context| {
        batch_pod(context, true)
    }),
    portable("reclaimed_is_published", reclaimed_is_published),
    portable("reclaimed_is_true_again", truth::reclaimed_is_true_again),
    portable(
        "reclaimed_after_a_node_restart",
        node_restart::reclaimed_after_a_node_restart,
    ),
    portable(
        "reclaimed_through_clock_steps",
        clock::reclaimed_through_clock_steps,
    ),
    case("reclaimed_at_start", starts::reclaimed_at_start),
];

/// What a pod with `batch-cpu: 500` and `batch-memory: 64Mi` has, on either version.
const WANTED: [(&str, &str); 5] = [
    ("cpu.shares", "512"),
    ("cpu.weight", "20"),
    ("cpu.cfs_quota_us", "50000"),
    ("cpu.max", "50000 100000"),
    ("memory.limit_in_bytes", "67108864"),
];

/// `memory.max` is apart: of v2 alone.
const MEMORY_MAX: (&str, &str) = ("memory.max", "67108864");

/// The files of a cgroup that there are, with what they are to hold.
fn wanted(cgroup: &Cgroup) -> Vec<(PathBuf, &'static str)> {
    let dirs: Vec<_> = cgroup.dirs().collect();
    let files = WANTED.iter().chain([&MEMORY_MAX]);
    files
        .flat_map(|(name, text)| dirs.iter().map(move |dir| (dir.join(name), *text)))
        .filter(|(path, _)| path.exists())
        .collect()
}

pub(super) fn holds(cgroup: &Cgroup) -> Result<()> {
    let files = wanted(cgroup);
    ensure!(files.len() == 3, "{files:?}");
    for (path, text) in files {
        let found = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        ensure!(found.trim() == text, "{} holds {found}", path.display());
    }
    Ok(())
}

/// Below the agent's own threads.
const PRIORITY: i32 = 10;

/// Waits until a new cgroup holds all; how long that took.
fn time_of(limit: Duration, cgroup: &Cgroup) -> Result<Duration> {
    let start = Instant::now();
    cgroup.create()?;
    while let Err(error) = holds(cgroup) {
        check_interrupt()?;
        ensure!(start.elapsed() < limit, "{error}");
        thread::sleep(Duration::from_micros(100));
    }
    Ok(start.elapsed())
}

fn batch_pod(context: &Context, assist: bool) -> Result<()> {
    const STARTS: usize = 100;
    let options = Options {
        assist,
        config: "colocation: {reclaimed: {enforce: true}}\n".to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    if assist {
        for tier in ["burstable", "besteffort"] {
            node.kubepods().child(tier).create()?;
        }
    }
    let specs = vec![
        PodSpec::batch("batch", 500, "64Mi"),
        PodSpec::best_effort("plain"),
    ];
    let pods = node.pods(specs)?;
    let [batch, plain] = pods.as_slice() else {
        anyhow::bail!("two specs make two pods");
    };
    eventually(node.limit(), || {
        holds(&batch.cgroup)?;
        holds(&batch.main)
    })?;
    // The pod beside it has what it would have without.
    for (path, text) in wanted(&plain.cgroup) {
        let found = fs::read_to_string(&path)?;
        ensure!(found.trim() != text, "{} holds {found}", path.display());
    }

    // What a runtime sets after it has made the cgroup is put right.
    for cgroup in [&batch.main, &batch.cgroup] {
        for (path, _) in wanted(cgroup) {
            let foreign = match path.file_name().and_then(|name| name.to_str()) {
                Some("cpu.shares" | "cpu.weight") => "2",
                Some("cpu.max") => "40000 100000",
                Some("cpu.cfs_quota_us") => "40000",
                _ => "134217728",
            };
            // v1 refuses a child above its parent, and a parent below its child.
            if fs::write(&path, foreign).is_ok() {
                eventually(node.limit(), || holds(cgroup))?;
            }
        }
    }

    // It uses at most what it asked for, whatever it tries.
    let before = batch.cgroup.cpu_ns()?;
    let start = Instant::now();
    let mut burning = batch.start(&["burn", "--for-ms", "3000", "--threads", "2"])?;
    let status = burning.wait(context.limit(60))?;
    ensure!(status.success(), "the workload ended with {status}");
    let used = batch.cgroup.cpu_ns()? - before;
    // A period's quota more than the time allows: the first may begin with a full one.
    let allowed = start.elapsed().as_nanos() / 2 + 100_000_000;
    ensure!(u128::from(used) <= allowed, "{used} ns of {allowed}");

    let mut times = thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            // Refused, the figures have the waits of this thread in them.
            let _ = make_fifo(PRIORITY);
            let time = |n| {
                let container = batch.cgroup.child(&format!("c{n}"));
                let time = time_of(node.limit(), &container)?;
                container.remove()?;
                Ok(time)
            };
            (0..STARTS).map(time).collect::<Result<Vec<_>>>()
        });
        measuring.join().unwrap_or_else(|_| bail!("it panicked"))
    })?;
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let soon = times
        .iter()
        .filter(|time| **time < Duration::from_millis(5));
    context.figure("new_container_median", ms(times[STARTS / 2]), "ms");
    context.figure("new_container_p99", ms(times[STARTS - 2]), "ms");
    context.figure("new_container_within_5ms", soon.count() as f64, "of 100");
    if assist {
        let own = node.kubepods();
        return node.finish_with(&own);
    }
    node.finish()
}

pub(super) const BATCH_CPU: &str = "kubernetes.io/batch-cpu";
pub(super) const BATCH_MEMORY: &str = "kubernetes.io/batch-memory";

/// The Node's status, where it has the kubelet's resources as they were.
fn status(world: &World) -> Result<Value> {
    let node = world.server.node(NODE)?;
    for list in ["capacity", "allocatable"] {
        let kubelets = &node["status"][list];
        ensure!(
            kubelets["cpu"] == "8" && kubelets["memory"] == "16Gi",
            "{kubelets}"
        );
    }
    Ok(node["status"].clone())
}

/// What is offered of a resource, the same in both lists.
fn offered(world: &World, resource: &str) -> Result<u64> {
    let status = status(world)?;
    let found = &status["capacity"][resource];
    ensure!(*found == status["allocatable"][resource], "{status}");
    let text = found.as_str().with_context(|| format!("no {resource}"))?;
    text.parse().context(resource.to_owned())
}

/// What the Node has, as its kubelet made it.
fn kubelets() -> Value {
    json!({"cpu": "8", "memory": "16Gi"})
}

/// With that Node.
fn world(context: &Context, options: Options) -> Result<World> {
    let mut world = World::with(context, options, with_node)?;
    world.ready(context)?;
    Ok(world)
}

fn with_node(server: &mut ApiServer) -> Result<()> {
    let status = json!({"capacity": kubelets(), "allocatable": kubelets()});
    server.create_node(NODE, &status)?;
    Ok(())
}

/// Offered in spite of refusals, never below what is held, and withdrawn at the end.
fn reclaimed_is_published(context: &Context) -> Result<()> {
    let options = Options {
        config: "colocation: {reclaimed: {publish: true}}\n".to_owned(),
        ..Options::default()
    };
    let mut world = world(context, options)?;
    world.server.take_written();
    let conflict = Refusal::new(409, "Conflict", "the object has been modified");
    let busy = Refusal {
        retry_after: Some(1),
        ..Refusal::new(429, "TooManyRequests", "later")
    };
    world.server.manners(|m| m.refuse.extend([conflict, busy]));
    let published = eventually(world.node.limit(), || {
        let computed = world.node.agent.node()?.reclaimed;
        let computed = computed.context("nothing is computed")?.batch;
        let published = offered(&world, BATCH_MEMORY)?;
        // What differs by more is published, so this comes true.
        let close = published.abs_diff(computed.memory_bytes) * 10 <= published;
        ensure!(close, "{published} published of {}", computed.memory_bytes);
        Ok(published)
    })?;
    // 65 % of 16 GiB at most.
    ensure!(published <= (16 << 30) / 100 * 65 + 1, "{published}");
    offered(&world, BATCH_CPU)?;

    // More than the node has: what a pod holds is not taken back.
    world.add(&PodSpec::batch("large", 50_000, "64Mi"))?;
    eventually(world.node.limit(), || {
        world.node.agent.node()?;
        let cpu = offered(&world, BATCH_CPU)?;
        ensure!(cpu >= 50_000, "{cpu} offered and 50000 held");
        Ok(())
    })?;
    let written = world.server.take_written();
    let of_status = |w: &crate::apiserver::Write| (w.verb, w.resource) == ("patch", "nodes/status");
    ensure!(written.iter().all(of_status), "{written:?}");

    world.node.agent.stop(Signal::SIGTERM, context.limit(20))?;
    let left = status(&world)?;
    for list in ["capacity", "allocatable"] {
        ensure!(left[list] == kubelets(), "{left}");
    }
    Ok(())
}
