use std::{fs, thread::sleep, time::Duration};

use podwarden_cgroup::{Controller, Error, KillHandle, Killed, Tree};

use crate::support::{Sandbox, Victim, eventually};

/// Forks as fast as it may; every process leaves after some forks, so that the set of processes
/// changes all the time.
fn fork_bomb() -> ! {
    // SAFETY: only async-signal-safe calls, on no memory of ours.
    unsafe {
        // No zombies: they would count against the limit.
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        let mut forks = 0;
        loop {
            match libc::fork() {
                0 => forks = 0,
                -1 => {
                    libc::usleep(200);
                }
                _ => {
                    forks += 1;
                    if forks == 5 {
                        libc::_exit(0);
                    }
                }
            }
        }
    }
}

fn everyone(tree: &Tree, rel: &str) -> usize {
    let entries = tree.list(rel).unwrap();
    entries
        .iter()
        .map(|entry| tree.procs(&entry.rel).unwrap().len())
        .sum()
}

#[test]
fn a_fork_bomb_ends() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let bystander = sandbox.cgroup("bystander");
    tree.set_pids_limit("pod", Some(48)).unwrap();
    let handle = KillHandle::open(tree, "pod").unwrap();
    let bystander = Victim::sleeper(&tree.open_attach(bystander).unwrap());
    for _ in 0..5 {
        let bomb = Victim::spawn(&tree.open_attach(container).unwrap(), fork_bomb);
        eventually("the bomb went off", || everyone(tree, "pod") >= 24);
        let killed = handle.kill().unwrap();
        assert!(killed.complete && killed.processes >= 1, "{killed:?}");
        eventually("all are dead", || everyone(tree, "pod") == 0);
        // One that had escaped would have forked again by now.
        sleep(Duration::from_millis(20));
        assert_eq!(everyone(tree, "pod"), 0, "{killed:?}");
        let _reaped = bomb.ended_by();
    }
    assert!(bystander.is_running());
}

#[test]
fn nested_cgroups_are_killed_too_and_nothing_beside() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let sleeper = |rel: &str| {
        sandbox.cgroup(rel);
        Victim::sleeper(&tree.open_attach(rel).unwrap())
    };
    let inside = ["pod/a", "pod/b/c/d/e", "pod/b/f"].map(sleeper);
    let beside = ["pod2/a", "podx"].map(sleeper);
    eventually("all are inside", || everyone(tree, "") == 5);

    let killed = KillHandle::open(tree, "pod").unwrap().kill().unwrap();
    assert_eq!((killed.processes, killed.complete), (3, true));
    for victim in inside {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
    assert!(beside.iter().all(Victim::is_running));
}

/// Without a freezer processes are chased.
#[test]
fn a_machine_without_a_freezer() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let mut hierarchies = sandbox.tree.hierarchies().clone();
    if hierarchies
        .controllers
        .remove(&Controller::Freezer)
        .is_none()
    {
        println!("skipped: there is no v1 freezer to leave out");
        return;
    }
    let tree = Tree::new(hierarchies, sandbox.tree.root()).unwrap();
    let sleeper = |rel: &str| {
        sandbox.cgroup(rel);
        Victim::sleeper(&tree.open_attach(rel).unwrap())
    };
    let victims = ["pod", "pod/a", "pod/a/b"].map(sleeper);
    let killed = KillHandle::open(&tree, "pod").unwrap().kill().unwrap();
    assert_eq!((killed.processes, killed.complete), (3, true));
    for victim in victims {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
}

/// A paused container is frozen by itself: thawing the pod does not thaw it.
#[test]
fn a_paused_container_dies() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let victim = Victim::sleeper(&tree.open_attach(container).unwrap());
    eventually("it is inside", || everyone(tree, container) == 1);
    match tree.path(Controller::Freezer, container) {
        Ok(directory) => fs::write(directory.join("freezer.state"), "FROZEN").unwrap(),
        Err(_) => {
            let directory = tree.v2_path(container).unwrap();
            fs::write(directory.join("cgroup.freeze"), "1").unwrap();
        }
    }
    let killed = KillHandle::open(tree, "pod").unwrap().kill().unwrap();
    assert_eq!((killed.processes, killed.complete), (1, true));
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
}

/// The dying stay listed until their memory is freed: they are not killed again and again.
#[test]
fn the_dying_are_counted_once() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let attach = tree.open_attach(container).unwrap();
    let victims: Vec<_> = (0..20)
        .map(|_| Victim::spawn(&attach, crate::readers::eat_32_mib))
        .collect();
    eventually("all are inside", || everyone(tree, "pod") == 20);
    let killed = KillHandle::open(tree, "pod").unwrap().kill().unwrap();
    assert_eq!((killed.processes, killed.complete), (20, true));
    assert!(killed.passes <= 2, "{killed:?}");
    for victim in victims {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
}

#[test]
fn an_empty_cgroup_has_nothing_to_kill() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    sandbox.cgroup("pod/container");
    let killed = KillHandle::open(&sandbox.tree, "pod")
        .unwrap()
        .kill()
        .unwrap();
    let want = Killed {
        processes: 0,
        passes: 1,
        complete: true,
    };
    assert_eq!(killed, want);
}

#[test]
fn a_vanished_cgroup_is_gone() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let handle = KillHandle::open(tree, pod).unwrap();
    tree.remove(pod).unwrap();
    let error = handle.kill().unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error:?}");
    assert!(matches!(
        KillHandle::open(tree, pod),
        Err(Error::NotFound { .. })
    ));
    assert!(matches!(
        KillHandle::open(tree, ""),
        Err(Error::InvalidName { .. })
    ));
}

/// The test moves a copy of itself: were it let in, it would freeze or kill itself.
#[test]
fn our_own_cgroup_is_refused() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("pod/container");
    let attach = tree.open_attach("pod/container").unwrap();
    // SAFETY: the child of a threaded program may allocate here only because the allocator takes
    // care of fork (pthread_atfork in the C library); it ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = attach.attach(0).is_ok()
            && matches!(KillHandle::open(tree, "pod"), Err(Error::OwnCgroup { .. }));
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    assert_eq!(Victim { pid: pid as u32 }.exit_code(), Some(0));
}
