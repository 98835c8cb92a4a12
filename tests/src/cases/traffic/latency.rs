//! How long disks take, beside what their own queues count.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::sys::stat::{major, minor};
use nix::unistd::gettid;
use podwarden::api::types::LatencyStats;

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

/// A disk in compressed memory, whose driver takes bios without a queue of requests.
struct MemoryDisk {
    number: String,
}

impl MemoryDisk {
    const CONTROL: &str = "/sys/class/zram-control";

    /// `None` where the kernel has none.
    fn new(bytes: u64) -> Result<Option<Self>> {
        let Ok(number) = fs::read_to_string(Path::new(Self::CONTROL).join("hot_add")) else {
            return Ok(None);
        };
        let this = Self {
            number: number.trim().to_owned(),
        };
        let size = format!("/sys/block/zram{}/disksize", this.number);
        fs::write(size, bytes.to_string()).context("the size of a zram disk")?;
        Ok(Some(this))
    }

    fn device(&self) -> PathBuf {
        format!("/dev/zram{}", self.number).into()
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        let removed = fs::write(Path::new(Self::CONTROL).join("hot_remove"), &self.number);
        if let Err(error) = removed {
            eprintln!("left behind: {}: {error}", self.device().display());
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

/// What a pod's reads of a disk took.
struct Timed {
    latency: LatencyStats,
    /// Reads of the pod whose end was not seen.
    unseen: u64,
    /// Reads that the disk has done meanwhile, and how long its queue had them, milliseconds.
    reads: u64,
    queue_ms: u64,
}

/// Has a pod read `target`, on the disk `device`, and compares: nine in ten reads at least have their time, less than what
/// the reader waited. A kernel that runs no program upon tasks of its first process does not show the end of those that end
/// there (`deploy/docs/figures.md`).
fn timed(node: &Node, name: &str, target: &Path, device: &Path, count: u64) -> Result<Timed> {
    let pod = node.pod(PodSpec::best_effort(name))?;
    let (target, number) = (target.display().to_string(), count.to_string());
    let (before, started) = (queue(device)?, Instant::now());
    let mut work = pod.start(&["reads", "--file", &target, "--count", &number])?;
    work.done(node.limit())?;
    let (waited, after) = (started.elapsed(), queue(device)?);
    let stats = node.expect(pod.uid(), |stats| {
        let found = disk(stats)?;
        let latency = found.read_latency.as_ref().context("nothing is timed")?;
        let timed: u64 = latency.histogram.iter().sum();
        let (reads, least) = (found.reads, count - count / 10);
        ensure!(
            reads >= count && timed >= least && timed <= reads,
            "{found:?}"
        );
        Ok(())
    })?;
    let found = disk(&stats)?;
    let latency = found.read_latency.context("nothing is timed")?;
    let reads = after.0 - before.0;
    // Where the disk below a loop device counts, too, a read is timed twice.
    let times = u128::from(found.reads.div_ceil(reads.max(1)));
    let total = u128::from(latency.total_nano_seconds);
    ensure!(
        total <= waited.as_nanos() * times,
        "{latency:?}, {waited:?}"
    );
    ensure!(found.write_latency.is_none(), "{:?}", found.write_latency);
    let timed: u64 = latency.histogram.iter().sum();
    Ok(Timed {
        unseen: found.reads - timed,
        latency,
        reads,
        queue_ms: after.1 - before.1,
    })
}

/// How long reads take is what the disk's queue counts: with a disk of the pod's own, and a slow one, where there
/// can be one; and of a disk without a queue.
pub(super) fn disk_latency(context: &Context) -> Result<()> {
    const LENGTH: usize = 8 << 20;
    let home = tempfile::tempdir_in("/var/tmp")?;
    let file = home.path().join("file");
    fs::write(&file, vec![0x5a; LENGTH])?;
    File::open(&file)?.sync_all()?;
    let node = Node::start(context, &Options::default())?;
    let own = LoopDisk::over(&file)?;
    let throttle = match &own {
        Some(_) => Throttle::on_the_disk_of(&file)?,
        None => None,
    };
    let slow = throttle.is_some();
    let count = if slow { 2 * SLOW } else { 2000 };
    let found = match &own {
        Some(LoopDisk(disk)) => timed(&node, "reads", disk, disk, count)?,
        None => timed(&node, "reads", &file, &disk_of(&file)?, count)?,
    };
    drop(throttle);
    let total = found.latency.total_nano_seconds;
    context.figure("disk_time", total as f64 / 1e6, "ms");
    context.figure("unseen", found.unseen as f64, "");
    context.figure("queue_time", found.queue_ms as f64, "ms");
    if own.is_some() {
        // Those whose end was not seen may have been slow ones.
        let least = (found.queue_ms - found.queue_ms / 5) * 1_000_000;
        ensure!(
            found.reads >= count && total >= least,
            "{total} ns, {least}"
        );
    }
    if slow {
        let slow: u64 = found.latency.histogram[WAITED..].iter().sum();
        ensure!(slow >= count / 20, "{:?}", found.latency);
    }
    drop(own);
    if let Some(disk) = MemoryDisk::new(LENGTH as u64)? {
        let device = disk.device();
        timed(&node, "without-a-queue", &device, &device, 2000)?;
    }
    node.finish()
}
