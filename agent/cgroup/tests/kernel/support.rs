//! A private cgroup root that goes away with the test, and processes to put into it.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::AsFd,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Controller, Hierarchies, KillHandle, Tree};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The cgroups of one test. Dropping it kills what is left in them and removes them, also when the
/// test fails.
pub(crate) struct Sandbox {
    /// The tree below the private root.
    pub(crate) tree: Tree,
    outer: Tree,
    root: String,
}

/// Every directory of a cgroup that exists, over all hierarchies.
fn directories(tree: &Tree, rel: &str) -> Vec<PathBuf> {
    let hierarchies = tree.hierarchies();
    let mut all: Vec<_> = hierarchies
        .controllers
        .values()
        .chain(&hierarchies.v2_mount)
        .map(|mount| mount.join(tree.root()).join(rel))
        .filter(|directory| directory.is_dir())
        .collect();
    all.sort();
    all.dedup();
    all
}

impl Sandbox {
    /// A fresh root in every hierarchy; `None`, with the reason printed, where that is not allowed.
    pub(crate) fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root to make cgroups");
            return None;
        }
        let hierarchies = match Hierarchies::detect() {
            Ok(hierarchies) => hierarchies,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = format!("podwarden-test-{}-{count}", std::process::id());
        // A v1 mount of a kernel built without the v1 memory controller.
        if let Err(error) = hierarchies.mount_of(Controller::Memory) {
            println!("skipped: {error}");
            return None;
        }
        let outer = Tree::new(hierarchies.clone(), "").unwrap();
        let tree = Tree::new(hierarchies, &root).unwrap();
        match tree.create(&CgroupPath::ROOT) {
            Ok(_) => Some(Self { tree, outer, root }),
            Err(error) if error.is_permission() => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}: {:?}", error.errno()),
        }
    }

    /// Makes a cgroup; its name is returned for convenience.
    pub(crate) fn cgroup<'a>(&self, rel: &'a str) -> &'a str {
        let _removed_with_the_root = self.tree.create(&rel.into()).unwrap();
        rel
    }

    /// Every directory of a cgroup that exists, over all hierarchies.
    pub(crate) fn directories(&self, rel: &str) -> Vec<PathBuf> {
        directories(&self.tree, rel)
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Ok(handle) = KillHandle::open(&self.outer, &self.root.as_str().into()) {
            let _ = handle.kill_workload(&mut |_| {});
        }
        // What that leaves alone, as a pod's sandbox.
        for entry in self.tree.list(&CgroupPath::ROOT).unwrap_or_default() {
            let left = self.tree.procs(&entry.path).unwrap_or_default();
            for pid in left.into_iter().filter(|pid| *pid > 0) {
                // SAFETY: a signal to a process of this test's own cgroup.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
        }
        let removed = self.outer.remove(&self.root.as_str().into());
        if !std::thread::panicking() {
            removed.unwrap();
        }
    }
}

/// A cgroup's `cgroup.procs` of every hierarchy, open for writing.
pub(crate) struct Attach(Vec<File>);

impl Attach {
    pub(crate) fn open(tree: &Tree, rel: &str) -> Self {
        let open = |directory: PathBuf| File::create(directory.join("cgroup.procs")).unwrap();
        let files: Vec<_> = directories(tree, rel).into_iter().map(open).collect();
        assert!(!files.is_empty(), "there is no cgroup {rel}");
        Self(files)
    }

    /// Moves the caller with all its threads. Allocates nothing and only writes to open files, so a forked child may
    /// call it.
    pub(crate) fn enter(&self) -> io::Result<()> {
        self.put(b"0")
    }

    /// Moves the process of an id in digits.
    pub(crate) fn put(&self, pid: &[u8]) -> io::Result<()> {
        self.0.iter().try_for_each(|mut file| file.write_all(pid))
    }
}

/// A process in a cgroup, started by `fork` alone so that nothing of it happens outside.
pub(crate) struct Victim {
    /// Its id.
    pub(crate) pid: u32,
}

impl Victim {
    /// Starts a process that moves itself into the cgroup and then runs `body`, which may only do
    /// what is allowed after `fork` in a threaded program (signal-safety(7)). Returns when it is in
    /// the cgroup of every hierarchy.
    pub(crate) fn spawn(attach: &Attach, body: fn() -> !) -> Self {
        let (mut attached, report) = io::pipe().unwrap();
        // SAFETY: the child calls only write(2) on open files, `body` and _exit(2).
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", io::Error::last_os_error());
        if pid == 0 {
            if attach.enter().is_err() || (&report).write_all(b"!").is_err() {
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(1) };
            }
            body()
        }
        let victim = Self { pid: pid as u32 };
        drop(report);
        attached
            .read_exact(&mut [0])
            .expect("the child could not enter its cgroup");
        victim
    }

    /// Starts a process that sleeps until it is killed.
    pub(crate) fn sleeper(attach: &Attach) -> Self {
        Self::spawn(attach, || {
            loop {
                // SAFETY: pause(2) takes nothing.
                unsafe { libc::pause() };
            }
        })
    }

    /// True while it has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.wait(libc::WNOHANG).is_none()
    }

    /// Waits for its end; the signal that caused it, or `None` for an exit.
    pub(crate) fn ended_by(&self) -> Option<i32> {
        let status = self
            .wait(0)
            .expect("wait without WNOHANG returns at the end");
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    /// Waits for its end; the exit code, or `None` when a signal ended it.
    pub(crate) fn exit_code(&self) -> Option<i32> {
        let status = self
            .wait(0)
            .expect("wait without WNOHANG returns at the end");
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }

    fn wait(&self, flags: i32) -> Option<i32> {
        let mut status = 0;
        // SAFETY: status is ours to write to; the process is our child.
        let got = unsafe { libc::waitpid(self.pid as i32, &mut status, flags) };
        (got == self.pid as i32).then_some(status)
    }
}

/// Waits until something is so; fails after 20 s.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Waits for up to `seconds`.
pub(crate) fn is_ready(fd: impl AsFd, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&timeout)).unwrap() == 1
}

/// Touches so many MiB and then sleeps; a body for [`Victim::spawn`].
pub(crate) fn eat<const MIB: usize>() -> ! {
    // SAFETY: a private mapping of our own, written within its bounds.
    unsafe {
        let length = MIB << 20;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            libc::_exit(1);
        }
        std::ptr::write_bytes(memory.cast::<u8>(), 1, length);
        loop {
            libc::pause();
        }
    }
}
