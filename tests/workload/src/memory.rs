//! Memory: page cache, anonymous memory held, and anonymous memory that grows.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use super::sleep_ms;
use super::stamps::{Stamp, Stamps};
use crate::clock::monotonic;

pub(super) const MIB: usize = 1 << 20;
pub(super) const PAGE: usize = 4096;

#[derive(Debug, Args)]
pub struct Cache {
    /// The file; made, and removed at the end.
    #[arg(long)]
    file: PathBuf,
    /// Its size, MiB.
    #[arg(long)]
    mib: usize,
    /// For how long it is read again and again, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
    /// Pause between two passes, milliseconds.
    #[arg(long, default_value_t = 100)]
    pause_ms: u64,
    /// How long the file stays afterwards without being read, milliseconds.
    #[arg(long, default_value_t = 0)]
    hold_ms: u64,
}

impl Cache {
    pub(crate) fn run(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_millis(self.for_ms);
        let result = self.read_until(end);
        sleep_ms(self.hold_ms);
        std::fs::remove_file(&self.file)
            .with_context(|| format!("remove {}", self.file.display()))?;
        result
    }

    fn read_until(&self, end: Instant) -> Result<()> {
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&self.file)
            .with_context(|| format!("create {}", self.file.display()))?;
        let mut block = vec![0x5a; MIB];
        for _ in 0..self.mib {
            file.write_all(&block)?;
        }
        // Dirty pages cannot be reclaimed; on a disk these can from here on.
        file.sync_all()?;
        while Instant::now() < end {
            file.rewind()?;
            while file.read(&mut block)? != 0 {}
            sleep_ms(self.pause_ms);
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct Anon {
    /// How much, MiB.
    #[arg(long)]
    mib: usize,
    /// Memory that others could share: it is free only once the process has ended.
    #[arg(long)]
    shared: bool,
    /// Writes to this file, or asks for the status of this directory, once it holds the memory.
    #[arg(long)]
    then_ask: Option<PathBuf>,
    /// For how long, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
}

impl Anon {
    pub(crate) fn run(&self) -> Result<()> {
        let sharing = match self.shared {
            true => MapFlags::MAP_SHARED,
            false => MapFlags::MAP_PRIVATE,
        };
        let region = Region::map_as(self.mib * MIB, sharing)?;
        region.touch(0..self.mib * MIB);
        if let Some(path) = &self.then_ask {
            // Whether it is one is what a directory is asked for.
            if !path.is_dir() {
                File::options().append(true).open(path)?.write_all(b"x")?;
            }
        }
        sleep_ms(self.for_ms);
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct Fill {
    /// How much in the end, MiB.
    #[arg(long)]
    mib: usize,
    /// MiB per second; 0 is as fast as it can.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Size of a step, KiB.
    #[arg(long, default_value_t = 1024)]
    step_kib: usize,
    /// Waits this long before it starts, milliseconds.
    #[arg(long, default_value_t = 0)]
    after_ms: u64,
    /// Stays this long once all is filled, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    hold_ms: u64,
    /// The stamp file.
    #[arg(long)]
    stamps: Option<super::StampFile>,
}

/// How much time without a CPU is caught up with: more, and memory that is to be filled at a rate is filled at full speed.
const CAUGHT_UP: Duration = Duration::from_millis(5);

impl Fill {
    pub(crate) fn run(&self) -> Result<()> {
        let stamps = self.stamps.as_deref().map(Stamps::open).transpose()?;
        let total = self.mib * MIB;
        let step = (self.step_kib * 1024).clamp(PAGE, total.max(PAGE));
        let region = Region::map(total)?;
        sleep_ms(self.after_ms);
        let mut start = Instant::now();
        for from in (0..total).step_by(step) {
            if self.rate > 0 {
                let due = Duration::from_secs_f64(from as f64 / (self.rate as f64 * MIB as f64));
                let due = start + due;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                start += due.elapsed().saturating_sub(CAUGHT_UP);
            }
            let to = (from + step).min(total);
            region.touch(from..to);
            if let Some(stamps) = &stamps {
                stamps.push(Stamp {
                    nanos: monotonic(),
                    bytes: to as u64,
                });
            }
        }
        sleep_ms(self.hold_ms);
        Ok(())
    }
}

/// Anonymous memory in 4 KiB pages that are there once touched; it stays until the process ends.
pub(super) struct Region {
    start: NonNull<u8>,
    length: usize,
}

impl Region {
    /// Anonymous memory of this process alone.
    pub(super) fn map(length: usize) -> Result<Self> {
        Self::map_as(length, MapFlags::MAP_PRIVATE)
    }

    fn map_as(length: usize, sharing: MapFlags) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let address = unsafe {
            mmap_anonymous(
                None,
                NonZeroUsize::new(length.max(PAGE)).context("a mapping of nothing")?,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                sharing | MapFlags::MAP_NORESERVE,
            )
        }
        .with_context(|| format!("map {length} bytes"))?;
        // One huge page at once would make the steps 2 MiB. A kernel without huge pages refuses.
        // SAFETY: the range is the mapping just made, and the advice leaves its contents alone.
        let _ = unsafe { madvise(address, length, MmapAdvise::MADV_NOHUGEPAGE) };
        Ok(Self {
            start: address.cast(),
            length,
        })
    }

    /// Writes one byte to every page of `range`.
    pub(super) fn touch(&self, range: Range<usize>) {
        self.touch_noting(range, |_| ());
    }

    /// The same; `note` gets the end of each page once it is there.
    pub(super) fn touch_noting(&self, range: Range<usize>, mut note: impl FnMut(u64)) {
        for offset in range.step_by(PAGE) {
            assert!(offset < self.length);
            // SAFETY: inside the mapping, which is writable and that nothing else refers to; volatile
            // so that the write happens although it is never read.
            unsafe { self.start.add(offset).write_volatile(1) };
            note((offset + PAGE) as u64);
        }
    }
}
