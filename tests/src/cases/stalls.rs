//! Tasks that wait for memory (PSI): a signal of its own, where no level is crossed.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{Case, Context, case, skip};
use crate::harness::{Node, Options, PodSpec, eventually, until};

pub(super) const CASES: &[Case] = &[case("stalls_evict", stalls_evict)];

const MIB: u64 = 1 << 20;

/// No level at all: pods have all of the limit, and page cache that does not fit in what is left of it is
/// read again and again.
fn stalls_evict(context: &Context) -> Result<()> {
    if !Path::new("/proc/pressure/memory").exists() {
        return skip("this kernel runs without PSI");
    }
    let options = Options {
        memory: "192Mi".to_owned(),
        eviction_hard: Some("0%".to_owned()),
        // A window that also an agent without CAP_SYS_RESOURCE may have.
        config: "pressure: {memory: {some: 5ms/2s}}\n".to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let pods = node.pods(vec![
        PodSpec::best_effort("victim"),
        PodSpec::guaranteed("reader", "180Mi"),
        PodSpec::best_effort("tiny"),
    ])?;
    let [victim, reader, tiny] = &pods[..] else {
        anyhow::bail!("three pods");
    };
    let held = victim.start(&["anon", "--mib", "128"])?;
    let mut small = tiny.start(&["anon", "--mib", "1"])?;
    until(node.limit(), "the victim's memory", || {
        let memory = victim.cgroup.memory();
        memory.is_ok_and(|memory| memory.rss >= 128 * MIB)
    })?;
    let file = node.sandbox.dir().join("cached");
    let path = file.display().to_string();
    let cache = reader.start(&["cache", "--mib", "96", "--file", &path, "--pause-ms", "0"])?;
    let eviction = eventually(context.limit(30), || {
        let found = node.agent.evictions()?;
        let first = found.into_iter().next();
        first.ok_or_else(|| anyhow::anyhow!("no pod was evicted"))
    })?;
    ensure!(
        eviction.pod.uid == victim.uid() && eviction.scope.as_str() == "pressure",
        "{eviction:?}"
    );
    ensure!(
        eviction.detected_by == Some(podwarden_policy::signal::Detector::PsiSome),
        "{eviction:?}"
    );
    ensure!(small.is_alive(), "one that frees nothing was killed");
    ensure!(
        node.kubepods().oom_kills()? == 0,
        "the kernel killed a process"
    );
    drop((held, small, cache));
    node.finish()
}
