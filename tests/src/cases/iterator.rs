//! Figures that the kernel gathers of every cgroup in one pass, beside its files.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{MemoryStats, NodeStats, ThrottlingStats};
use podwarden_cgroup::Controller;

use super::{Case, Context, case};
use crate::harness::{Cgroup, Node, Options, Pod, PodSpec, Qos, Workload, eventually, until};

pub(super) const CASES: &[Case] = &[
    case("iterator_equals_files", iterator_equals_files),
    case("iterator_by_helpers", iterator_by_helpers),
    case("iterator_switched_off", iterator_switched_off),
];

const MIB: u64 = 1 << 20;

/// A figure that nothing changes any more is the file's, to the byte.
fn ensure_same<T: Copy + PartialEq + std::fmt::Debug>(what: &str, found: T, file: T) -> Result<()> {
    ensure!(found == file, "{what} is {found:?}, the file says {file:?}");
    Ok(())
}

fn same_memory(found: Option<&MemoryStats>, cgroup: &Cgroup) -> Result<()> {
    let found = found.context("no memory")?;
    let file = cgroup.memory()?;
    ensure_same("usageBytes", found.usage_bytes, file.usage)?;
    ensure_same(
        "workingSetBytes",
        found.working_set_bytes,
        file.working_set(),
    )?;
    ensure_same("rssBytes", found.rss_bytes, file.rss)?;
    ensure_same("sharedBytes", found.shared_bytes, file.shared)?;
    let limit = fs::read_to_string(cgroup.memory_limit_file())?;
    // v1 has the largest number of pages for none.
    let limit = limit.trim().parse().ok().filter(|bytes| *bytes < 1 << 62);
    ensure_same("limitBytes", found.limit_bytes, limit)
}

/// What the files have beside that, and podwarden does not read from them.
fn same_extras(found: Option<&MemoryStats>, cgroup: &Cgroup) -> Result<()> {
    let found = found.context("no memory")?;
    let (peak, prefix) = match cgroup.mounts().memory_on_v2() {
        true => ("memory.peak", ""),
        false => ("memory.max_usage_in_bytes", "total_"),
    };
    let dir = cgroup.mounts().memory().join(cgroup.path());
    let peak = fs::read_to_string(dir.join(peak))?.trim().parse()?;
    ensure_same("peakBytes", found.peak_bytes, Some(peak))?;
    let text = fs::read_to_string(dir.join("memory.stat"))?;
    let field = |name: &str| -> Option<u64> {
        let mut lines = text.lines();
        lines.find_map(|line| {
            line.strip_prefix(prefix)?
                .strip_prefix(name)?
                .trim()
                .parse()
                .ok()
        })
    };
    ensure_same("pageFaults", found.page_faults, field("pgfault "))?;
    ensure_same(
        "majorPageFaults",
        found.major_page_faults,
        field("pgmajfault "),
    )
}

/// What `cpu.stat` says of throttling.
fn throttling(cgroup: &Cgroup) -> Result<ThrottlingStats> {
    let mounts = cgroup.mounts();
    let mount = mounts.of(Controller::Cpu).context("no CPU controller")?;
    let text = fs::read_to_string(mount.join(cgroup.path()).join("cpu.stat"))?;
    let field = |name: &str| -> Result<u64> {
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("no {name}"))?.parse()?)
    };
    Ok(ThrottlingStats {
        periods: field("nr_periods")?,
        throttled_periods: field("nr_throttled")?,
        throttled_nano_seconds: match mounts.is_on_v2(Controller::Cpu) {
            true => field("throttled_usec")? * 1000,
            false => field("throttled_time")?,
        },
    })
}

fn same_pod(node: &Node, pod: &Pod) -> Result<()> {
    let same = node.expect(pod.uid(), |stats| {
        same_memory(stats.memory.as_ref(), &pod.cgroup)?;
        let main = stats.containers.first().context("no container")?;
        same_memory(main.memory.as_ref(), &pod.main)
    });
    same.with_context(|| pod.spec.name.clone()).map(drop)
}

/// The pod's own cgroup has the quota.
fn same_throttling(node: &Node, pod: &Pod) -> Result<()> {
    let stats = node.expect(pod.uid(), |stats| {
        let found = stats.cpu.throttling.context("no throttling")?;
        let mut file = throttling(&pod.cgroup)?;
        let below = throttling(&pod.main)?;
        file.periods += below.periods;
        file.throttled_periods += below.throttled_periods;
        file.throttled_nano_seconds += below.throttled_nano_seconds;
        ensure_same("periods", found.periods, file.periods)?;
        ensure_same(
            "throttledPeriods",
            found.throttled_periods,
            file.throttled_periods,
        )?;
        // v2 rounds down to whole microseconds, of two cgroups here.
        let gap = found
            .throttled_nano_seconds
            .abs_diff(file.throttled_nano_seconds);
        ensure!(gap < 2000, "throttledNanoSeconds: {found:?}, {file:?}");
        Ok(())
    })?;
    let throttled = stats.cpu.throttling.context("no throttling")?;
    ensure!(throttled.throttled_periods > 0, "{throttled:?}");
    Ok(())
}

