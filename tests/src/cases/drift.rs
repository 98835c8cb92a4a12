//! What others write to files that the agent keeps.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::types::{Event, EventKind, ForeignWriteStats};
use podwarden_policy::drift::{BURST, FIRST_PAUSE, LONGEST_PAUSE, REFILL};
use podwarden_policy::{Bytes, reserve};

use super::{Case, Context, case, portable};
use crate::harness::{
    Cgroup, Node, Options, Pod, PodSpec, Workload, check_interrupt, eventually, monotonic, sleep,
};

pub(super) const CASES: &[Case] = &[
    case("foreign_writes_are_corrected", foreign_writes_are_corrected),
    portable(
        "foreign_writes_to_a_reserve_are_corrected",
        foreign_writes_to_a_reserve_are_corrected,
    ),
    portable(
        "insisting_writer_is_no_write_fight",
        insisting_writer_is_no_write_fight,
    ),
    case("assist_fights_nothing", assist_fights_nothing),
    case("oom_score_adj_of_processes", oom_score_adj_of_processes),
];

/// What somebody else may write, by file; each is on one version only, or the same on both.
const FOREIGN: [(&str, &str); 9] = [
    ("cpu.shares", "777"),
    ("cpu.weight", "77"),
    ("cpu.cfs_quota_us", "77000"),
    ("cpu.max", "77000 100000"),
    ("memory.limit_in_bytes", "3221225472"),
    ("memory.max", "3221225472"),
    ("memory.min", "8388608"),
    ("memory.low", "8388608"),
    ("pids.max", "7777"),
];

/// A file of a cgroup, what the agent keeps in it, and what another writes.
#[derive(Debug, Clone)]
struct File {
    path: PathBuf,
    kept: String,
    foreign: &'static str,
}

impl File {
    fn read(&self) -> Result<String> {
        read(&self.path)
    }

    fn is_kept(&self) -> Result<bool> {
        Ok(self.read()? == self.kept)
    }

