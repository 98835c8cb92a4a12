//! Signals before `cgroup.kill`, and only to what is listed still: on files that look like a cgroup, with real
//! processes.

use std::{
    fs,
    os::{fd::AsFd as _, unix::process::ExitStatusExt as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::fcntl_setfl;

use super::*;

fn sleeper() -> Child {
    let mut sleeper = Command::new("sleep");
    sleeper.arg("60").stdin(Stdio::null()).spawn().unwrap()
}

/// Waits until it has ended; the signal that did it.
fn ended_by(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status.signal();
        }
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// A directory that lists some processes.
fn listing(pids: &[u32]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    list(directory.path(), pids);
    directory
}

fn list(directory: &Path, pids: &[u32]) {
    let text: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
    fs::write(directory.join("cgroup.procs"), text).unwrap();
}

/// With what stands for `cgroup.kill`.
fn by_kernel(directory: &Path, kill: OwnedFd) -> KillHandle {
    KillHandle {
        method: Method::Kernel(kill),
        directory: io::open_dir(directory).unwrap(),
        path: directory.into(),
        is_v2: true,
        kinds: ChildKinds::default(),
    }
}

/// A pipe whose next write waits, as a write of `cgroup.kill` does while `cgroup_mutex` is held.
fn held() -> (OwnedFd, OwnedFd) {
    let (reads, writes) = std::io::pipe().unwrap();
    fcntl_setfl(&writes, OFlags::NONBLOCK).unwrap();
    while rustix::io::write(&writes, &[0; 4096]).is_ok() {}
    fcntl_setfl(&writes, OFlags::empty()).unwrap();
    (reads.into(), writes.into())
}

#[test]
fn the_listed_die_while_the_write_of_cgroup_kill_waits() {
    let (reads, writes) = held();
    let mut children = [sleeper(), sleeper()];
    let pids = children.each_ref().map(Child::id);
    let directory = listing(&pids);
    fs::write(directory.path().join("cgroup.events"), "populated 1\n").unwrap();
    let handle = by_kernel(directory.path(), writes);
    thread::scope(|scope| {
        let kill = scope.spawn(|| handle.kill_but(None, &mut |_| {}));
        for child in &mut children {
            assert_eq!(ended_by(child), Some(9), "nothing waits for cgroup.kill");
        }
        assert!(!kill.is_finished(), "its write did not wait");
        let mut taken = vec![0; 1 << 16];
        assert!(rustix::io::read(&reads, &mut taken).unwrap() > 0);
        let killed = kill.join().unwrap().unwrap();
        assert_eq!((killed.processes, killed.complete), (2, true));
    });
}

#[test]
fn a_thread_that_must_not_wait_leaves_cgroup_kill_to_another() {
    let (reads, writes) = held();
    let mut child = sleeper();
    let directory = listing(&[child.id()]);
    let handle = by_kernel(directory.path(), writes);
    let mut found = Vec::new();
    // It would wait for ever.
    let killed = handle.signal_workload(&mut |pid| found.push(pid)).unwrap();
    assert_eq!((killed.processes, killed.complete), (1, true));
    assert_eq!(found, [child.id()]);
    assert_eq!(ended_by(&mut child), Some(9));
    let mut taken = vec![0; 1 << 16];
    assert!(rustix::io::read(&reads, &mut taken).unwrap() > 1);
    handle.kill_forked().unwrap();
    let n = rustix::io::read(&reads, &mut taken).unwrap();
    assert_eq!(taken[..n], *b"1");
}

/// A process of another pid namespace has no id here.
#[test]
fn what_cannot_be_signalled_is_killed_by_the_kernel_at_once() {
    let (reads, writes) = std::io::pipe().unwrap();
    let mut child = sleeper();
    let directory = listing(&[child.id(), 0]);
    let handle = by_kernel(directory.path(), writes.into());
    let killed = handle.signal_workload(&mut |_| {}).unwrap();
    assert_eq!((killed.processes, killed.complete), (2, true));
    assert_eq!(ended_by(&mut child), Some(9));
    let mut taken = [0; 16];
    assert_eq!(rustix::io::read(&reads, &mut taken), Ok(1));
}

#[test]
fn an_empty_cgroup_costs_no_wait() {
    let (_reads, writes) = held();
    let directory = listing(&[]);
    fs::write(directory.path().join("cgroup.events"), "populated 0\n").unwrap();
    let killed = by_kernel(directory.path(), writes).signal_workload(&mut |_| {});
    let killed = killed.unwrap();
    assert_eq!(
        (killed.processes, killed.dying, killed.complete),
        (0, false, true)
    );
}

/// Once asked for a process, the cgroup lists `then` instead.
struct Moves<'a> {
    directory: &'a Path,
    then: &'a [u32],
    signalled: Vec<(u32, Signalled)>,
}

impl Recipients for Moves<'_> {
    const BY_ID: bool = true;

    fn wants(&self, _: u32) -> bool {
        list(self.directory, self.then);
        true
    }

    fn signalled(&mut self, pid: u32, signalled: Signalled) {
        self.signalled.push((pid, signalled));
    }
}

/// Its id was listed, and is another's by the time of the signal: one that took it over, or one that left.
#[test]
fn a_process_that_the_cgroup_does_not_list_any_more_is_spared() {
    let (mut victim, mut other) = (sleeper(), sleeper());
    let (stays, left) = (victim.id(), other.id());
    let directory = listing(&[left, stays]);
    let mut moves = Moves {
        directory: directory.path(),
        then: &[stays],
        signalled: Vec::new(),
    };
    let cgroup = io::open_dir(directory.path()).unwrap();
    signal_listed(cgroup.as_fd(), &mut moves).unwrap();
    assert_eq!(moves.signalled, [(stays, Signalled::Sent)]);
    assert_eq!(ended_by(&mut victim), Some(9));
    assert!(other.try_wait().unwrap().is_none(), "it was killed");
    other.kill().unwrap();
    other.wait().unwrap();
}

/// More processes than are opened at a time.
#[test]
fn every_one_of_many_is_signalled_once() {
    let mut children: Vec<_> = (0..150).map(|_| sleeper()).collect();
    let pids: Vec<_> = children.iter().map(Child::id).collect();
    let directory = listing(&pids);
    let mut moves = Moves {
        directory: directory.path(),
        then: &pids,
        signalled: Vec::new(),
    };
    let cgroup = io::open_dir(directory.path()).unwrap();
    signal_listed(cgroup.as_fd(), &mut moves).unwrap();
    let expected: Vec<_> = pids.iter().map(|pid| (*pid, Signalled::Sent)).collect();
    assert_eq!(moves.signalled, expected);
    for child in &mut children {
        assert_eq!(ended_by(child), Some(9));
    }
}
