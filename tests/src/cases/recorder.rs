//! The flight recorder: what is known of an eviction outlives the agent, and never stands in its way.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;
use podwarden::api::types::{Curve, EventKind, EventRecord, Eviction};

use super::eviction::{Scene, small};
use super::{Case, Context, portable, skip};
use crate::harness::{Agent, Node, Options, PodSpec, Traced, eventually, sleep};
pub(super) use full_disk::SmallDisk;
use full_disk::full_disk;

mod full_disk;

pub(super) const CASES: &[Case] = &[
    portable(
        "recorder_keeps_an_eviction_across_kill_9",
        keeps_an_eviction_across_kill_9,
    ),
    portable(
        "recorder_tells_of_an_interrupted_eviction",
        tells_of_an_interrupted_eviction,
    ),
    portable("recorder_full_disk", full_disk),
    portable("recorder_kernel_oom", kernel_oom),
];

const MIB: u64 = 1 << 20;

/// The small node with an event log at `path`.
pub(super) fn logging(path: &Path) -> Options {
    Options {
        config: format!("eventLog: {{path: {}, maxSize: 1Mi}}\n", path.display()),
        ..small("enforce")
    }
}

/// An agent in place of one that has ended.
pub(super) fn restart(context: &Context, node: &mut Node, options: &Options) -> Result<()> {
    node.agent = Agent::spawn(context.agent(), &node.sandbox, options)?;
    context.watch(&node.agent.log);
    node.agent.wait_ready(context.limit(30))
}

/// Until the agent has looked again at an evicted pod and found no process: within 64 ms, and later where it is
/// emulated. It takes a process that is there at that look for a fork of the evicted, and kills it.
const LOOKED_AFTER: Duration = Duration::from_millis(500);

/// Lets the hog be evicted; its id and what is said of it. It may be evicted again then.
fn evict(context: &Context, scene: &Scene, after: u64) -> Result<(u64, Eviction)> {
    let (mut hog, _stamps) = scene.start_hog(64 * MIB, 500)?;
    hog.wait(context.limit(30))
        .context("the hog was not killed")?;
    let evicted = eventually(scene.node.limit(), || {
        let events = scene.node.agent.events(after)?;
        let found = events.into_iter().find_map(|event| match event.kind {
            EventKind::Eviction(eviction) => Some((event.id, *eviction)),
            _ => None,
        });
        found.context("no eviction is reported")
    })?;
    sleep(LOOKED_AFTER)?;
    Ok(evicted)
}

/// The lines of a log that hold an event; an error when there is anything but whole lines.
pub(super) fn records(path: &Path) -> Result<Vec<EventRecord>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        text.is_empty() || text.ends_with('\n'),
        "the last line is torn"
    );
    let mut records = Vec::new();
    for line in text.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).with_context(|| format!("line {line}"))?;
        // Ids that are given out, and evictions that are under way.
        if value.get("idsReservedTo").is_none() && value.get("begun").is_none() {
            let record = serde_json::from_value(value).with_context(|| format!("line {line}"))?;
            records.push(record);
        }
    }
    Ok(records)
}

/// The curves show the pod grow up to the crossing and end free, and it ranks first.
fn ensure_flight(record: &EventRecord, eviction: &Eviction) -> Result<()> {
    let flight = record.flight_record.as_ref().context("no flight")?;
    let of_pod = |curve: &&Curve| curve.pod.as_ref() == Some(&eviction.pod);
    let own = flight.curves.iter().find(of_pod).context("no curve")?;
    ensure!(
        own.offset_nanos.is_sorted() && own.offset_nanos.len() == own.usage_bytes.len(),
        "not a curve: {own:?}"
    );
    let (most, last) = (own.usage_bytes.iter().max(), own.usage_bytes.last());
    ensure!(
        most >= Some(&eviction.victim_usage_bytes)
            && last < Some(&(eviction.victim_usage_bytes / 5)),
        "the victim used {} bytes: {own:?}",
        eviction.victim_usage_bytes
    );
    // The reactor's own readings between the crossing and the end.
    let freed = eviction.timeline.freed_nanos.context("not seen freed")?;
    let end = i64::try_from(freed - flight.origin_nanos)?;
    let between = |at: &&i64| (0..=end).contains(*at);
    ensure!(
        own.offset_nanos.iter().filter(between).count() >= 3,
        "nothing is known between crossing and freed: {own:?}"
    );
    let scope = flight.curves.iter().any(|curve| {
        curve
            .scope
            .is_some_and(|scope| scope.as_str() == "kubepods")
    });
    ensure!(
        scope && flight.signal.as_str() == "allocatableMemory.available",
        "{flight:?}"
    );
    let first = flight.ranking.first().context("no ranking")?;
    ensure!(
        first.pod == eviction.pod && first.reason == eviction.reason && flight.candidates >= 2,
        "ranked: {:?}",
        flight.ranking
    );
    Ok(())
}

