//! The kernel's trace, in an instance of our own and stamped with `CLOCK_MONOTONIC`. Its text shows
//! whole microseconds.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tempfile::TempDir;

use crate::harness::owner;

/// The instance; removed when this goes away.
#[derive(Debug)]
pub(super) struct Trace {
    instance: PathBuf,
    mounted: TempDir,
}

impl Trace {
    /// Mounts tracefs where only we see it, which takes a mount namespace of our own, and makes the
    /// instance.
    pub(super) fn start() -> Result<Self> {
        let mounted = tempfile::tempdir()?;
        let (none, private) = (None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC);
        mount(none, "/", none, private, none).context("make mounts private")?;
        let kind = Some("tracefs");
        mount(kind, mounted.path(), kind, MsFlags::empty(), none).context("mount tracefs")?;
        let name = format!("podwarden-bench-{}", owner());
        let instance = mounted.path().join("instances").join(name);
        let trace = Self { instance, mounted };
        // Of an earlier process with our number.
        let _ = fs::remove_dir(&trace.instance);
        fs::create_dir(&trace.instance)
            .with_context(|| format!("create {}", trace.instance.display()))?;
        trace.write("trace_clock", "mono")?;
        Ok(trace)
    }

    /// Turns on an event, such as `signal/signal_generate`, where `filter` holds.
    pub(super) fn enable(&self, event: &str, filter: &str) -> Result<()> {
        self.write(&format!("events/{event}/filter"), filter)?;
        self.write(&format!("events/{event}/enable"), "1")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, text).with_context(|| format!("write {text:?} to {}", path.display()))
    }

    /// Forgets what was.
    pub(super) fn clear(&self) -> Result<()> {
        self.write("trace", "")
    }

    /// Everything since [`Trace::clear`], in order of time.
    pub(super) fn read(&self) -> Result<Vec<Entry>> {
        let path = self.instance.join("trace");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let mut entries: Vec<_> = text.lines().filter_map(Entry::parse).collect();
        entries.sort_by_key(|entry| entry.nanos);
        Ok(entries)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // It keeps memory in the kernel for every CPU.
        let _ = self.write("events/enable", "0");
        let _ = fs::remove_dir(&self.instance);
        let _ = umount2(self.mounted.path(), MntFlags::MNT_DETACH);
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub(super) nanos: u64,
    /// The `comm` of the task that ran.
    pub(super) by: String,
    /// Such as `signal_generate`.
    pub(super) event: String,
    /// What the event says.
    pub(super) text: String,
}

impl Entry {
    /// Reads `      reactor-4711    [001] d..1.  1234.567890: signal_generate: sig=9 errno=0 …`.
    fn parse(line: &str) -> Option<Self> {
        let (task, rest) = line.split_once(" [")?;
        let (by, _) = task.trim().rsplit_once('-')?;
        let (head, rest) = rest.split_once(": ")?;
        let (event, text) = rest
            .split_once(": ")
            .or_else(|| Some((rest.strip_suffix(':')?, "")))?;
        let (seconds, micros) = head.rsplit_once(' ')?.1.split_once('.')?;
        let micros = micros.parse::<u64>().ok().filter(|_| micros.len() == 6)?;
        Some(Self {
            nanos: seconds.parse::<u64>().ok()? * 1_000_000_000 + micros * 1000,
            by: by.trim().to_owned(),
            event: event.to_owned(),
            text: text.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_its_time_its_task_and_its_event() {
        let line = "     nohang - x-4711    [001] d..1.  1234.067890: signal_generate: sig=9 a: b";
        let expected = Entry {
            nanos: 1_234_067_890_000,
            by: "nohang - x".to_owned(),
            event: "signal_generate".to_owned(),
            text: "sig=9 a: b".to_owned(),
        };
        assert_eq!(Entry::parse(line), Some(expected));
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "# tracer: nop",
            "#              | |         |   |||||     |         |",
            "",
            "  x-1 [0] ... 1.5: signal_generate: sig=9",
        ] {
            assert_eq!(Entry::parse(line), None, "{line}");
        }
    }
}
