//! Memory figures, the kernel's OOM killer and reclaim.

use std::thread::available_parallelism;

use anyhow::{Context as _, Result, ensure};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use podwarden::api::types::EventKind;

use super::{Case, Context, case, skip};
use crate::harness::{Memory, Node, Options, PodSpec, until};

pub(super) const CASES: &[Case] = &[
    case("memory_matches_kernel", memory_matches_kernel),
    case("oom_kill_is_reported", oom_kill_is_reported),
    case("reclaim_stall", reclaim_stall),
];

const MIB: u64 = 1 << 20;

/// How far the kernel's own figures may be apart: its charge stock of 64 pages per CPU.
fn tolerance() -> Result<u64> {
    Ok(256 * 1024 * available_parallelism()?.get() as u64)
}

fn ensure_close(what: &str, found: u64, kernel: u64) -> Result<()> {
    let allowed = tolerance()?;
    ensure!(
        found.abs_diff(kernel) <= allowed,
        "{what} is {found}, the kernel says {kernel}, more than {allowed} bytes apart"
    );
    Ok(())
}

fn memory_matches_kernel(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::guaranteed("anon", "256Mi"),
        PodSpec::burstable("cache", "64Mi"),
        PodSpec::best_effort("both"),
    ])?;
    let file = |name: &str| node.sandbox.dir().join(name).display().to_string();
    let (one, two) = (file("one"), file("two"));
    let _held = [
        pods[0].start(&["anon", "--mib", "96"])?,
        pods[1].start(&["cache", "--mib", "64", "--file", &one])?,
        pods[2].start(&["anon", "--mib", "32"])?,
        pods[2].start(&["cache", "--mib", "32", "--file", &two])?,
    ];
    for (pod, least) in pods.iter().zip([96, 64, 64]) {
        until(node.limit(), "the workloads' memory", || {
            pod.cgroup
                .memory()
                .is_ok_and(|memory| memory.usage >= least * MIB)
        })?;
    }
    for pod in &pods {
        node.expect(pod.uid(), |stats| {
            let kernel: Memory = pod.cgroup.memory()?;
            let memory = stats.memory.clone().unwrap_or_default();
            ensure_close("usageBytes", memory.usage_bytes, kernel.usage)?;
            ensure_close(
                "workingSetBytes",
                memory.working_set_bytes,
                kernel.working_set(),
            )?;
            ensure_close("rssBytes", memory.rss_bytes, kernel.rss)?;
            let main = stats.containers.first().context("no container")?;
            let memory = main
                .memory
                .as_ref()
                .with_context(|| format!("the container of {} has no memory", pod.spec.name))?;
            ensure_close(
                "the container's usageBytes",
                memory.usage_bytes,
                pod.main.memory()?.usage,
            )
        })?;
    }
    // A Guaranteed pod has a limit; a BestEffort one has none.
    let limit = |n: usize| -> Result<Option<u64>> {
        Ok(node
            .agent
            .pod(pods[n].uid())?
            .memory
            .and_then(|memory| memory.limit_bytes))
    };
    ensure!(
        limit(0)? == Some(256 * MIB),
        "the Guaranteed pod's limit is {:?}",
        limit(0)?
    );
    ensure!(
        limit(2)?.is_none(),
        "the BestEffort pod's limit is {:?}",
        limit(2)?
    );
    drop(_held);
    node.finish()
}

fn oom_kill_is_reported(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::limited("too-large", "48Mi"))?;
    let mut hog = pod.start(&["fill", "--mib", "128"])?;
    let status = hog.wait(context.limit(30))?;
    ensure!(
        !status.success(),
        "the kernel let it have 128 MiB of 48 MiB"
    );
    node.expect(pod.uid(), |stats| {
        let exits = &stats.exits;
        ensure!(exits.oom_killed == 1, "{} OOM kills", exits.oom_killed);
        ensure!((exits.total, exits.signaled) == (1, 1), "exits: {exits:?}");
        Ok(())
    })?;
    let events = node.agent.events(0)?;
    let pid = hog.pid();
    ensure!(
        events
            .iter()
            .any(|event| matches!(event.kind, EventKind::KernelOom { pid: p } if p == pid)),
        "no KernelOom event for process {pid}"
    );
    ensure!(
        events.iter().any(|event| matches!(
            &event.kind,
            EventKind::ProcessExit { pid: p, oom_killed: true, signal: Some(9), command, .. }
                if *p == pid && command == "fill"
        )),
        "no ProcessExit event of an OOM kill for process {pid}"
    );
    node.finish()
}

fn reclaim_stall(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    if !is_on_disk(node.sandbox.dir())? {
        return skip("page cache cannot be reclaimed here: /var/tmp is not on a disk");
    }
    let pod = node.pod(PodSpec::limited("cache-beyond-limit", "48Mi"))?;
    let file = node.sandbox.dir().join("large").display().to_string();
    let args = [
        "cache",
        "--mib",
        "160",
        "--for-ms",
        "3000",
        "--pause-ms",
        "0",
        "--file",
        &file,
    ];
    let status = pod.start(&args)?.wait(context.limit(60))?;
    ensure!(status.success(), "the cache ended with {status}");
    let stats = node.expect(pod.uid(), |stats| {
        let stall = stats.stall.memcg_reclaim_nano_seconds;
        ensure!(stall > 0, "no time was spent in reclaim");
        // One thread cannot have stalled longer than it used the CPU and waited.
        Ok(())
    })?;
    let stall = stats.stall.memcg_reclaim_nano_seconds;
    context.figure("memcg_reclaim_stall", stall as f64 / 1e6, "ms");
    node.finish()
}

/// Whether files of `dir` can leave the page cache: neither tmpfs nor ramfs (linux/magic.h).
pub(super) fn is_on_disk(dir: &std::path::Path) -> Result<bool> {
    const RAMFS: FsType = FsType(0x8584_58f6);
    let kind = statfs(dir)?.filesystem_type();
    Ok(![TMPFS_MAGIC, RAMFS].contains(&kind))
}
