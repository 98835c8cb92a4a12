//! Makes the calling thread real-time, as far as this node lets it.

/// How the reactor's thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Realtime {
    /// How it is scheduled.
    pub scheduling: Scheduling,
    /// True when its memory cannot be paged out.
    pub locked: bool,
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

/// Middle of 1..=99: above everything ordinary, below the kernel's own watchdogs (99) and threaded
/// interrupts (50) do not wait for it for long, since it sleeps after every step.
const PRIORITY: i32 = 49;

impl Realtime {
    /// Tries SCHED_FIFO, then nice -20, and locks memory as it is touched.
    pub fn of_this_thread(wanted: bool) -> Self {
        if !wanted {
            return Self::default();
        }
        use rustix::mm::MlockAllFlags as Lock;
        touch_stack();
        // On fault: only pages in use, so that untouched stacks and heaps stay unlocked.
        let locked = rustix::mm::mlockall(Lock::CURRENT | Lock::FUTURE | Lock::ONFAULT).is_ok();
        Self {
            scheduling: schedule(),
            locked,
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
        }
        lost
    }
}

/// Has the stack there that a kill needs (`KillHandle::kill`, 128 KiB): under memory pressure its pages
/// would be slow to come.
#[inline(never)]
fn touch_stack() {
    let stack = [1_u8; 192 << 10];
    std::hint::black_box(&stack);
}

fn schedule() -> Scheduling {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: affects the calling thread only; the pointer is to a live value.
    if unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameters,
        )
    } == 0
    {
        return Scheduling::Fifo;
    }
    // SAFETY: as above; 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } == 0 {
        return Scheduling::Nice;
    }
    Scheduling::Ordinary
}
