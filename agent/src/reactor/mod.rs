//! The fast loop: usage reaches a level -> verify -> choose -> kill -> wait until it is freed.
//!
//! A plain thread of its own (SCHED_FIFO, locked memory, code read in before it is needed). It works from an [`plan::ArmedPlan`] that the
//! reconciler hands over whole by an atomic swap, shares no lock with anything, and allocates
//! nothing once it runs: its reports go through a wait-free queue.
//!
//! Its signals are those that this node has: the kernel programs' levels, the v1 threshold
//! eventfd, `memory.events` of v2, and always its own sampler, whose sleep shrinks with the headroom. Where
//! it is configured, tasks that wait for memory (PSI) are a signal of their own.
//!
//! A level is in force as it is configured, or lower where the scope fills so fast that it would be at its
//! hard limit before a victim's memory is free ([`podwarden_policy::headroom`]).
//!
//! Its system calls once it runs: it sleeps in `epoll_wait`. To look: `pread` of open
//! memory files. To kill: `openat`, `getdents64`, `read` and `close` in the victim's cgroup and of
//! `/proc/PID/comm`, then `pidfd_open` and `pidfd_send_signal`, and on v1
//! `write` of `freezer.state` for what goes on forking. To tell: `write` of an eventfd, `futex` to wake
//! the reaper. To arm: `epoll_ctl`, `timerfd_settime`, `bpf` (map updates). None of these waits for
//! another process, nor for `cgroup_mutex`, which the attachment of a process holds for a grace period; those on
//! cgroups take the kernel's other cgroup locks, `memory.stat` may flush counters. `write` of `cgroup.kill` waits for
//! that mutex: a reaper does it.

pub(crate) mod choose;
mod core;
mod dying;
mod fill;
pub mod free;
pub mod growth;
mod node;
mod noticing;
pub mod pids;
mod places;
pub mod plan;
mod poll;
mod reap;
pub mod report;
mod restraint;
mod room;
mod sampler;
mod stalls;
pub(crate) mod trace;
mod watch;

use std::{
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use arc_swap::ArcSwap;
use aya::maps::{MapData, RingBuf};
use nix::sys::eventfd::EventFd;

use crate::{
    base::bell::{bell, ring, silence},
    config::ReactorConfig,
    kernel::{levels::Levels, realtime::Realtime},
};
use plan::ArmedPlan;
use report::Report;
use trace::Trace;

/// Messages that can wait for the reconciler. A reader that is this far behind loses the rest, which is
/// counted.
const REPORTS: usize = 1024;

/// What is lost where process_mrelease(2) is missing; `None` where it is there.
pub fn reaping_degradation() -> Option<&'static str> {
    (!reap::is_supported()).then_some(
        "process_mrelease is missing or refused (Linux before 5.15, or a seccomp filter): the memory of an \
         evicted pod comes back only as fast as its own processes get CPU time, on a busy node after seconds",
    )
}

/// Why the reactor could not start.
#[derive(Debug, thiserror::Error)]
#[error("starting the reactor: {operation}")]
pub struct StartError {
    operation: &'static str,
    #[source]
    source: std::io::Error,
}

fn failed(operation: &'static str) -> impl Fn(nix::Error) -> StartError {
    move |e| StartError {
        operation,
        source: e.into(),
    }
}

/// What both sides see.
#[derive(Debug)]
struct Shared {
    plan: ArcSwap<ArmedPlan>,
    /// Rung after a new plan, after a notice has come for one, and to stop.
    control: EventFd,
    /// Rung by the reactor after a report.
    bell: EventFd,
    stop: AtomicBool,
    lost: AtomicU64,
    /// What was read, for the flight recorder.
    trace: Arc<Trace>,
    /// Grows with every turn of the loop.
    beat: AtomicU64,
    /// The thread has ended.
    ended: AtomicBool,
}

impl Shared {
    fn new() -> Result<Self, StartError> {
        Ok(Self {
            plan: ArcSwap::default(),
            control: bell().map_err(failed("eventfd"))?,
            bell: bell().map_err(failed("eventfd"))?,
            stop: false.into(),
            lost: 0.into(),
            trace: Arc::default(),
            beat: 0.into(),
            ended: false.into(),
        })
    }
}

/// The reconciler's end.
pub struct Reactor {
    shared: Arc<Shared>,
    /// Plans that the reactor may still look at: freed here, never there.
    retired: Vec<Arc<ArmedPlan>>,
    reports: rtrb::Consumer<Report>,
    thread: Option<JoinHandle<()>>,
    /// Ended after the reactor's own.
    reaping: Option<reap::Threads>,
    noticing: noticing::Noticing,
    /// How real-time it is.
    pub realtime: Realtime,
}

/// Levels in the kernel and their ring, where the kernel programs run.
pub struct KernelLevels {
    /// To arm them.
    pub levels: Levels,
    /// Their reports.
    pub decisions: RingBuf<MapData>,
}

/// A reactor whose threads wait for its first turn.
pub struct Prepared {
    // Before the reactor, whose end waits for its thread, which waits for this.
    begin: std::sync::mpsc::SyncSender<core::Core>,
    core: core::Core,
    reactor: Reactor,
}

