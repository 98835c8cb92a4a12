//! Page cache that a pod does not use is given back before anything needs it; what a pod uses stays.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::ProactiveReclaimStats;

use super::memory::is_on_disk;
use super::{Case, Context, case, skip};
use crate::harness::{Node, Options, Pod, PodSpec, Workload, eventually, sleep};

pub(super) const CASES: &[Case] = &[case("cold_cache_is_given_back", cold_cache_is_given_back)];

const MIB: u64 = 1 << 20;
const COLD_MIB: u64 = 128;
const WARM_MIB: u64 = 48;
/// What a pod that reads it all again and again may lose until it is seen.
const PROBES: u64 = WARM_MIB * MIB / 2;
/// For so long it is looked at while it rests.
const RESTS: Duration = Duration::from_secs(4);

fn cold_cache_is_given_back(context: &Context) -> Result<()> {
    if !Path::new("/proc/pressure/memory").exists() {
        return skip("this kernel runs without PSI");
    }
    let options = Options {
        config: "colocation: {memoryReclaimStrategy: {enable: true, intervalSeconds: 1, stepPercent: 10}}\n"
            .to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    if !node.kubepods().mounts().memory_on_v2() {
        let degradations = node.agent.node()?.degradations;
        let said = |one: &String| one.starts_with("no pod gives back page cache");
        ensure!(degradations.iter().any(said), "{degradations:?}");
        node.finish()?;
        return skip("the memory controller is on cgroup v1, which has no memory.reclaim");
    }
    if !is_on_disk(node.sandbox.dir())? {
        return skip("page cache cannot be reclaimed here: /var/tmp is not on a disk");
    }
    let pods = node.pods(vec![
        PodSpec::best_effort("cold"),
        PodSpec::best_effort("warm"),
        PodSpec::burstable("service", "16Mi"),
    ])?;
    let [cold, warm, service] = pods.as_slice() else {
        anyhow::bail!("three specs make three pods");
    };
    let running = [
        caching(&node, warm, WARM_MIB, true)?,
        caching(&node, cold, COLD_MIB, false)?,
        caching(&node, service, WARM_MIB, false)?,
    ];

    let asked = COLD_MIB * MIB / 100 * 30;
    let given = eventually(context.limit(90), || {
        let given = given(&node, cold)?.context("it was not asked")?;
        ensure!(given.reclaimed_bytes >= asked, "{given:?}");
        Ok(given)
    })?;
    let stats = node.agent.pod(cold.uid())?;
    let memory = stats.memory.context("no memory")?;
    let faults = memory.page_faults.unwrap_or_default();
    context.figure(
        "given_back",
        given.reclaimed_bytes as f64 / MIB as f64,
        "MiB",
    );
    context.figure("refaults", given.refaults as f64, "");
    ensure!(
        given.refaults * 1_000 <= faults,
        "{given:?} and {faults} page faults"
    );
    ensure!(
        memory.usage_bytes < (COLD_MIB * MIB).saturating_sub(asked / 2),
        "{memory:?}"
    );

    let seen = eventually(node.limit(), || {
        let seen = self::given(&node, warm)?.context("it was not asked")?;
        ensure!(seen.refaults > 0 && seen.last == "resting", "{seen:?}");
        Ok(seen)
    })?;
    sleep(RESTS)?;
    let after = self::given(&node, warm)?.context("it was not asked")?;
    let usage = warm.cgroup.memory()?.usage;
    context.figure(
        "warm_given_back",
        seen.reclaimed_bytes as f64 / MIB as f64,
        "MiB",
    );
    ensure!(seen.reclaimed_bytes <= PROBES, "{seen:?}");
    ensure!(
        after.reclaimed_bytes == seen.reclaimed_bytes,
        "{seen:?}, then {after:?}"
    );
    ensure!(
        usage >= WARM_MIB * MIB,
        "{usage} bytes are left of what it reads"
    );
    let untouched = self::given(&node, service)?;
    ensure!(untouched.is_none(), "{untouched:?}");
    drop(running);
    node.finish()
}

fn given(node: &Node, pod: &Pod) -> Result<Option<ProactiveReclaimStats>> {
    Ok(node.agent.pod(pod.uid())?.proactive_reclaim)
}

/// Writes a file, and reads it again and again or never; waits until it is written. The agent may have some of it given
/// back by then.
fn caching(node: &Node, pod: &Pod, mib: u64, reads: bool) -> Result<Workload> {
    let file = node.sandbox.dir().join(&pod.spec.name);
    let (name, mib_text) = (file.display().to_string(), mib.to_string());
    let times = match reads {
        true => ["--pause-ms", "20"],
        false => ["--for-ms", "0"],
    };
    let cache = ["cache", "--mib", &mib_text, "--file", &name];
    let args = [&cache[..], &times, &["--hold-ms", "600000"]].concat();
    let mut started = pod.start(&args)?;
    eventually(node.limit(), || {
        ensure!(started.is_alive(), "the process has ended");
        let written = std::fs::metadata(&file)?.len();
        ensure!(written >= mib * MIB, "{written} bytes of {mib} MiB");
        Ok(())
    })?;
    Ok(started)
}
