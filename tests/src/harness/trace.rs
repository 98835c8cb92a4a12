//! A thread of another process under ptrace(2): kept from running, or led from one system call to the
//! next.

use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use libc::c_long;
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use syscalls::Sysno;

use super::interrupt;

/// Between two looks whether it has stopped.
const STEP: Duration = Duration::from_micros(20);

/// A system call that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: c_long,
    /// Its first argument.
    pub(crate) argument: u64,
    /// The file that its first argument names, where that is a descriptor: what the kernel calls it.
    pub(crate) file: String,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", call_name(self.number), self.file)
    }
}

/// What the kernel calls a system call.
pub(crate) fn call_name(number: c_long) -> String {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or_else(|| format!("call {number}"), |call| call.name().to_owned())
}

/// The id of a process's thread with this name.
pub(crate) fn thread_id(pid: u32, name: &str) -> Result<u32> {
    let dir = format!("/proc/{pid}/task");
    for task in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
        let task = task?.path();
        // Another one may have ended meanwhile.
        if fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name) {
            let id = task.file_name().and_then(|id| id.to_str()?.parse().ok());
            return id.context("a task is no number");
        }
    }
    bail!("process {pid} has no thread {name}")
}

/// See the module. It runs freely again once this goes away.
#[derive(Debug)]
pub(crate) struct Traced {
    pid: u32,
    tid: Pid,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Stopped,
    Running,
    Ended,
}

impl Traced {
    /// Stops one thread of a process and no other.
    pub(crate) fn thread(pid: u32, name: &str) -> Result<Self> {
        Self::stop(pid, i32::try_from(thread_id(pid, name)?)?)
    }

    fn stop(pid: u32, tid: i32) -> Result<Self> {
        let tid = Pid::from_raw(tid);
        ptrace::seize(tid, ptrace::Options::PTRACE_O_TRACESYSGOOD)
            .with_context(|| format!("seize {tid}"))?;
        let mut traced = Self {
            pid,
            tid,
            state: State::Running,
        };
        ptrace::interrupt(tid).with_context(|| format!("stop {tid}"))?;
        let stopped = traced.wait(Duration::from_secs(10))?.is_some();
        ensure!(stopped, "thread {tid} does not stop");
        Ok(traced)
    }

    /// Lets it run to its next system call, which it has not made then; `None` when there was none within
    /// `limit`, and it goes on to it.
    pub(crate) fn next_call(&mut self, limit: Duration) -> Result<Option<Call>> {
        let mut signal = None;
        let end = Instant::now() + limit;
        loop {
            if self.state == State::Stopped {
                ptrace::syscall(self.tid, signal).context("go on")?;
                self.state = State::Running;
            }
            let left = end.saturating_duration_since(Instant::now());
            let Some(status) = self.wait(left)? else {
                return Ok(None);
            };
            // Events are no signals that the thread is to get.
            signal = None;
            match status {
                WaitStatus::PtraceSyscall(_) => {
                    if let Some(call) = self.call()? {
                        return Ok(Some(call));
                    }
                }
                WaitStatus::Stopped(_, its) => signal = Some(its),
                _ => {}
            }
        }
    }

    /// Its process was killed: waits for it, without which its parent does not learn of its end.
    pub(crate) fn killed(mut self) -> Result<()> {
        // The first thread's end is its process's, which the process's parent waits for.
        if self.tid.as_raw().unsigned_abs() != self.pid {
            let end = Instant::now() + Duration::from_secs(10);
            while self.state != State::Ended {
                ensure!(Instant::now() < end, "thread {} does not end", self.tid);
                self.wait(Duration::from_secs(1))?;
            }
        }
        self.state = State::Ended;
        Ok(())
    }

    /// Waits until it stops or ends; the wait status when it has stopped.
    fn wait(&mut self, limit: Duration) -> Result<Option<WaitStatus>> {
        let end = Instant::now() + limit;
        loop {
            interrupt::check()?;
            match waitpid(self.tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) => {}
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
                    self.state = State::Ended;
                    return Ok(None);
                }
                Ok(status) => {
                    self.state = State::Stopped;
                    return Ok(Some(status));
                }
                Err(error) => return Err(error).with_context(|| format!("wait for {}", self.tid)),
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(STEP);
        }
    }

    /// The call that it is stopped before; `None` after one.
    fn call(&self) -> Result<Option<Call>> {
        let info = ptrace::syscall_info(self.tid).context("ask for the system call")?;
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(None);
        }
        // SAFETY: `op` says that this part was written.
        let entry = unsafe { info.u.entry };
        let fd = format!("/proc/{}/fd/{}", self.pid, entry.args[0]);
        let file = fs::read_link(fd).unwrap_or_default();
        Ok(Some(Call {
            number: c_long::try_from(entry.nr)?,
            argument: entry.args[0],
            file: file.display().to_string(),
        }))
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.state == State::Running && ptrace::interrupt(self.tid).is_ok() {
            let _ = self.wait(Duration::from_secs(10));
        }
        if self.state == State::Stopped {
            // A thread that is gone is detached from.
            let _ = ptrace::detach(self.tid, None);
        }
    }
}