fn iterator_equals_files(context: &Context) -> Result<()> {
    equals_files(context, &Options::default())
}

/// As kernels before 6.2 read.
fn iterator_by_helpers(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_DISABLE".to_owned(), "casts".to_owned())],
        ..Options::default()
    };
    equals_files(context, &options)
}

fn equals_files(context: &Context, options: &Options) -> Result<()> {
    let node = Node::start(context, options)?;
    let pods = node.pods(vec![
        PodSpec::new("throttled", Qos::Guaranteed, "20m", "64Mi"),
        PodSpec::burstable("nested", "64Mi"),
        PodSpec::limited("limited", "128Mi"),
        PodSpec::best_effort("cache"),
        PodSpec::best_effort("empty"),
    ])?;
    let gone = node.pod(PodSpec::best_effort("gone"))?;
    let file = node.sandbox.dir().join("file").display().to_string();
    // On cgroup v2 a cgroup has processes or children with controllers, not both.
    let nested = ["first", "second"].map(|name| pods[1].main.child(name));
    nested.iter().try_for_each(Cgroup::create)?;
    let burn = pods[0].start(&["burn", "--for-ms", "60000"])?;
    let held = [
        Workload::start(&nested[0], &["anon", "--mib", "24"])?,
        Workload::start(&nested[1], &["anon", "--mib", "24"])?,
        pods[2].start(&["anon", "--mib", "64"])?,
        pods[3].start(&[
            "cache",
            "--mib",
            "32",
            "--for-ms",
            "1500",
            "--hold-ms",
            "600000",
            "--file",
            &file,
        ])?,
    ];
    for (pod, least) in pods.iter().zip([0, 48, 64, 32]) {
        until(node.limit(), "the workloads' memory", || {
            pod.cgroup
                .memory()
                .is_ok_and(|memory| memory.usage >= least * MIB)
        })?;
    }
    until(node.limit(), "throttling", || {
        [&pods[0].cgroup, &pods[0].main]
            .iter()
            .any(|cgroup| throttling(cgroup).is_ok_and(|t| t.throttled_periods > 2))
    })?;
    drop(burn);
    node.withdraw(&gone.spec)?;
    gone.main.remove()?;
    until(node.limit(), "the withdrawn pod's end", || {
        !gone.cgroup.exists()
    })?;
    let NodeStats {
        sampling,
        degradations,
        ..
    } = node.agent.node()?;
    ensure!(
        sampling.source == "iterator"
            && !degradations.iter().any(|d| d.contains("over the cgroups")),
        "{sampling:?}: {degradations:?}"
    );
    ensure!(sampling.without_room == 0, "{sampling:?}");
    for pod in &pods {
        same_pod(&node, pod)?;
        let same = node.expect(pod.uid(), |stats| {
            same_extras(stats.memory.as_ref(), &pod.cgroup)
        });
        same.with_context(|| pod.spec.name.clone())?;
    }
    same_throttling(&node, &pods[0])?;
    for tier in node.agent.node()?.tiers {
        ensure!(tier.memory.is_some(), "{} has no memory", tier.name);
    }
    // kubepods, two tiers, the pods and their containers; what is nested in a container counts to it.
    let mounts = &node.sandbox.mounts;
    let hierarchies: BTreeSet<_> = [Controller::Memory, Controller::Cpu]
        .iter()
        .filter_map(|controller| mounts.of(*controller))
        .collect();
    let expected = hierarchies.len() * (1 + 2 + 2 * pods.len());
    let sampling = eventually(node.limit(), || {
        let sampling = node.agent.node()?.sampling;
        ensure!(
            sampling.cgroups == expected as u64,
            "{sampling:?}, not {expected}"
        );
        Ok(sampling)
    })?;
    let took = sampling.duration_nano_seconds.context("no duration")?;
    context.figure("pass", Duration::from_nanos(took).as_secs_f64() * 1e6, "us");
    ensure!(sampling.source == "iterator", "{sampling:?} at the end");
    drop(held);
    for cgroup in &nested {
        eventually(node.limit(), || cgroup.remove())?;
    }
    node.finish()
}

fn iterator_switched_off(context: &Context) -> Result<()> {
    let options = Options {
        env: vec![("PODWARDEN_DISABLE".to_owned(), "iterator".to_owned())],
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    let pod = node.pod(PodSpec::limited("limited", "128Mi"))?;
    let held = pod.start(&["anon", "--mib", "32"])?;
    until(node.limit(), "the workload's memory", || {
        pod.cgroup
            .memory()
            .is_ok_and(|memory| memory.usage >= 32 * MIB)
    })?;
    same_pod(&node, &pod)?;
    let stats = node.agent.node()?;
    ensure!(stats.sampling.source == "files", "{:?}", stats.sampling);
    ensure!(
        stats
            .degradations
            .iter()
            .any(|d| d.contains("file by file")),
        "{:?}",
        stats.degradations
    );
    drop(held);
    node.finish()
}
