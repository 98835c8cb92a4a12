//! Makes processes wait inside the kernel, in state D and deaf to SIGKILL, until this goes away.
//!
//! Where there is FUSE: a file system of our own whose server takes questions and answers none. Once the
//! server has a question, the process that asks waits for the answer whatever happens (`request_wait_answer`,
//! `fs/fuse/dev.c`). Machines without FUSE: their own disk is frozen, and a process that writes to it waits
//! (`sb_start_write`, `include/linux/fs.h`).

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::wait::until;
use crate::cases::Context;

/// `include/uapi/linux/fs.h`.
const FIFREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;

/// See the module. What waits goes on when this is dropped.
#[derive(Debug)]
pub(crate) enum Standstill {
    /// A mount of our own.
    Server {
        /// Where it is; asking for its status is the question.
        path: PathBuf,
        /// A process has asked.
        asked: Arc<AtomicBool>,
    },
    /// The machine's disk, frozen once it is [`Standstill::begin`].
    Disk {
        /// A directory on it.
        directory: File,
        /// A file on it; writing to it waits.
        path: PathBuf,
    },
}

impl Standstill {
    /// Prepares one below `dir`; `None` where this kernel offers no way.
    pub(crate) fn new(context: &Context, dir: &Path) -> Result<Option<Self>> {
        if let Some(device) = device() {
            let path = dir.join("standstill");
            fs::create_dir(&path)?;
            return Self::serve(device, path, "40000").map(Some);
        }
        if !context.emulated() {
            // The disk is not ours alone.
            return Ok(None);
        }
        let path = dir.join("written");
        fs::write(&path, "")?;
        Ok(Some(Self::Disk {
            directory: File::open(dir)?,
            path,
        }))
    }

    /// One in the place of the file `path`, from now on; `None` where this kernel offers no way.
    pub(crate) fn over(path: PathBuf) -> Result<Option<Self>> {
        let served = device().map(|device| Self::serve(device, path, "100644"));
        served.transpose()
    }

    /// What `e2e workload anon --then-ask` takes.
    pub(crate) fn path(&self) -> &Path {
        let (Self::Server { path, .. } | Self::Disk { path, .. }) = self;
        path
    }

    /// From now on a process that asks waits.
    pub(crate) fn begin(&self) -> Result<()> {
        if let Self::Disk { directory, .. } = self {
            freeze(directory, FIFREEZE).context("freeze the disk")?;
        }
        Ok(())
    }

    /// Waits until process `pid` waits. What waits for the server can be killed until it is: state D
    /// begins then.
    pub(crate) fn until_asked(&self, context: &Context, pid: u32) -> Result<()> {
        until(context.limit(20), "a process that waits", || match self {
            Self::Server { .. } => self.is_asked(),
            Self::Disk { .. } => state_of(pid) == Some('D'),
        })
    }

    /// Whether any process has asked a server.
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self, Self::Server { asked, .. } if asked.load(Ordering::Relaxed))
    }

    /// Mounts a file system whose root has `mode`, octal, at `path`.
    fn serve(device: File, path: PathBuf, mode: &str) -> Result<Self> {
        let options = format!(
            "fd={},rootmode={mode},user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("podwarden-e2e"),
            &path,
            Some("fuse"),
            flags,
            Some(options.as_str()),
        )
        .context("mount a FUSE file system")?;
        let asked = Arc::new(AtomicBool::new(false));
        let server = Self::Server {
            path,
            asked: Arc::clone(&asked),
        };
        greet(&device)?;
        // Ends with an error once the file system is unmounted by force.
        std::thread::spawn(move || {
            let mut question = vec![0; LONGEST];
            while (&device).read(&mut question).is_ok() {
                asked.store(true, Ordering::Relaxed);
            }
        });
        Ok(server)
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        let done = match self {
            Self::Server { path, .. } => {
                // By force: every question is answered with an error. In use it stays mounted.
                let _ = umount2(&*path, MntFlags::MNT_FORCE);
                match umount2(&*path, MntFlags::MNT_DETACH) {
                    // It was not in use.
                    Err(Errno::EINVAL) => Ok(()),
                    other => other.context("unmount it"),
                }
            }
            // One that was not frozen cannot be thawed.
            Self::Disk { directory, .. } => {
                let _ = freeze(directory, FITHAW);
                Ok(())
            }
        };
        if let Err(error) = done {
            eprintln!("left standing still: {}: {error:#}", self.path().display());
        }
    }
}

/// A connection to the kernel's FUSE; `None` where it has none.
fn device() -> Option<File> {
    let mut options = File::options();
    options.read(true).write(true);
    options.custom_flags(libc::O_CLOEXEC).open("/dev/fuse").ok()
}

fn freeze(directory: &File, request: libc::Ioctl) -> Result<()> {
    // SAFETY: neither request uses its argument.
    let done = unsafe { libc::ioctl(directory.as_raw_fd(), request, 0) };
    ensure!(done == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// The least that the kernel wants to be able to read at a time (`FUSE_MIN_READ_BUFFER`), and enough for
/// any question that comes here.
const LONGEST: usize = 64 << 10;

/// Answers the kernel's first question, `FUSE_INIT`; before that it asks no other
/// (`include/uapi/linux/fuse.h`).
fn greet(mut device: &File) -> Result<()> {
    let mut question = vec![0; LONGEST];
    let read = device.read(&mut question).context("read FUSE_INIT")?;
    // struct fuse_in_header: len, opcode, unique.
    let word = |at: usize| -> Result<u32> {
        let bytes = question.get(at..at + 4).context("a short question")?;
        Ok(u32::from_ne_bytes(bytes.try_into()?))
    };
    ensure!(read >= 16 && word(4)? == 26, "not FUSE_INIT");
    // struct fuse_out_header (len, error, unique) and struct fuse_init_out of 64 bytes.
    let mut answer = Vec::with_capacity(80);
    answer.extend(80_u32.to_ne_bytes());
    answer.extend(0_u32.to_ne_bytes());
    answer.extend(&question[8..16]);
    // Version 7.31; max_readahead, flags, max_background, congestion_threshold, max_write.
    for word in [7_u32, 31, 0, 0, 0, 4096] {
        answer.extend(word.to_ne_bytes());
    }
    answer.resize(80, 0);
    device.write_all(&answer).context("answer FUSE_INIT")
}

/// The state letter of proc_pid_stat(5); `None` for a process that is gone.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