    fn spoil(&self) -> Result<()> {
        fs::write(&self.path, self.foreign)
            .with_context(|| format!("write {} to {}", self.foreign, self.path.display()))
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// The files of a cgroup whose names pass, with what is in them now.
fn files(cgroup: &Cgroup, pass: impl Fn(&str) -> bool) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for dir in cgroup.dirs() {
        for (name, foreign) in FOREIGN {
            let path = dir.join(name);
            if pass(name) && path.exists() {
                let kept = read(&path)?;
                files.push(File {
                    path,
                    kept,
                    foreign,
                });
            }
        }
    }
    Ok(files)
}

fn is_limit(name: &str) -> bool {
    matches!(name, "memory.limit_in_bytes" | "memory.max")
}

fn is_reservation(name: &str) -> bool {
    matches!(name, "memory.min" | "memory.low")
}

fn is_share(name: &str) -> bool {
    matches!(name, "cpu.shares" | "cpu.weight")
}

fn mixed(count: usize) -> Vec<PodSpec> {
    let spec = |n: usize| match n % 3 {
        0 => PodSpec::guaranteed(&format!("g{n}"), "64Mi"),
        1 => PodSpec::burstable(&format!("b{n}"), "32Mi"),
        _ => PodSpec::best_effort(&format!("e{n}")),
    };
    (0..count).map(spec).collect()
}

/// Every file that the agent keeps, of every pod and tier.
fn kept_files(node: &Node, pods: &[Pod]) -> Result<Vec<File>> {
    let of_tier = |name: &str| is_limit(name) || is_share(name);
    let mut all = files(&node.kubepods(), of_tier)?;
    for tier in ["burstable", "besteffort"] {
        all.extend(files(&node.tier(tier)?, of_tier)?);
    }
    for pod in pods {
        all.extend(files(&pod.cgroup, |_| true)?);
    }
    Ok(all)
}

fn corrected(drift: &ForeignWriteStats) -> u64 {
    drift.properties.iter().map(|count| count.corrected).sum()
}

/// The agent's own figure, which is as old as its last sampling pass.
fn drift_of(node: &Node) -> Result<ForeignWriteStats> {
    Ok(node.agent.node()?.foreign_writes)
}

fn foreign_writes_are_corrected(context: &Context) -> Result<()> {
    const WRITES: usize = 50;
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(mixed(15))?;
    let seed = monotonic();
    let mut files = kept_files(&node, &pods)?;
    let mut random = fastrand::Rng::with_seed(seed);
    random.shuffle(&mut files);
    // The tiers' are always among them: another part of the agent writes those limits.
    files.sort_by_key(|file| !is_of_tier(&file.path));
    ensure!(
        files.len() >= WRITES,
        "{} files are too few: {files:?}",
        files.len()
    );
    files.truncate(WRITES);
    random.shuffle(&mut files);
    let mut times = Vec::with_capacity(WRITES);
    for file in &files {
        let time = correction(context, file).with_context(|| format!("seed {seed}"))?;
        times.push(time);
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    context.figure("correction_median", ms(times[WRITES / 2]), "ms");
    context.figure("correction_p90", ms(times[WRITES * 9 / 10]), "ms");
    context.figure("correction_worst", ms(times[WRITES - 1]), "ms");
    // A tier's is written by another thread than tells of it.
    eventually(node.limit(), || {
        let told = drift_events(&node.agent.events(0)?).count();
        ensure!(
            told == WRITES,
            "{told} events about {WRITES} foreign writes, seed {seed}"
        );
        Ok(())
    })?;
    eventually(node.limit(), || {
        let drift = drift_of(&node)?;
        ensure!(corrected(&drift) == WRITES as u64, "{drift:?}");
        ensure!(drift.contested_files == 0, "{drift:?}");
        // kubepods, two tiers and the pods.
        ensure!(drift.watched_cgroups == 18, "{drift:?}");
        Ok(())
    })?;
    node.finish()
}

fn is_of_tier(path: &Path) -> bool {
    let tiers = ["burstable", "besteffort"];
    path.parent()
        .is_some_and(|cgroup| tiers.iter().any(|tier| cgroup.ends_with(tier)))
}

/// Writes the foreign value and waits until it is put right; how long that took.
fn correction(context: &Context, file: &File) -> Result<Duration> {
    let start = Instant::now();
    file.spoil()?;
    while !file.is_kept()? {
        check_interrupt()?;
        let (waited, found) = (start.elapsed(), file.read()?);
        ensure!(
            waited < context.limit(20),
            "{} still holds {found:?} and not {:?}",
            file.path.display(),
            file.kept
        );
        thread::sleep(Duration::from_micros(100));
    }
    Ok(start.elapsed())
}

/// Limits that follow a target are put right as well, up and down, and each foreign write is told once.
fn foreign_writes_to_a_reserve_are_corrected(context: &Context) -> Result<()> {
    const ROUNDS: usize = 2;
    let options = Options {
        memory: "8Gi".to_owned(),
        config: "qosReserved: {memory: 100%}\n".to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    // Targets on either side of the foreign value.
    node.pods(vec![
        PodSpec::guaranteed("g", "2Gi"),
        PodSpec::burstable("b", "4Gi"),
    ])?;
    let mut limits = Vec::new();
    for (tier, target) in [("burstable", 6), ("besteffort", 2)] {
        let limit = files(&node.tier(tier)?, is_limit)?;
        let limit = limit.into_iter().next().context("no limit")?;
        let kept = format!("{}\n", Bytes::gibi(target).0);
        eventually(node.limit(), || {
            let found = limit.read()?;
            ensure!(found == kept, "{tier} holds {found} and not {kept}");
            Ok(())
        })?;
        limits.push(File { kept, ..limit });
    }
    for _ in 0..ROUNDS {
        for limit in &limits {
            correction(context, limit)?;
        }
    }
    eventually(node.limit(), || {
        let told = drift_events(&node.agent.events(0)?).count();
        ensure!(told == 2 * ROUNDS, "{told} events");
        Ok(())
    })?;
    node.finish()
}

fn drift_events(events: &[Event]) -> impl Iterator<Item = &Event> {
    events.iter().filter(|event| {
        matches!(
            event.kind,
            EventKind::ForeignWrite {
                corrected: true,
                ..
            }
        )
    })
}

/// The most that the documented rate allows in `time`.
fn bound(time: Duration) -> u64 {
    let doublings = (LONGEST_PAUSE.as_secs() / FIRST_PAUSE.as_secs()).ilog2();
    u64::from(BURST)
        + time.as_secs() / REFILL.as_secs()
        + u64::from(doublings)
        + 1
        + time.as_secs() / LONGEST_PAUSE.as_secs()
}

fn insisting_writer_is_no_write_fight(context: &Context) -> Result<()> {
    const INSISTS: Duration = Duration::from_millis(2500);
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(mixed(3))?;
    let contested = &files(&pods[0].cgroup, is_limit)?[0];
    let other = &files(&pods[1].cgroup, is_share)?[0];
    let done = AtomicBool::new(false);
    let start = Instant::now();
    let cpu = node.agent.cpu_ns()?;
    let (writes, met) = thread::scope(|scope| -> Result<(u32, Duration)> {
        let writer = scope.spawn(|| insist(contested, &done));
        let met: Result<_> = (|| {
            sleep(INSISTS / 2)?;
            // Meanwhile others are not forgotten.
            let start = Instant::now();
            other.spoil()?;
            eventually(node.limit(), || {
                ensure!(other.is_kept()?, "it holds {}", other.read()?);
                Ok(())
            })?;
            let met = start.elapsed();
            sleep(INSISTS / 2)?;
            Ok(met)
        })();
        done.store(true, Ordering::Relaxed);
        let writes = writer
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("the writer panicked")));
        Ok((writes?, met?))
    })?;
    let cpu = node.agent.cpu_ns()? - cpu;
    let share = cpu as f64 / start.elapsed().as_nanos() as f64;
    context.figure("foreign_writes", f64::from(writes), "");
    context.figure("agent_cpu_meanwhile", share * 100.0, "%");
    context.figure("other_file_corrected", met.as_secs_f64() * 1e3, "ms");
    ensure!(writes > 500, "only {writes} writes are no fight");
    // One pause at the most after the last write.
    eventually(LONGEST_PAUSE, || {
        ensure!(contested.is_kept()?, "it holds {}", contested.read()?);
        Ok(())
    })?;
    let time = start.elapsed();
    let settled = eventually(LONGEST_PAUSE, || {
        let events = node.agent.events(0)?;
        ensure!(
            events.iter().any(is_settled),
            "no ForeignWriteSettled event"
        );
        Ok(events)
    })?;
    let begun = settled.iter().filter(|event| {
        matches!(&event.kind, EventKind::ForeignWriteContested { property, .. } if property == "memory limit")
    });
    ensure!(begun.count() == 1, "not one ForeignWriteContested event");
    let told = drift_events(&settled).count() as u64;
    ensure!(
        told <= u64::from(BURST) + time.as_secs() / REFILL.as_secs() + 1,
        "{told} events about single corrections"
    );
    eventually(node.limit(), || {
        let drift = drift_of(&node)?;
        let limits = drift
            .properties
            .iter()
            .find(|count| count.property == "memory limit");
        let limits = limits.context("no memory limit was corrected")?;
        ensure!(limits.contests == 1, "{limits:?}");
        ensure!(drift.contested_files == 0, "{drift:?}");
        ensure!(
            limits.corrected <= bound(time),
            "{limits:?} in {time:?}, at most {} are allowed",
            bound(time)
        );
        context.figure("corrections", limits.corrected as f64, "");
        Ok(())
    })?;
    node.finish()
}

fn is_settled(event: &Event) -> bool {
    matches!(event.kind, EventKind::ForeignWriteSettled { .. })
}

/// Writes the foreign value as fast as it can; returns how often.
fn insist(file: &File, done: &AtomicBool) -> Result<u32> {
    use std::io::Write as _;
    let open = fs::OpenOptions::new().write(true).open(&file.path);
    let mut open = open.with_context(|| format!("open {}", file.path.display()))?;
    let mut writes = 0;
    while !done.load(Ordering::Relaxed) {
        open.write_all(file.foreign.as_bytes())
            .with_context(|| format!("write to {}", file.path.display()))?;
        writes += 1;
    }
    Ok(writes)
}

/// What the kubelet's memory reservation gives the pods of `mixed` on v2, and their parents; nothing
/// on v1, which has no such files.
fn reservations(node: &Node, pods: &[Pod]) -> Result<Vec<File>> {
    let mut kept = files(&node.kubepods(), |name| name == "memory.min")?;
    kept.extend(files(&node.tier("burstable")?, |name| {
        name == "memory.low"
    })?);
    for pod in pods {
        for file in files(&pod.cgroup, is_reservation)? {
            let expected = match (pod.spec.qos.as_str(), file.path.ends_with("memory.min")) {
                ("Guaranteed", true) => Bytes::mebi(64),
                ("Burstable", false) => Bytes::mebi(32),
                _ => Bytes::ZERO,
            };
            let (found, path) = (file.kept.trim(), file.path.display());
            ensure!(found == expected.0.to_string(), "{path} holds {found}");
            kept.push(file);
        }
    }
    Ok(kept)
}

/// A kubelet owns the tree; the operator gave the tiers' memory to the agent, and the reservation
/// where there is one.
fn assist_fights_nothing(context: &Context) -> Result<()> {
    let options = Options {
        assist: true,
        config: "qosReserved: {memory: 50%}\nmemoryReservationPolicy: TieredReservation\n"
            .to_owned(),
        ..Options::default()
    };
    let node = Node::start(context, &options)?;
    for tier in ["burstable", "besteffort"] {
        node.kubepods().child(tier).create()?;
    }
    let pods = node.pods(mixed(6))?;
    let tiers = [node.tier("burstable")?, node.tier("besteffort")?];
    let machine = podwarden_policy::Node {
        memory_capacity: Bytes::gibi(16),
        ..podwarden_policy::Node::default()
    };
    let allocatable = reserve::allocatable(&machine).kubepods_memory;
    // Two pods each.
    let (guaranteed, burstable) = (Bytes::mebi(128), Bytes::mebi(64));
    let limits = reserve::tier_limits(allocatable, guaranteed, burstable, 50);
    let limits = [limits.burstable, limits.besteffort];
    let given: Vec<File> = eventually(node.limit(), || {
        let mut given = Vec::new();
        for (tier, limit) in tiers.iter().zip(limits) {
            given.extend(files(tier, is_limit)?);
            let found = given.last().context("no limit")?.kept.trim();
            ensure!(found == limit.0.to_string(), "{found} and not {}", limit.0);
        }
        given.extend(reservations(&node, &pods)?);
        Ok(given)
    })?;
    let mut foreign = files(&node.kubepods(), |_| true)?;
    for cgroup in tiers.iter().chain(pods.iter().map(|pod| &pod.cgroup)) {
        foreign.extend(files(cgroup, |_| true)?);
    }
    foreign.retain(|file| given.iter().all(|other| other.path != file.path));
    // A pod that the kubelet has not made a cgroup for yet, and one that only the kubelet knows.
    let unmade = node.manifest(&PodSpec::best_effort("unmade"))?;
    let unknown = node.tier("besteffort")?.child("podunknown");
    unknown.create()?;
    for file in &foreign {
        file.spoil()?;
    }
    let written: Vec<_> = foreign.iter().map(File::read).collect::<Result<_>>()?;
    let reconciles = node.agent.node()?.reconciles;
    for _ in 0..2 {
        for file in &given {
            file.spoil()?;
        }
        eventually(node.limit(), || {
            for file in &given {
                ensure!(
                    file.is_kept()?,
                    "{} holds {}",
                    file.path.display(),
                    file.read()?
                );
            }
            Ok(())
        })?;
        // And after a pass over the whole tree.
        node.pods(vec![PodSpec::best_effort("another")])?;
        eventually(node.limit(), || {
            ensure!(node.agent.node()?.reconciles > reconciles, "no pass yet");
            Ok(())
        })?;
    }
    for (file, written) in foreign.iter().zip(written) {
        let found = file.read()?;
        ensure!(
            found == written,
            "{} held {written:?}, now {found:?}",
            file.path.display()
        );
    }
    ensure!(!unmade.exists(), "it made a pod's cgroup");
    ensure!(unknown.exists(), "it removed a pod's cgroup");
    let events = node.agent.events(0)?;
    for event in drift_events(&events) {
        let ours = matches!(&event.kind, EventKind::ForeignWrite { cgroup, property, .. }
            if property == "memory limit" && !cgroup.contains("/pod")
                || property == "memory min"
                || property == "memory low");
        ensure!(ours, "{event:?}");
    }
    let told = drift_events(&events).count();
    let expected = 2 * given.len();
    ensure!(told == expected, "{told} corrections of {expected}");
    let own = node.kubepods();
    node.finish_with(&own)
}

fn score(pid: u32) -> Result<i32> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let text = read(Path::new(&path))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path}: {text:?}"))
}

