//! Processes inside a container's cgroup.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, read, write};
use workload::Done;

use super::cgroup::Cgroup;
use super::schedstat::SchedStat;
use super::standstill::state_of;
use super::wait::eventually;

/// What a new process is told once it is in its cgroup, and what it is told where that failed.
const ENTERED: u8 = 1;
const REFUSED: u8 = 0;
/// A process that has nothing more to do than to wait sleeps long before.
const FALLS_ASLEEP: Duration = Duration::from_secs(20);

/// One started process; ended when this goes away.
#[derive(Debug)]
pub(crate) struct Workload {
    child: Child,
    /// What it had waited for a CPU when it was moved into its cgroup, nanoseconds.
    waited_before: u64,
}

impl Workload {
    /// Starts `e2e workload ARGS` as a member of `cgroup`: it is one before it executes anything, so
    /// that no CPU time and no memory of its is charged elsewhere. As container runtimes do, it is moved
    /// while it sleeps: of a process that runs, what it has used since the last tick goes to either side.
    pub(crate) fn start(cgroup: &Cgroup, args: &[&str]) -> Result<Self> {
        let (gate, child_side) = UnixStream::pair().context("make a pair of sockets")?;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("e2e")
            .arg("workload")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let enter = move || {
            set_pdeathsig(Signal::SIGKILL)?;
            let pid = getpid().as_raw();
            write(&child_side, &pid.to_ne_bytes())?;
            let mut answer = [0];
            read(&child_side, &mut answer)?;
            match answer {
                [ENTERED] => Ok(()),
                _ => Err(io::Error::from(io::ErrorKind::Interrupted)),
            }
        };
        // SAFETY: between fork and exec, where only async-signal-safe calls are allowed, `enter` makes
        // system calls on sockets that were there before and allocates nothing.
        unsafe { command.pre_exec(enter) };
        let (child, moved) = thread::scope(|scope| {
            // `spawn` returns when the child executes, which waits for this.
            let mover = scope.spawn(|| move_asleep(&gate, cgroup));
            let child = command.spawn();
            if child.is_err() {
                // It may not have got as far as to ask.
                let _ = gate.shutdown(Shutdown::Both);
            }
            (child, mover.join())
        });
        let context = || format!("start {args:?} in {}", cgroup.path());
        let mut this = child.map(|child| Self {
            child,
            waited_before: 0,
        });
        match moved {
            Ok(Ok(waited)) => {
                let mut this = this.with_context(context)?;
                this.waited_before = waited;
                Ok(this)
            }
            Ok(Err(error)) => {
                if let Ok(workload) = &mut this {
                    workload.kill();
                }
                Err(error).with_context(context)
            }
            Err(_) => anyhow::bail!("the thread that moves {args:?} has panicked"),
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How long its threads have waited for a CPU since it is in its cgroup, nanoseconds.
    pub(crate) fn waited(&self) -> Result<u64> {
        let waited = SchedStat::of_process(self.pid())?.waited;
        Ok(waited.saturating_sub(self.waited_before))
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

/// The other side of a new process: moves it to `cgroup` once it sleeps, and wakes it. How long it has
/// waited for a CPU until then, nanoseconds.
fn move_asleep(mut gate: &UnixStream, cgroup: &Cgroup) -> Result<u64> {
    let mut pid = [0; 4];
    gate.read_exact(&mut pid).context("it did not start")?;
    let pid = u32::from_ne_bytes(pid);
    let moved = eventually(FALLS_ASLEEP, || {
        let state = state_of(pid);
        ensure!(state == Some('S'), "it does not sleep: {state:?}");
        Ok(())
    })
    .and_then(|()| SchedStat::of_thread(pid))
    .and_then(|stat| cgroup.attach(pid).map(|()| stat.waited));
    let answer = if moved.is_ok() { ENTERED } else { REFUSED };
    gate.write_all(&[answer]).context("wake it")?;
    moved
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.kill();
    }
}
