//! How long disks take, beside what their own queues count.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::sys::stat::{major, minor};
use nix::unistd::gettid;

use super::disk;
use crate::cases::Context;
use crate::harness::{Node, Options, PodSpec};

/// Operations a second of a slow disk.
const SLOW: u64 = 100;
/// A throttled disk does what a slice of 20 or 100 ms allows at once, and then lets one read wait for the next one
/// (`throtl_slice` of block/blk-throttle.c): one in ten at least takes longer than this bucket begins at, 4 ms.
const WAITED: usize = 12;

/// A disk that a case has to itself: a loop device over a file.
struct LoopDisk(PathBuf);

impl LoopDisk {
    /// `None` where the kernel has no loop devices.
    fn over(file: &Path) -> Result<Option<Self>> {
        if !Path::new("/dev/loop-control").exists() {
            return Ok(None);
        }
        let mut losetup = Command::new("losetup");
        let losetup = losetup.args(["--find", "--show", "--direct-io=on"]);
        let output = losetup.arg(file).output().context("losetup")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "losetup: {said}");
        Ok(Some(Self(String::from_utf8(output.stdout)?.trim().into())))
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("-d").arg(&self.0).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("left behind: {}", self.0.display());
        }
    }
}

/// What this thread starts reads at most [`SLOW`] times a second from a disk; on cgroup v1, where a thread can be in a
/// cgroup of its own.
struct Throttle {
    cgroup: PathBuf,
}

impl Throttle {
    const MOUNT: &str = "/sys/fs/cgroup/blkio";

    /// `None` where the kernel has no such thing for this disk.
    fn on_the_disk_of(file: &Path) -> Result<Option<Self>> {
        let cgroup = Path::new(Self::MOUNT).join(format!("podwarden-e2e-{}", gettid()));
        let limit = "blkio.throttle.read_iops_device";
        if !Path::new(Self::MOUNT).join(limit).exists() {
            return Ok(None);
        }
        fs::create_dir(&cgroup)?;
        let this = Self { cgroup };
        let device = file.metadata()?.dev();
        let rule = format!("{}:{} {SLOW}", major(device), minor(device));
        if fs::write(this.cgroup.join(limit), rule).is_err() {
            // A partition.
            return Ok(None);
        }
        fs::write(this.cgroup.join("tasks"), gettid().to_string())?;
        Ok(Some(this))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let left = fs::write(Path::new(Self::MOUNT).join("tasks"), gettid().to_string());
        if let Err(error) = left.and_then(|()| fs::remove_dir(&self.cgroup)) {
            eprintln!("left behind: {}: {error}", self.cgroup.display());
        }
    }
}

/// The kernel's own count of a disk: reads that are done, and how long its queue had them, milliseconds
/// (Documentation/block/stat.rst).
fn queue(device: &Path) -> Result<(u64, u64)> {
    let name = device.file_name().context("no name")?.display();
    let text = fs::read_to_string(format!("/sys/class/block/{name}/stat"))?;
    let mut words = text.split_whitespace();
    let mut word = |n| Ok::<_, anyhow::Error>(words.nth(n).context("too short")?.parse::<u64>()?);
    Ok((word(0)?, word(2)?))
}

/// The disk of a file system with this file.
fn disk_of(file: &Path) -> Result<PathBuf> {
    let device = file.metadata()?.dev();
    let number = format!("{}:{}", major(device), minor(device));
    let link = fs::read_link(Path::new("/sys/dev/block").join(&number)).context(number)?;
    Ok(link)
}

/// Every read has its time, which is what the disk's queue counts or more, and less than what the reader waited. With a
/// disk of its own, and a slow one where there can be one.
pub(super) fn disk_latency(context: &Context) -> Result<()> {
    const LENGTH: u64 = 8 << 20;
    let home = tempfile::tempdir_in("/var/tmp")?;
    let file = home.path().join("file");
    fs::write(&file, vec![0x5a; LENGTH as usize])?;
    File::open(&file)?.sync_all()?;
    let node = Node::start(context, &Options::default())?;
    let pod = node.pod(PodSpec::best_effort("reads"))?;
    let own = LoopDisk::over(&file)?;
    let (target, device) = match &own {
        Some(LoopDisk(device)) => (device.clone(), device.clone()),
        None => (file.clone(), disk_of(&file)?),
    };
    let throttle = match &own {
        Some(_) => Throttle::on_the_disk_of(&file)?,
        None => None,
    };
    let count = if throttle.is_some() { 2 * SLOW } else { 2000 };
    let (before, started) = (queue(&device)?, Instant::now());
    let (target, number) = (target.display().to_string(), count.to_string());
    let mut work = pod.start(&["reads", "--file", &target, "--count", &number])?;
    work.done(node.limit())?;
    let (waited, after) = (started.elapsed(), queue(&device)?);
    let (slow, reads) = (throttle.is_some(), after.0 - before.0);
    drop(throttle);

    let stats = node.expect(pod.uid(), |stats| {
        let found = disk(stats)?;
        let latency = found.read_latency.as_ref().context("nothing is timed")?;
        let timed: u64 = latency.histogram.iter().sum();
        ensure!(timed >= count && timed == found.reads, "{found:?}");
        Ok(())
    })?;
    let found = disk(&stats)?;
    let latency = found.read_latency.context("nothing is timed")?;
    let total = latency.total_nano_seconds;
    context.figure("reads", found.reads as f64, "");
    context.figure("disk_time", total as f64 / 1e6, "ms");
    context.figure("queue_time", (after.1 - before.1) as f64, "ms");
    context.figure("reader_waited", waited.as_secs_f64() * 1e3, "ms");
    // Where the disk below a loop device counts, too, a read is timed twice.
    let times = u128::from(found.reads.div_ceil(reads.max(1)));
    ensure!(
        u128::from(total) <= waited.as_nanos() * times,
        "{latency:?}"
    );
    if own.is_some() {
        // The queue counts whole milliseconds.
        let least = (after.1 - before.1).saturating_sub(1) * 1_000_000;
        ensure!(reads >= count && total >= least, "{latency:?}, {least} ns");
    }
    if slow {
        let slow: u64 = latency.histogram[WAITED..].iter().sum();
        ensure!(slow >= count / 20, "{latency:?}");
    }
    ensure!(found.write_latency.is_none(), "{:?}", found.write_latency);
    drop((work, own));
    node.finish()
}