/// Whether values may be lowered (capabilities(7): `CAP_SYS_RESOURCE` is number 24).
fn may_lower() -> Result<bool> {
    let status = read(Path::new("/proc/self/status"))?;
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .context("no CapEff")?;
    Ok(u64::from_str_radix(set.trim(), 16)? >> 24 & 1 == 1)
}

fn oom_score_adj_of_processes(context: &Context) -> Result<()> {
    let node = Node::start(context, &Options::default())?;
    let pods = node.pods(vec![
        PodSpec::guaranteed("guaranteed", "64Mi"),
        // 1000 - 1000 * 4 / 16.
        PodSpec::burstable("burstable", "4Gi"),
        PodSpec::best_effort("best-effort"),
    ])?;
    let sleeper = ["anon", "--mib", "2"];
    let expect = |pid: u32, expected: i32, what: &str| {
        eventually(node.limit(), || {
            let found = score(pid)?;
            ensure!(found == expected, "{what}: {found} and not {expected}");
            Ok(())
        })
    };
    let before = score(std::process::id())?;
    ensure!(
        before < 750,
        "this process has {before}: too high to see a change"
    );
    let guaranteed = if may_lower()? { -997 } else { before };
    let started: Vec<_> = pods
        .iter()
        .map(|pod| pod.start(&sleeper))
        .collect::<Result<_>>()?;
    let entered = Instant::now();
    expect(started[2].pid(), 1000, "the BestEffort pod's process")?;
    context.figure(
        "set_after_start",
        entered.elapsed().as_secs_f64() * 1e3,
        "ms",
    );
    expect(started[1].pid(), 750, "the Burstable pod's process")?;
    expect(started[0].pid(), guaranteed, "the Guaranteed pod's process")?;
    if !may_lower()? {
        eventually(node.limit(), || {
            let said = node.agent.node()?.degradations;
            let says = |text: &String| text.contains("oom_score_adj");
            ensure!(said.iter().filter(|t| says(t)).count() == 1, "{said:?}");
            Ok(())
        })?;
    }
    // A container that the manifest does not name, made when the pod runs already.
    let unnamed = pods[1].cgroup.child(&"5e2e".repeat(16));
    unnamed.create()?;
    let other = Workload::start(&unnamed, &sleeper)?;
    expect(other.pid(), 750, "an unnamed container's process")?;
    // What a process has chosen itself stays, also when others enter.
    let chosen = format!("/proc/{}/oom_score_adj", started[1].pid());
    fs::write(&chosen, "888").context("raise a process's value")?;
    let elsewhere = node.sandbox.root.child("elsewhere");
    elsewhere.create()?;
    let outside = Workload::start(&elsewhere, &sleeper)?;
    ensure!(
        score(outside.pid())? == before,
        "a process of no pod was touched"
    );
    pods[1].main.attach(outside.pid())?;
    expect(outside.pid(), 750, "a process that was moved in")?;
    ensure!(score(started[1].pid())? == 888, "a chosen value was undone");
    drop((started, other, outside));
    eventually(node.limit(), || elsewhere.remove())?;
    node.finish()
}
