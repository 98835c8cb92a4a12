//! Makes the calling thread real-time, as far as this node lets it.

use std::{fs, io, path::PathBuf, sync::OnceLock};

use podwarden_cgroup::{Controller, Hierarchies};

use super::resident::Program;

/// How the reactor's thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Realtime {
    pub scheduling: Scheduling,
    /// True when its memory cannot be paged out.
    pub locked: bool,
    /// True when the program's code is in memory and stays there.
    pub resident: bool,
    /// True when its allocations in the kernel do not wait for a disk.
    pub io_flusher: bool,
}

/// How a thread is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// SCHED_FIFO.
    Fifo,
    /// An ordinary thread at nice -20: SCHED_FIFO was refused.
    Nice,
    /// An ordinary thread.
    #[default]
    Ordinary,
}

/// Middle of 1..=99: above everything ordinary, and below the kernel's own watchdogs (99) and threaded interrupts
/// (50).
pub(super) const PRIORITY: i32 = 49;

impl Realtime {
    /// Tries SCHED_FIFO, then nice -20, locks the program's code, and other memory as it is touched.
    pub fn of_this_thread(wanted: bool) -> Self {
        if !wanted {
            return Self::default();
        }
        touch_stack();
        let (locked, resident) = lock_memory();
        Self {
            resident,
            scheduling: schedule(),
            locked,
            io_flusher: be_io_flusher(),
        }
    }

    /// What is lost, one sentence each.
    pub fn degradations(self) -> Vec<String> {
        let mut lost = Vec::new();
        match self.scheduling {
            Scheduling::Fifo => {}
            Scheduling::Nice => lost.push(
                "SCHED_FIFO was refused (CAP_SYS_NICE, or a cpu cgroup without real-time budget): the \
                 reactor runs at nice -20 and can wait behind other work on a busy node"
                    .to_owned(),
            ),
            Scheduling::Ordinary => lost.push(
                "neither SCHED_FIFO nor nice -20 were allowed (CAP_SYS_NICE): on a busy node the \
                 reactor can wait for hundreds of milliseconds"
                    .to_owned(),
            ),
        }
        if !self.locked {
            lost.push(
                "memory could not be locked (CAP_IPC_LOCK): under memory pressure the reactor itself \
                 may have to wait for its pages"
                    .to_owned(),
            );
        } else if !self.resident {
            lost.push(
                "the program's code could not be locked in memory: under memory pressure the reactor may have \
                 to wait for a disk"
                    .to_owned(),
            );
        }
        if !self.io_flusher {
            lost.push(
                "PR_SET_IO_FLUSHER was refused (CAP_SYS_RESOURCE, or Linux before 5.6): on a node without free \
                 memory the reactor's system calls may wait until pages are written to a disk"
                    .to_owned(),
            );
        }
        lost
    }
}

/// Locks the program's code, and other memory as it is touched: once in a process. Whether memory is locked, and
/// whether the code is.
fn lock_memory() -> (bool, bool) {
    static DONE: OnceLock<(bool, bool)> = OnceLock::new();
    *DONE.get_or_init(|| {
        use rustix::mm::MlockAllFlags as Lock;
        let program = Program::find();
        if let Ok(program) = &program {
            // Refused, they stay.
            let _ = program.give_back_tables();
        }
        // On fault: only pages in use, so that untouched stacks and heaps stay unlocked.
        let locked = rustix::mm::mlockall(Lock::CURRENT | Lock::FUTURE | Lock::ONFAULT).is_ok();
        let resident = locked && program.is_ok_and(|program| program.lock().is_ok());
        (locked, resident)
    })
}

/// What a thread that helps the reactor needs of this: its stack, and no wait for a disk. What is refused here was
/// refused to the reactor as well.
pub(crate) fn prepare_helper() {
    touch_stack();
    be_io_flusher();
}

