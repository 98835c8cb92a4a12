//! The flight recorder: what is known of an eviction outlives the agent, and never stands in its way.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use podwarden::api::{Curve, EventKind, EventRecord, Eviction};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use super::eviction::{Scene, small};
use super::{Case, Context, portable};
use crate::harness::{Agent, Options, eventually};

pub(super) const CASES: &[Case] = &[
    portable(
        "recorder_keeps_an_eviction_across_kill_9",
        keeps_an_eviction_across_kill_9,
    ),
    portable("recorder_full_disk", full_disk),
];

const MIB: u64 = 1 << 20;

/// The small node with an event log at `path`.
fn logging(path: &Path) -> Options {
    Options {
        config: format!("eventLog: {{path: {}, maxSize: 1Mi}}\n", path.display()),
        ..small("enforce")
    }
}

/// An agent on a scene's root in place of one that has ended.
fn restart(context: &Context, scene: &mut Scene, options: &Options) -> Result<()> {
    scene.node.agent = Agent::spawn(context.agent(), &scene.node.sandbox, options)?;
    context.watch(&scene.node.agent.log);
    scene.node.agent.wait_ready(context.limit(30))
}

/// Lets the hog be evicted; its id and what is said of it.
fn evict(context: &Context, scene: &Scene, after: u64) -> Result<(u64, Eviction)> {
    let (mut hog, _stamps) = scene.start_hog(64 * MIB, 500)?;
    hog.wait(context.limit(30))
        .context("the hog was not killed")?;
    eventually(scene.node.limit(), || {
        let events = scene.node.agent.events(after)?;
        let found = events.into_iter().find_map(|event| match event.kind {
            EventKind::Eviction(eviction) => Some((event.id, *eviction)),
            _ => None,
        });
        found.context("no eviction is reported")
    })
}

/// The whole lines of a log that hold an event; an error when there is anything but whole lines.
fn records(path: &Path) -> Result<Vec<EventRecord>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    ensure!(
        text.is_empty() || text.ends_with('\n'),
        "the last line is torn"
    );
    let lines = text.lines().filter(|line| !line.contains("idsReservedTo"));
    lines
        .map(|line| serde_json::from_str(line).with_context(|| format!("line {line}")))
        .collect()
}

/// The curves show the pod grow up to the crossing and end free, and it ranks first.
fn ensure_flight(record: &EventRecord, eviction: &Eviction) -> Result<()> {
    let flight = record.flight.as_ref().context("no flight")?;
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
    let scope = flight
        .curves
        .iter()
        .any(|curve| curve.scope.as_deref() == Some("kubepods"));
    ensure!(scope && flight.signal == "memory.available", "{flight:?}");
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
            own().any(|record| record.flight.is_some()),
            "event {id} has no curves in the log"
        );
        Ok(())
    })?;
    let seen = scene.node.agent.events(0)?;
    scene.node.agent.signal(Signal::KILL)?;
    scene.node.agent.wait(scene.node.limit())?;
    // As a power cut would leave it.
    let mut torn = File::options().append(true).open(&path)?;
    torn.write_all(b"{\"id\":999,\"time\":\"20")?;
    drop(torn);

    restart(context, &mut scene, &options)?;
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
    scene.finish_restarted()
}

/// A file system of its own, as small as can be.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", &path, "tmpfs", flags, c"size=128k,mode=0700").context("mount a tmpfs")?;
        Ok(Self(path))
    }

    /// Takes all the room that is left.
    fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = File::create(&path)?;
        while file.write_all(&[0; 4096]).is_ok() {}
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0, UnmountFlags::DETACH) {
            eprintln!("left mounted: {}: {error}", self.0.display());
        }
    }
}

fn full_disk(context: &Context) -> Result<()> {
    let home = tempfile::tempdir_in("/var/tmp")?;
    let disk = SmallDisk::mount(home.path().join("disk"))?;
    let path = disk.0.join("events.jsonl");
    let filler = disk.fill()?;
    let mut scene = Scene::new(context, &logging(&path))?;
    // Nothing can be kept, and the eviction is as quick and as well reported as ever.
    let (first, eviction) = evict(context, &scene, 0)?;
    ensure!(
        !eviction.dry_run && eviction.timeline.killed_nanos.is_some(),
        "{eviction:?}"
    );
    let stats = eventually(scene.node.limit(), || {
        let node = scene.node.agent.node()?;
        let log = node.event_log.context("no event log")?;
        ensure!(log.dropped > 0, "nothing was dropped: {log:?}");
        let said = |text: &String| text.contains("events.jsonl") && text.contains("os error 28");
        ensure!(
            node.degradations.iter().any(said),
            "not among {:?}",
            node.degradations
        );
        Ok(log)
    })?;
    ensure!(stats.written == 0, "written to a full disk: {stats:?}");
    context.figure("dropped_lines", stats.dropped as f64, "");

    fs::remove_file(filler)?;
    let (second, _) = evict(context, &scene, first)?;
    eventually(scene.node.limit(), || {
        let ids: Vec<_> = records(&path)?.iter().map(|r| r.event.id).collect();
        ensure!(ids.contains(&second), "the log has {ids:?}");
        let node = scene.node.agent.node()?;
        ensure!(
            !node.degradations.iter().any(|d| d.contains("events.jsonl")),
            "still said: {:?}",
            node.degradations
        );
        Ok(())
    })?;
    scene.ensure_bystanders_alive()?;
    scene.finish()
}
