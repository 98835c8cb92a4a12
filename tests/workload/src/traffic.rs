//! Disk and network.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{Backlog, listen};

use super::memory::{MIB, PAGE};
use super::{Done, sleep_ms};

/// Pages as direct IO wants them.
#[derive(Clone)]
#[repr(align(4096))]
struct Page([u8; PAGE]);

/// Writes a file past the page cache and reads it so, then writes another one into the page cache.
#[derive(Debug, Args)]
pub struct Disk {
    /// The file; the other one has `.cached` behind its name.
    #[arg(long)]
    file: PathBuf,
    /// How much past the page cache, MiB.
    #[arg(long)]
    mib: usize,
    /// How much into the page cache, MiB.
    #[arg(long, default_value_t = 0)]
    cached_mib: usize,
    /// For how long it stays afterwards, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
}

impl Disk {
    pub(crate) fn run(&self) -> Result<()> {
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(&self.file)
            .with_context(|| format!("create {}", self.file.display()))?;
        let mut pages = vec![Page([0x5a; PAGE]); MIB / PAGE];
        for _ in 0..self.mib {
            let slices: Vec<_> = pages.iter().map(|page| IoSlice::new(&page.0)).collect();
            ensure!(file.write_vectored(&slices)? == MIB, "a short write");
        }
        file.sync_all()?;
        file.rewind()?;
        for _ in 0..self.mib {
            let slices = pages.iter_mut().map(|page| IoSliceMut::new(&mut page.0));
            let mut slices: Vec<_> = slices.collect();
            ensure!(file.read_vectored(&mut slices)? == MIB, "a short read");
        }
        let mut cached = File::create(self.file.with_extension("cached"))?;
        for _ in 0..self.cached_mib {
            cached.write_all(&[0x5a; MIB])?;
        }
        sleep_ms(self.for_ms);
        Ok(())
    }
}

/// Reads pages of a file or a disk past the page cache, one after the other.
#[derive(Debug, Args)]
pub struct Reads {
    /// The file, of at least a page.
    #[arg(long)]
    file: PathBuf,
    /// How many pages.
    #[arg(long)]
    count: u64,
}

impl Reads {
    pub(crate) fn run(&self) -> Result<()> {
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_DIRECT);
        let mut file = file.open(&self.file)?;
        // A disk has no length of a file.
        let pages = file.seek(SeekFrom::End(0))? / PAGE as u64;
        ensure!(pages > 0, "{} has no page", self.file.display());
        let mut page = Box::new(Page([0; PAGE]));
        for n in 0..self.count {
            file.read_exact_at(&mut page.0, n % pages * PAGE as u64)?;
        }
        Done {
            count: self.count,
            children_cpu_ns: 0,
        }
        .print()
    }
}

/// Is in a network of its own, which has nothing but `lo`.
#[derive(Debug, Args)]
pub struct Network {
    /// For how long, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
}

impl Network {
    pub(crate) fn run(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace")?;
        sleep_ms(self.for_ms);
        Ok(())
    }
}

/// Asks again and again for a TCP connection that its own listener has no room for.
#[derive(Debug, Args)]
pub struct Unanswered {
    /// For how long, milliseconds.
    #[arg(long, default_value_t = 600_000)]
    for_ms: u64,
}

impl Unanswered {
    pub(crate) fn run(&self) -> Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        // Room for one connection that has not been taken.
        listen(&listener, Backlog::new(0)?)?;
        let address = listener.local_addr()?;
        let _first = TcpStream::connect(address)?;
        thread::spawn(move || TcpStream::connect(address));
        sleep_ms(self.for_ms);
        Ok(())
    }
}
