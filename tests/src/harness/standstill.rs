//! Makes processes wait inside the kernel, in state D and deaf to SIGKILL, until this goes away.
//!
//! Where there is FUSE: a file system of our own that leaves questions unanswered, see [`server`]. Once it has a
//! question, the process that asks waits for the answer whatever happens (`request_wait_answer`,
//! `fs/fuse/dev.c`). Machines without FUSE: their own disk is frozen, and a process that writes to it waits
//! (`sb_start_write`, `include/linux/fs.h`).

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use self::server::{Questions, Server, Silent};
use super::wait::until;
use crate::cases::Context;

mod server;

/// `include/uapi/linux/fs.h`.
const FIFREEZE: libc::Ioctl = 0xc004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xc004_5878_u32 as libc::Ioctl;

/// See the module. What waits goes on when this is dropped.
#[derive(Debug)]
pub(crate) enum Standstill {
    /// A mount of our own.
    Server {
        /// Where it is.
        path: PathBuf,
        /// What is not answered.
        questions: Arc<Questions>,
        /// Its thread ends once the file system is gone.
        _session: BackgroundSession,
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
    /// Prepares one below `dir`; `None` where this kernel offers no way. In its place every question waits.
    pub(crate) fn new(context: &Context, dir: &Path) -> Result<Option<Self>> {
        if let Some(device) = device() {
            let path = dir.join("standstill");
            fs::create_dir(&path)?;
            return Self::serve(device, path, Silent::All).map(Some);
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

    /// One in the place of the file `path`, from now on, for every question; `None` where this kernel offers no way.
    pub(crate) fn over(path: PathBuf) -> Result<Option<Self>> {
        let served = device().map(|device| Self::serve(device, path, Silent::All));
        served.transpose()
    }

    /// One in the place of the file `path`, from now on, for those who write to it; who reads it reads what is there.
    /// `None` where this kernel offers no way.
    pub(crate) fn of_writes_to(path: PathBuf) -> Result<Option<Self>> {
        let Some(device) = device() else {
            return Ok(None);
        };
        let file = File::open(&path)?;
        Self::serve(device, path, Silent::Writes(file)).map(Some)
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
        matches!(self, Self::Server { questions, .. } if questions.are_there())
    }

    fn serve(device: File, path: PathBuf, silent: Silent) -> Result<Self> {
        let mode = if path.is_dir() { "40000" } else { "100644" };
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
        let (server, questions) = Server::new(silent);
        let session = Session::from_fd(
            server,
            OwnedFd::from(device),
            SessionACL::All,
            Config::default(),
        );
        let session = session.and_then(Session::spawn);
        Ok(Self::Server {
            path,
            questions,
            _session: session.context("serve a FUSE file system")?,
        })
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        let done = match self {
            Self::Server {
                path, questions, ..
            } => {
                // First it is out of the way: what goes on then finds what was there before.
                let gone = umount2(&*path, MntFlags::MNT_DETACH);
                questions.refuse();
                gone.context("unmount it")
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

/// The state letter of proc_pid_stat(5); `None` for a process that is gone.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
