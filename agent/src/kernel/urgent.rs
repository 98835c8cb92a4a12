//! A thread that runs before all that is ordinary, for a short time: it takes a node over that no agent watches.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::realtime::{PRIORITY, mount_with_budgets, set_fifo, set_ordinary};

/// Of a thread.
const CGROUPS: &str = "/proc/thread-self/cgroup";
/// Below the reactor, which does not wait for it.
const BELOW_REACTOR: i32 = PRIORITY - 1;

/// The thread that called [`Urgent::begin`] is SCHED_FIFO. So is none that it starts.
#[derive(Debug)]
pub(crate) struct Urgent {
    /// The v1 cpu cgroup that it has left, see [`super::realtime::make_fifo`]; what it starts is outside as well.
    left: Option<PathBuf>,
}

/// Threads of this process that are to return to its cgroup.
#[derive(Debug)]
pub(crate) struct Return(PathBuf);

impl Urgent {
    /// `None` where the kernel refuses: the thread is as it was. To leave a cgroup takes a grace period of the kernel's, so
    /// begin while there is time.
    pub(crate) fn begin() -> Option<Self> {
        if set_fifo(BELOW_REACTOR) {
            return Some(Self { left: None });
        }
        let mount = mount_with_budgets().ok()?;
        let home = cgroup_of_this_thread(&mount)?;
        fs::write(tasks(&mount), "0").ok()?;
        if set_fifo(BELOW_REACTOR) {
            return Some(Self { left: Some(home) });
        }
        // What let it leave lets it return.
        let _ = fs::write(tasks(&home), "0");
        None
    }

    /// The calling thread, the one that began, is ordinary again at once. What is left to do takes grace periods, which it
    /// need not wait for.
    pub(crate) fn end(self) -> Option<Return> {
        // A thread may always be less than it is.
        let _ = set_ordinary();
        self.left.map(Return)
    }
}

impl Return {
    /// Moves every thread of this process there that is not real-time, which the cgroup would refuse. After a refusal
    /// the other threads are moved; the error is the first one.
    pub(crate) fn run(self) -> io::Result<()> {
        let tasks = tasks(&self.0);
        let mut returned = Ok(());
        for thread in fs::read_dir("/proc/self/task")? {
            let id = thread?.file_name();
            let Some(id) = id.to_str() else { continue };
            if is_real_time(id) {
                continue;
            }
            match fs::write(&tasks, id) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                moved => returned = returned.and(moved),
            }
        }
        returned
    }
}

fn tasks(cgroup: &Path) -> PathBuf {
    cgroup.join("tasks")
}

fn is_real_time(thread: &str) -> bool {
    let Ok(id) = thread.parse() else { return false };
    // SAFETY: reads the policy of a thread of this process.
    let policy = unsafe { libc::sched_getscheduler(id) };
    policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_FIFO
}

/// Its directory below the mount point of the v1 cpu hierarchy; `None` where that does not hold this thread, as where the
/// path is one of another cgroup namespace.
fn cgroup_of_this_thread(mount: &Path) -> Option<PathBuf> {
    let cgroups = fs::read_to_string(CGROUPS).ok()?;
    let directory = mount.join(cpu_cgroup(&cgroups)?.trim_start_matches('/'));
    let id = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = fs::read_to_string(tasks(&directory)).ok()?;
    threads
        .lines()
        .any(|thread| thread == id)
        .then_some(directory)
}

/// In lines of `hierarchy:controllers:path` (cgroups(7)).
fn cpu_cgroup(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        controllers
            .split(',')
            .any(|name| name == "cpu")
            .then(|| parts.next())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_controller_is_found_among_others() {
        let text = "5:cpuset:/a\n4:cpu,cpuacct:/kubepods/pod1/c:1\n3:cpuacct:/b\n0::/d\n";
        assert_eq!(cpu_cgroup(text), Some("/kubepods/pod1/c:1"));
        assert_eq!(cpu_cgroup("3:cpuacct:/b\n0::/d\n"), None);
    }

    /// Thread by thread: as it was after, and what was started meanwhile is ordinary and in the same cgroup.
    #[test]
    fn a_thread_is_urgent_until_it_ends_that() {
        let work = || {
            let policy = || {
                // SAFETY: reads the policy of this thread.
                unsafe { libc::sched_getscheduler(0) }
            };
            let cgroups = || fs::read_to_string(CGROUPS).unwrap();
            let before = cgroups();
            let Some(urgent) = Urgent::begin() else {
                assert_eq!(policy(), libc::SCHED_OTHER);
                assert_eq!(cgroups(), before);
                println!("skipped: SCHED_FIFO is refused here");
                return;
            };
            assert_eq!(policy(), libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK);
            let (go, gone) = std::sync::mpsc::channel();
            let started = std::thread::spawn(move || {
                gone.recv().unwrap();
                (policy(), cgroups())
            });
            if let Some(back) = urgent.end() {
                back.run().unwrap();
            }
            assert_eq!(policy(), libc::SCHED_OTHER);
            assert_eq!(cgroups(), before);
            go.send(()).unwrap();
            assert_eq!(started.join().unwrap(), (libc::SCHED_OTHER, before));
        };
        std::thread::spawn(work).join().unwrap();
    }
}