/// Has the kernel serve this thread's allocations without starting to write pages, and keep it out of the throttling
/// of those that do (`PR_SET_IO_FLUSHER` of prctl(2), since Linux 5.6); false where it refuses. What waits
/// for pages to be written cannot free memory.
fn be_io_flusher() -> bool {
    rustix::process::configure_io_flusher_behavior(true).is_ok()
}

/// Touches the stack that a kill needs (`KillHandle::kill_workload`, 128 KiB): under memory pressure the kernel would be slow
/// to map its pages.
#[inline(never)]
fn touch_stack() {
    let stack = [1_u8; 192 << 10];
    std::hint::black_box(&stack);
}

/// Makes the calling thread SCHED_FIFO; false where the kernel refuses.
///
/// With real-time group scheduling (`CONFIG_RT_GROUP_SCHED`) a v1 cpu cgroup has no real-time budget
/// unless an operator gives it one, and a pod's has none: the thread then leaves it for the root, which
/// counts its CPU time from there on.
pub(crate) fn make_fifo() -> bool {
    set_fifo(PRIORITY) || (leave_cpu_cgroup().is_ok() && set_fifo(PRIORITY))
}

/// Threads that the calling one starts are ordinary.
pub(super) fn set_fifo(priority: i32) -> bool {
    set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority)
}

/// Undoes [`set_fifo`]; false where the kernel refuses.
pub(super) fn set_ordinary() -> bool {
    set_scheduler(libc::SCHED_OTHER, 0)
}

fn set_scheduler(policy: i32, priority: i32) -> bool {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: affects the calling thread only; the pointer is to a live value.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

/// Of the calling thread and no other: v1 takes threads one by one.
fn leave_cpu_cgroup() -> io::Result<()> {
    fs::write(mount_with_budgets()?.join("tasks"), "0")
}

/// The v1 cpu hierarchy, where its cgroups have real-time budgets.
pub(super) fn mount_with_budgets() -> io::Result<PathBuf> {
    let hierarchies = Hierarchies::detect().map_err(io::Error::other)?;
    let mount = hierarchies.controllers.get(&Controller::Cpu);
    let mount = mount.filter(|_| !hierarchies.is_on_v2(Controller::Cpu));
    let mount = mount.ok_or(io::ErrorKind::NotFound)?;
    // Others have no such file, and no such budget.
    if !mount.join("cpu.rt_runtime_us").exists() {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(mount.clone())
}

fn schedule() -> Scheduling {
    if make_fifo() {
        return Scheduling::Fifo;
    }
    match rustix::process::setpriority_process(None, -20) {
        Ok(()) => Scheduling::Nice,
        Err(_) => Scheduling::Ordinary,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_said() {
        let all = Realtime {
            scheduling: Scheduling::Fifo,
            locked: true,
            resident: true,
            io_flusher: true,
        };
        assert_eq!(all.degradations(), [""; 0]);
        let of = |realtime: Realtime| {
            let said = realtime.degradations();
            assert_eq!(said.len(), 1, "{said:?}");
            said[0].clone()
        };
        let said = of(Realtime {
            io_flusher: false,
            ..all
        });
        assert!(said.contains("CAP_SYS_RESOURCE"), "{said}");
        let said = of(Realtime {
            resident: false,
            ..all
        });
        assert!(said.contains("code"), "{said}");
        let said = of(Realtime {
            resident: false,
            locked: false,
            ..all
        });
        assert!(said.contains("CAP_IPC_LOCK"), "{said}");
    }

    #[test]
    fn a_thread_becomes_an_io_flusher_and_no_other_does() {
        let thread = std::thread::spawn(|| {
            if !be_io_flusher() {
                println!("skipped: PR_SET_IO_FLUSHER is refused here");
                return;
            }
            assert!(rustix::process::is_io_flusher().unwrap());
        });
        thread.join().unwrap();
        assert!(!rustix::process::is_io_flusher().unwrap_or(false));
    }
}