fn keeps_an_eviction_across_kill_9(context: &Context) -> Result<()> {
    // The log's directory is for the agent to make.
    let home = tempfile::tempdir_in("/var/tmp")?;
    let path = home.path().join("log/events.jsonl");
    let options = logging(&path);
    let mut scene = Scene::new(context, &options)?;
    let (id, eviction) = evict(context, &scene, 0)?;
    // Its line is there at once, and again with the curves a second later.
    eventually(context.limit(10), || {
        let records = records(&path)?;
        let own = || records.iter().filter(|record| record.event.id == id);
        ensure!(own().count() > 0, "event {id} is not in the log");
        ensure!(
            own().any(|record| record.flight_record.is_some()),
            "event {id} has no curves in the log"
        );
        Ok(())
    })?;
    let seen = scene.node.agent.events(0)?;
    scene.node.agent.signal(Signal::SIGKILL)?;
    scene.node.agent.wait(scene.node.limit())?;
    // As a power cut would leave it.
    let mut torn = File::options().append(true).open(&path)?;
    torn.write_all(b"{\"id\":999,\"time\":\"20")?;
    drop(torn);

    restart(context, &mut scene.node, &options)?;
    ensure!(
        scene.node.agent.log.text().contains("skipped"),
        "the torn line is not spoken of"
    );
    let after = scene.node.agent.events(0)?;
    let kept = after.iter().find(|event| event.id == id);
    ensure!(
        kept.is_some_and(|event| event.kind == EventKind::Eviction(Box::new(eviction.clone()))),
        "the eviction is not what it was: {kept:?}"
    );
    let last = seen.last().map_or(0, |event| event.id);
    ensure!(
        after
            .iter()
            .filter(|event| event.id != id)
            .all(|event| event.id > last),
        "an id was given out twice: {last} was the last"
    );
    let record: EventRecord = scene.node.agent.get(&format!("/v1/events/{id}"))?;
    ensure!(record.event.id == id, "another record: {record:?}");
    ensure_flight(&record, &eviction)?;
    let evictions = after
        .iter()
        .filter(|event| matches!(event.kind, EventKind::Eviction(_)));
    ensure!(evictions.count() == 1, "told twice: {after:?}");
    let socket = scene.node.agent.socket().display().to_string();
    let text = podwarden(context, &["events", "--api-socket", &socket])?;
    ensure!(text.contains("EVICTED e2e/hog"), "podwarden events: {text}");
    // It stays evicted, the others do not become it.
    for pod in scene.node.agent.pods()? {
        let expected = match pod.pod_ref.uid == scene.hog.uid() {
            true => "Evicted",
            false => "Running",
        };
        ensure!(pod.phase == expected, "{:?}: {}", pod.pod_ref, pod.phase);
    }
    // Its pod is a candidate again, and so is the log.
    let (again, _) = evict(context, &scene, last)?;
    ensure!(again > last, "ids went back: {again} after {last}");
    eventually(context.limit(5), || {
        let ids: Vec<_> = records(&path)?.iter().map(|r| r.event.id).collect();
        ensure!(
            ids.contains(&id) && ids.contains(&again),
            "the log has {ids:?}"
        );
        Ok(())
    })?;
    scene.ensure_bystanders_alive()?;
    scene.finish()
}

