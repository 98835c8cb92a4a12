//! What the scheduler says of tasks: `schedstat` in their directories of proc
//! (Documentation/scheduler/sched-stats.rst).

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Of one task, or of all threads of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SchedStat {
    /// CPU time, nanoseconds.
    pub(crate) ran: u64,
    /// How long it has waited for a CPU, nanoseconds.
    pub(crate) waited: u64,
}

impl SchedStat {
    /// Of one thread: the first of a process has its id.
    pub(crate) fn of_thread(tid: u32) -> Result<Self> {
        Self::read(Path::new(&format!("/proc/{tid}")))
    }

    /// Of all threads that a process has now.
    pub(crate) fn of_process(pid: u32) -> Result<Self> {
        let dir = format!("/proc/{pid}/task");
        let mut total = Self::default();
        for task in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
            let of_thread = Self::read(&task?.path())?;
            total.ran += of_thread.ran;
            total.waited += of_thread.waited;
        }
        Ok(total)
    }

    fn read(task: &Path) -> Result<Self> {
        let path = task.join("schedstat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}: {text:?}", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut fields = text.split_ascii_whitespace().map(str::parse);
        let mut next = || fields.next().context("a figure is missing");
        Ok(Self {
            ran: next()??,
            waited: next()??,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_two_figures() {
        let expected = SchedStat {
            ran: 12,
            waited: 345,
        };
        assert_eq!(SchedStat::parse("12 345 6\n").unwrap(), expected);
        for broken in ["", "12", "12 x 6"] {
            assert!(SchedStat::parse(broken).is_err(), "{broken:?}");
        }
    }
}
