//! Processes inside a container's cgroup.

use std::ffi::CString;
use std::io::Read as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;

use super::cgroup::Cgroup;
use super::wait::eventually;
use crate::workload::Done;

/// One started process; ended when this goes away.
#[derive(Debug)]
pub(crate) struct Workload {
    child: Child,
}

impl Workload {
    /// Starts `e2e workload ARGS` as a member of `cgroup`: it is one before it executes anything, so
    /// that no CPU time and no memory of its is charged elsewhere.
    pub(crate) fn start(cgroup: &Cgroup, args: &[&str]) -> Result<Self> {
        let files = cgroup
            .dirs()
            .map(|dir| CString::new(dir.join("cgroup.procs").into_os_string().into_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("e2e")
            .arg("workload")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let enter = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            for file in &files {
                let file = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::io::write(&file, b"0")?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec, where only async-signal-safe calls are allowed, `enter`
        // makes system calls on paths that were built before and allocates nothing.
        unsafe { command.pre_exec(enter) };
        let child = command
            .spawn()
            .with_context(|| format!("start {args:?} in {}", cgroup.path()))?;
        Ok(Self { child })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended; reaps it when it has.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for its end, at most `limit`.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        eventually(limit, || self.child.try_wait()?.context("it has not ended"))
    }

    /// Waits for its end, which must be a good one, and reads what it has printed.
    pub(crate) fn done(&mut self, limit: Duration) -> Result<Done> {
        let status = self.wait(limit)?;
        anyhow::ensure!(status.success(), "the workload ended with {status}");
        let mut text = String::new();
        self.child
            .stdout
            .take()
            .context("read already")?
            .read_to_string(&mut text)?;
        serde_json::from_str(text.trim()).with_context(|| format!("the workload printed {text:?}"))
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.kill();
    }
}