impl Prepared {
    /// Makes the threads, real-time as far as `config` wants it. An agent that waits for another has the time.
    pub fn new(config: ReactorConfig) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new()?);
        let (mut producer, reports) = rtrb::RingBuffer::new(REPORTS);
        room::touch_queue(&mut producer);
        let (reaper, reaping) = reap::start(config.real_time).map_err(|source| StartError {
            operation: "the reaper's threads",
            source,
        })?;
        let noticing =
            noticing::Noticing::start(Arc::clone(&shared)).map_err(|source| StartError {
                operation: "the thread that asks for notices",
                source,
            })?;
        let core = core::Core::new(Arc::clone(&shared), producer, reaper, config)
            .map_err(failed("epoll and timer"))?;
        let ended = Ended(Arc::clone(&shared));
        let (say, said) = std::sync::mpsc::channel();
        let (begin, begun) = std::sync::mpsc::sync_channel::<core::Core>(1);
        let thread = std::thread::Builder::new()
            .name("reactor".to_owned())
            .spawn(move || {
                let _ended = ended;
                let _ = say.send(Realtime::of_this_thread(config.real_time));
                // Without one it was not to begin.
                if let Ok(core) = begun.recv() {
                    core.run();
                }
            })
            .map_err(|source| StartError {
                operation: "thread",
                source,
            })?;
        let realtime = said.recv().unwrap_or_default();
        let reactor = Reactor {
            shared,
            retired: Vec::new(),
            reports,
            thread: Some(thread),
            reaping: Some(reaping),
            noticing,
            realtime,
        };
        Ok(Self {
            begin,
            core,
            reactor,
        })
    }

    /// Begins with nothing armed.
    pub fn start(mut self, kernel: Option<KernelLevels>) -> Result<Reactor, StartError> {
        if let Some(kernel) = kernel {
            self.core.take_kernel(kernel).map_err(failed("epoll"))?;
        }
        // An error says that the thread has ended, which is noticed.
        let _ = self.begin.send(self.core);
        Ok(self.reactor)
    }
}

impl Reactor {
    /// Starts the thread with nothing armed.
    pub fn start(kernel: Option<KernelLevels>, config: ReactorConfig) -> Result<Self, StartError> {
        Prepared::new(config)?.start(kernel)
    }

    /// Replaces what is armed, at once; notices of the kernel's that the plan has not got yet follow.
    pub fn arm(&mut self, plan: ArmedPlan) {
        let plan = Arc::new(plan);
        let old = self.shared.plan.swap(Arc::clone(&plan));
        self.retired.push(old);
        ring(&self.shared.control);
        self.noticing.complete(&plan);
        self.tidy();
    }

    /// What is armed now.
    pub fn armed(&self) -> Arc<ArmedPlan> {
        self.shared.plan.load_full()
    }

    /// Frees plans that the reactor has let go of; their open files hold removed cgroups' memory.
    pub fn tidy(&mut self) {
        self.retired.retain(|plan| Arc::strong_count(plan) > 1);
    }

    /// Its beat, to be judged by another thread.
    pub fn pulse(&self) -> Pulse {
        Pulse(Arc::clone(&self.shared))
    }

    /// What the thread has read lately.
    pub fn trace(&self) -> Arc<Trace> {
        Arc::clone(&self.shared.trace)
    }

    /// Readable when there is a report; see [`Reactor::next_report`].
    pub fn bell(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Silences the bell; call before taking the reports.
    pub fn silence(&self) {
        silence(&self.shared.bell);
    }

    pub fn next_report(&mut self) -> Option<Report> {
        self.reports.pop().ok()
    }

    /// Reports that found the queue full.
    pub fn lost_reports(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

/// The reactor's beat, without the reactor.
#[derive(Debug)]
pub struct Pulse(Arc<Shared>);

impl Pulse {
    /// The beat, and a nudge so that the next one differs; `None` once the thread has ended by itself.
    pub fn take(&self) -> Option<u64> {
        let stopped = self.0.stop.load(Ordering::Acquire);
        if self.0.ended.load(Ordering::Acquire) && !stopped {
            return None;
        }
        let beat = self.0.beat.load(Ordering::Relaxed);
        ring(&self.0.control);
        Some(beat)
    }
}

#[cfg(test)]
impl Pulse {
    /// Of a reactor whose thread ends by itself: by a panic where one is told.
    pub(crate) fn of_a_thread_that_ends(by_panic: bool) -> Self {
        let shared = Arc::new(Shared::new().unwrap());
        let ended = Ended(Arc::clone(&shared));
        let thread = std::thread::spawn(move || {
            let _ended = ended;
            assert!(!by_panic, "a fault that a test has planted");
        });
        // Its panic is what was asked for.
        let _ = thread.join();
        Self(shared)
    }
}

/// Notes the end of the reactor's thread, also by a panic.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

impl Reactor {
    /// Ends the thread; its reports stay to be taken.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        ring(&self.shared.control);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Ends the threads that look after victims; those that are dying still do so by themselves.
    pub fn end_reaping(&mut self) {
        self.reaping = None;
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.stop();
    }
}
