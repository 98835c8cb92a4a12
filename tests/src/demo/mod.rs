//! The demo: a small node with real processes in three tiers, one of which fills memory until
//! podwarden evicts it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use xtask::cases::Extent;

use self::live::Top;
use self::report::{Compared, Pair, Report, Victim};
use self::scene::Scene;
use crate::cases::{Context, close_cpu};
use crate::harness::{Memory, Node, Pod, catch_signals, eventually, remove_stale};

mod live;
mod report;
mod scene;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The agent's program.
    #[arg(long, value_name = "PATH")]
    agent: PathBuf,
    /// Prints text in place of the live view.
    #[arg(long)]
    headless: bool,
    /// Writes what it has found to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Gives up when nothing was evicted after this many seconds.
    #[arg(long, default_value_t = 45)]
    duration: u64,
}

/// `e2e demo`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "the demo makes cgroups: run it as root"
    );
    catch_signals()?;
    remove_stale()?;
    let agent =
        fs::canonicalize(&args.agent).with_context(|| format!("find {}", args.agent.display()))?;
    let context = Context::new(&agent, Extent::default());
    let result = show(&context, args);
    if result.is_err() {
        for line in context.take_log().tail(20) {
            eprintln!("  | {line}");
        }
    }
    let (report, promised) = result?;
    print!("\n{report}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    println!(
        "\nThe agent has ended; nothing of it is left in the kernel or below its cgroup root."
    );
    promised?;
    Ok(ExitCode::SUCCESS)
}

/// Runs it all; beside the report, whether the accounts are as close to the kernel's as promised.
fn show(context: &Context, args: &Args) -> Result<(Report, Result<()>)> {
    let node = Node::start(context, &scene::options())?;
    let stats = node.agent.node()?;
    println!(
        "podwarden runs with profile {} on cgroup {}, below {}",
        stats.profile,
        stats.cgroup_version,
        node.sandbox.root.path()
    );
    println!("its API: {}", node.agent.socket().display());
    for text in &stats.degradations {
        println!("  not here: {text}");
    }
    let mut scene = Scene::start(&node)?;
    println!(
        "four pods run; in {} s jobs/hog starts to fill {} MiB/s of a node of 1 GiB",
        scene::QUIET.as_secs(),
        scene::RATE
    );
    let top = (!args.headless && Top::is_possible())
        .then(|| Top::start(context.agent(), &node))
        .transpose()?;
    let limit = Duration::from_secs(args.duration) + context.limit(1);
    let eviction = live::until_evicted(&node, top, limit)?
        .with_context(|| format!("nothing was evicted in {} s", limit.as_secs()))?;
    ensure!(
        eviction.pod.uid == scene.hog().uid(),
        "the wrong pod was evicted: {eviction:?}"
    );
    let memory = scene
        .pods
        .iter()
        .map(|pod| memory(&node, pod))
        .collect::<Vec<_>>();
    scene.wait_for_batch(&node, context.limit(20))?;
    scene.stop();
    let (pods, promised) = compare(context, &node, &scene, &memory)?;
    let victim = Victim::new(
        scene::RATE,
        &scene.stamps.read(),
        eviction.timeline.crossing_nanos,
    );
    let stats = node.agent.node()?;
    node.finish()?;
    Ok((Report::new(stats, eviction, victim, pods), promised))
}

/// Our figure and the kernel's of the same moment, as far as the kernel's stands still.
fn memory(node: &Node, pod: &Pod) -> Option<Pair> {
    let kernel = || pod.cgroup.memory().map(|Memory { usage, .. }| usage);
    let mut best: Option<Pair> = None;
    for _ in 0..20 {
        let podwarden = node.agent.pod(pod.uid()).ok()?.memory?.usage_bytes;
        let pair = Pair {
            podwarden,
            kernel: kernel().ok()?,
        };
        if best.is_none_or(|best| {
            pair.podwarden.abs_diff(pair.kernel) < best.podwarden.abs_diff(best.kernel)
        }) {
            best = Some(pair);
        }
        if pair.podwarden == pair.kernel {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    best
}

fn compare(
    context: &Context,
    node: &Node,
    scene: &Scene,
    memory: &[Option<Pair>],
) -> Result<(Vec<Compared>, Result<()>)> {
    let read = || -> Result<(Vec<Compared>, Result<()>)> {
        let mut rows = Vec::new();
        let mut promised = Ok(());
        for ((pod, memory), ended) in scene.pods.iter().zip(memory).zip(&scene.ended) {
            let stats = node.agent.pod(pod.uid())?;
            let row = Compared {
                pod: format!("{}/{}", pod.spec.namespace, pod.spec.name),
                qos_class: pod.spec.qos.as_str(),
                cpu_nanos: Pair {
                    podwarden: stats.cpu.usage_core_nano_seconds,
                    kernel: pod.cgroup.cpu_ns()?,
                },
                memory_bytes: *memory,
                exits: Pair {
                    podwarden: stats.exits.total,
                    kernel: *ended,
                },
            };
            promised = promised.and(is_as_promised(&row));
            rows.push(row);
        }
        Ok((rows, promised))
    };
    // The figures are those of the last sampling pass, which may be a moment ago.
    let settled = eventually(context.limit(5), || read()?.1);
    let (rows, _) = read()?;
    Ok((rows, settled))
}

fn is_as_promised(row: &Compared) -> Result<()> {
    close_cpu(row.cpu_nanos.podwarden, row.cpu_nanos.kernel)
        .with_context(|| format!("the account of {}", row.pod))?;
    ensure!(
        row.exits.podwarden == row.exits.kernel,
        "the account of {}: {} exits of {}",
        row.pod,
        row.exits.podwarden,
        row.exits.kernel
    );
    Ok(())
}
