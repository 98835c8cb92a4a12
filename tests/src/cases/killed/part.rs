//! The threads that have a part in an eviction, and when the agent is killed.

use crate::harness::Call;

/// Steps of the reactor's wait for the victim's memory that are tried: it goes round in them.
pub(super) const POLLS: u32 = 8;

/// A thread that has a part in an eviction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) thread: &'static str,
    /// It does nothing unless there is an eviction.
    pub(super) sleeps: bool,
    /// Its first system call of the eviction.
    pub(super) begins: fn(&Call) -> bool,
    /// Where it is killed unless every step is tried.
    pub(super) few: Few,
    /// Steps that are tried at most, evenly spread.
    pub(super) most: usize,
}

/// Which steps are tried of many.
#[derive(Debug, Clone, Copy)]
pub(super) enum Few {
    /// So many, from the first to the last.
    Spread(usize),
    /// These: to count them all first takes as long as to try one.
    These(&'static [usize]),
}

/// When the agent is killed.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    /// Not at all.
    Never,
    /// Before the thread's system call of this number, counted from 0.
    Before(usize),
    /// With the victim frozen to be killed whole, where that is done: on v1, when it forks too fast.
    Frozen,
}

impl When {
    pub(super) fn is_now(self, steps: &[Call]) -> bool {
        match self {
            Self::Never => false,
            Self::Before(step) => steps.len() == step,
            // It is noted right before it is frozen, and thawed without a note.
            Self::Frozen => match steps {
                [.., note, freeze] => {
                    let noted = note.number == libc::SYS_pwrite64 && note.file.ends_with(".frozen");
                    noted && freeze.file.ends_with("/freezer.state")
                }
                _ => false,
            },
        }
    }
}

/// The reactor reads `memory.stat` only where usage is at the level. The reconciler silences the reactor's
/// bell. The others sleep until there is something to do.
pub(super) const PARTS: [Part; 5] = [
    Part {
        thread: "reactor",
        sleeps: false,
        begins: |call| call.file.ends_with("/memory.stat"),
        few: Few::Spread(4),
        most: usize::MAX,
    },
    Part {
        thread: "reaper-lead",
        sleeps: true,
        begins: |_| true,
        few: Few::These(&[4]),
        most: usize::MAX,
    },
    Part {
        thread: "reaper",
        sleeps: true,
        begins: |_| true,
        few: Few::These(&[1]),
        most: usize::MAX,
    },
    Part {
        thread: "event-log",
        sleeps: true,
        begins: |_| true,
        few: Few::These(&[1, 4]),
        most: usize::MAX,
    },
    Part {
        thread: "podwarden",
        sleeps: false,
        begins: |call| call.number == libc::SYS_read && is_bell(call),
        few: Few::These(&[30]),
        most: 40,
    },
];

pub(super) fn is_bell(call: &Call) -> bool {
    call.file == "anon_inode:[eventfd]"
}
