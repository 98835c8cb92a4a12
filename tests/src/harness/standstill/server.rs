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
    questions: Arc<Questions>,
}

/// What has been asked and is not answered.
#[derive(Debug)]
pub(crate) struct Questions {
    asked: AtomicBool,
    /// One that is dropped is answered with an error; `None` once all are.
    waiting: Mutex<Option<Vec<Waiting>>>,
}

impl Questions {
    /// A process has asked.
    pub(super) fn are_there(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn leave_waiting(&self, reply: Waiting) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = &mut *waiting {
            waiting.push(reply);
        }
        self.asked.store(true, Ordering::Relaxed);
    }

    /// From now on every question is answered with an error.
    pub(super) fn refuse(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = None;
    }
}

#[derive(Debug)]
#[expect(dead_code, reason = "an answer is kept so as not to be given")]
enum Waiting {
    Attr(ReplyAttr),
    Open(ReplyOpen),
    Write(ReplyWrite),
}

impl Server {
    /// Its questions come with it.
    pub(super) fn new(silent: Silent) -> (Self, Arc<Questions>) {
        let questions = Arc::new(Questions {
            asked: AtomicBool::new(false),
            waiting: Mutex::new(Some(Vec::new())),
        });
        let server = Self {
            silent,
            questions: Arc::clone(&questions),
        };
        (server, questions)
    }

    /// Answers with the attributes of a file of cgroupfs.
    fn tell_attributes(&self, reply: ReplyAttr) {
        match self.silent {
            Silent::All => self.questions.leave_waiting(Waiting::Attr(reply)),
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

    /// The kernel keeps nothing of it, and who closes the file waits for no writer (`fuse_flush`, `fs/fuse/file.c`).
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.silent {
            Silent::All => self.questions.leave_waiting(Waiting::Open(reply)),
            Silent::Writes(_) => reply.opened(
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH,
            ),
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
        self.questions.leave_waiting(Waiting::Write(reply));
    }
}