/// What `podwarden` prints.
fn podwarden(context: &Context, args: &[&str]) -> Result<String> {
    let output = Command::new(context.agent()).args(args).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "podwarden {args:?}: {} {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

/// An agent that dies between the kill and the end of the wait has reported nothing: the next one reports it.
fn tells_of_an_interrupted_eviction(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let path = home.path().join("events.jsonl");
    let options = logging(&path);
    let mut scene = Scene::new(context, &options)?;
    let last = scene.node.agent.events(0)?.last().map_or(0, |e| e.id);
    let mut reactor = Traced::thread(scene.node.agent.pid(), "reactor")?;
    let (mut hog, _stamps) = scene.start_hog(64 * MIB, 500)?;
    // The reactor rings at the crossing, at the kill, and a third time when the memory is free.
    let mut rung = 0;
    while rung < 3 {
        let call = reactor.next_call(context.limit(20))?;
        let call = call.context("the reactor does nothing")?;
        rung += u32::from(call.number == libc::SYS_write && call.file == "anon_inode:[eventfd]");
    }
    hog.wait(context.limit(20))?;
    eventually(scene.node.limit(), || {
        let text = fs::read_to_string(&path)?;
        ensure!(text.contains("\"begun\""), "the log has {text}");
        Ok(())
    })?;
    ensure!(records(&path)?.is_empty(), "told before it is over");
    scene.node.agent.signal(Signal::SIGKILL)?;
    reactor.killed()?;
    scene.node.agent.wait(scene.node.limit())?;

    // Told once, also by the agent after the next.
    for _ in 0..2 {
        restart(context, &mut scene.node, &options)?;
        let (evictions, _) = scene.evictions(0)?;
        let [eviction] = &evictions[..] else {
            bail!("{} evictions: {evictions:?}", evictions.len());
        };
        let line = &eviction.timeline;
        ensure!(
            eviction.interrupted && line.killed_nanos.is_some() && line.freed_nanos.is_none(),
            "{eviction:?}"
        );
        ensure!(eviction.pod.uid == scene.hog.uid(), "{eviction:?}");
        let told = eventually(scene.node.limit(), || {
            records(&path)?.pop().context("it is not in the log")
        })?;
        ensure!(told.event.id > last, "{} after {last}", told.event.id);
        let socket = scene.node.agent.socket().display().to_string();
        let id = told.event.id.to_string();
        for args in [
            &["events", "--api-socket", &socket, &id][..],
            &["events", &id, "--event-log", &path.display().to_string()],
        ] {
            let text = podwarden(context, args)?;
            ensure!(
                text.contains("EVICTED e2e/hog") && text.contains("the agent ended before"),
                "{args:?}: {text}"
            );
        }
        scene.node.agent.signal(Signal::SIGKILL)?;
        scene.node.agent.wait(scene.node.limit())?;
    }
    restart(context, &mut scene.node, &options)?;
    scene.ensure_bystanders_alive()?;
    scene.finish()
}

/// The kernel was faster, at a pod's own limit: what led to it is kept all the same.
fn kernel_oom(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let path = home.path().join("events.jsonl");
    let node = Node::start(context, &logging(&path))?;
    if node.agent.node()?.profile == "sampling" {
        return skip("without kernel programs the kernel's OOM killer is not seen");
    }
    let pod = node.pod(PodSpec::limited("limited", "32Mi"))?;
    // On a busy machine agent and filler pause for as long as a second, and the filler makes up for it at once.
    let mut hog = pod.start(&["fill", "--mib", "64", "--rate", "10"])?;
    ensure!(!hog.wait(node.limit())?.success(), "it was not killed");
    let record = eventually(2 * node.limit(), || {
        let with_curves = |record: &EventRecord| record.flight_record.is_some();
        let found = records(&path)?.into_iter().find(with_curves);
        found.context("no record with curves")
    })?;
    ensure!(
        record.event.kind == EventKind::KernelOom { pid: hog.pid() },
        "{record:?}"
    );
    let flight = record.flight_record.as_ref().context("no flight")?;
    let of_pod = |curve: &&Curve| curve.pod.as_ref().is_some_and(|of| of.uid == pod.uid());
    let own = flight.curves.iter().find(of_pod).context("no curve")?;
    ensure!(
        flight.signal.as_str() == "memory.limit"
            && own.usage_bytes.iter().any(|bytes| *bytes > 16 * MIB),
        "{flight:?}"
    );
    let exit = flight.exits.iter().find(|exit| exit.pid == hog.pid());
    ensure!(
        exit.is_some_and(|exit| exit.signal == Some(9)),
        "exits: {:?}",
        flight.exits
    );
    let socket = node.agent.socket().display().to_string();
    let id = record.event.id.to_string();
    let text = podwarden(context, &["events", "--api-socket", &socket, &id])?;
    ensure!(
        text.contains("OOM killer") && text.contains("memory.limit"),
        "{text}"
    );
    node.finish()
}
