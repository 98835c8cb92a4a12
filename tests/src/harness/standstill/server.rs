//! A file system of one file, or of one empty directory, that leaves questions unanswered.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyOpen, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};

/// What is not answered.
#[derive(Debug)]
pub(super) enum Silent {
    /// The root's status, and who opens it: before these no other question comes.
    All,
    /// Writes; who reads is given what is in this file.
    Writes(File),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    silent: Silent,
    asked: Arc<AtomicBool>,
    /// One that is dropped would be answered with an error.
    waiting: Mutex<Vec<Waiting>>,
}

#[derive(Debug)]
#[expect(dead_code, reason = "an answer is kept so as not to be given")]
enum Waiting {
    Attr(ReplyAttr),
    Open(ReplyOpen),
    Write(ReplyWrite),
}

impl Server {
    /// What tells that a process has asked comes with it.
    pub(super) fn new(silent: Silent) -> (Self, Arc<AtomicBool>) {
        let asked = Arc::new(AtomicBool::new(false));
        let server = Self {
            silent,
            asked: Arc::clone(&asked),
            waiting: Mutex::default(),
        };
        (server, asked)
    }

    fn leave_waiting(&self, reply: Waiting) {
        let waiting = self.waiting.lock();
        waiting.unwrap_or_else(PoisonError::into_inner).push(reply);
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Answers with the attributes of a file of cgroupfs.
    fn tell_attributes(&self, reply: ReplyAttr) {
        match self.silent {
            Silent::All => self.leave_waiting(Waiting::Attr(reply)),
            Silent::Writes(_) => reply.attr(&Duration::ZERO, &ATTRIBUTES),
        }
    }
}

const ATTRIBUTES: FileAttr = FileAttr {
    ino: INodeNo::ROOT,
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0o644,
    nlink: 1,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

impl Filesystem for Server {
    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.tell_attributes(reply);
    }

    /// A file that is opened to be written is truncated.
    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.tell_attributes(reply);
    }

    /// The kernel keeps nothing of it.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.silent {
            Silent::All => self.leave_waiting(Waiting::Open(reply)),
            Silent::Writes(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Silent::Writes(file) = &self.silent else {
            return reply.error(Errno::EBADF);
        };
        let mut bytes = vec![0; size as usize];
        match file.read_at(&mut bytes, offset) {
            Ok(n) => reply.data(&bytes[..n]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.leave_waiting(Waiting::Write(reply));
    }
}
