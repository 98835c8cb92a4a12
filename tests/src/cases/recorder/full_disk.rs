//! An event log on a disk that is full.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use podwarden::api::types::{EventKind, EventLogStats, EventRecord};

use super::super::Context;
use super::super::eviction::Scene;
use super::{evict, logging, records};
use crate::harness::eventually;

/// A file system of its own, as small as can be.
pub(in crate::cases) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(in crate::cases) fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        let (kind, flags) = (Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV);
        mount(kind, &path, kind, flags, Some("size=128k,mode=0700")).context("mount a tmpfs")?;
        Ok(Self(path))
    }

    /// Takes all the room that is left.
    pub(in crate::cases) fn fill(&self) -> Result<PathBuf> {
        let path = self.0.join("filler");
        let mut file = File::create(&path)?;
        while file.write_all(&[0; 4096]).is_ok() {}
        Ok(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.0, MntFlags::MNT_DETACH) {
            eprintln!("left mounted: {}: {error}", self.0.display());
        }
    }
}

pub(super) fn full_disk(context: &Context) -> Result<()> {
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
    let line = &eviction.timeline;
    let killed = line.killed_nanos.unwrap_or(0);
    let took = killed.saturating_sub(line.crossing_nanos) as f64;
    context.figure("crossing_to_kill", took / 1e6, "ms");
    let stats = until_dropped(&scene, 0)?;
    ensure!(stats.written == 0, "written to a full disk: {stats:?}");
    context.figure("dropped_lines", stats.dropped as f64, "");
    ensure_said(&scene, 1)?;

    fs::remove_file(filler)?;
    let (second, _) = evict(context, &scene, first)?;
    let with_curves = |id| {
        let is_it =
            move |record: &EventRecord| record.event.id == id && record.flight_record.is_some();
        eventually(scene.node.limit(), || {
            ensure!(
                records(&path)?.iter().any(is_it),
                "the log has no curves of {id}"
            );
            let node = scene.node.agent.node()?;
            ensure!(
                !node.degradations.iter().any(|d| d.contains("events.jsonl")),
                "still said: {:?}",
                node.degradations
            );
            Ok(())
        })
    };
    with_curves(second)?;

    // Full in the middle of a line: what of it was written is taken back.
    let before = scene.node.agent.node()?;
    let dropped = before.event_log.map_or(0, |log| log.dropped);
    let filler = disk.fill()?;
    let (third, _) = evict(context, &scene, second)?;
    // Its longest line comes last.
    eventually(scene.node.limit(), || {
        let record: EventRecord = scene.node.agent.get(&format!("/v1/events/{third}"))?;
        ensure!(
            record.flight_record.is_some(),
            "event {third} has no curves yet"
        );
        Ok(())
    })?;
    until_dropped(&scene, dropped)?;
    records(&path)?;
    ensure_said(&scene, 2)?;
    fs::remove_file(filler)?;
    let (fourth, _) = evict(context, &scene, third)?;
    with_curves(fourth)?;
    scene.ensure_bystanders_alive()?;
    scene.finish()
}

/// Waits until more than `before` lines were dropped, and it is shown why.
fn until_dropped(scene: &Scene, before: u64) -> Result<EventLogStats> {
    eventually(scene.node.limit(), || {
        let node = scene.node.agent.node()?;
        let log = node.event_log.context("no event log")?;
        ensure!(log.dropped > before, "nothing was dropped: {log:?}");
        let said = |text: &String| text.contains("events.jsonl") && text.contains("os error 28");
        ensure!(
            node.degradations.iter().any(said),
            "not among {:?}",
            node.degradations
        );
        Ok(log)
    })
}

/// That the log cannot be written was said so often: once for each time that it began.
fn ensure_said(scene: &Scene, times: usize) -> Result<()> {
    let events = scene.node.agent.events(0)?;
    let said = events.iter().filter(|event| match &event.kind {
        EventKind::Degraded { message } => message.contains("cannot be written"),
        _ => false,
    });
    let said = said.count();
    ensure!(said == times, "said {said} times, not {times}");
    Ok(())
}
