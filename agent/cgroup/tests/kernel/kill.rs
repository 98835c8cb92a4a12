//! Killing on this kernel.
//!
//! More than 400 lines: every case needs the same processes and looks at the same handle.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    thread::sleep,
    time::Duration,
};

use podwarden_cgroup::{
    ChildKinds, Controller, Error, FreezeRecord, KillHandle, Killed, LeftFrozen, Tree,
    freeze_record_file,
};
use podwarden_policy::{limits::Limit, settings::Setting};

use crate::support::{Attach, Sandbox, Victim, eventually};

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
    let entries = tree.list(&rel.into()).unwrap();
    entries
        .iter()
        .map(|entry| tree.procs(&entry.path).unwrap().len())
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
    tree.write(&"pod".into(), &Setting::PidsLimit(Limit::At(48)))
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let record = FreezeRecord::create(&dir.path().join("frozen")).unwrap();
    let file = record.path().to_owned();
    let handle = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .with_record(Arc::new(record));
    let bystander = Victim::sleeper(&Attach::open(tree, bystander));
    for _ in 0..5 {
        let bomb = Victim::spawn(&Attach::open(tree, container), fork_bomb);
        eventually("the bomb went off", || everyone(tree, "pod") >= 24);
        let killed = handle.kill_workload(&mut |_| {}).unwrap();
        assert!(killed.complete && killed.processes >= 1, "{killed:?}");
        eventually("all are dead", || everyone(tree, "pod") == 0);
        // One that had escaped would have forked again by now.
        sleep(Duration::from_millis(20));
        assert_eq!(everyone(tree, "pod"), 0, "{killed:?}");
        let _reaped = bomb.ended_by();
        let noted = fs::read(&file).unwrap();
        assert!(
            noted.iter().all(|byte| *byte == 0),
            "thawed and still noted"
        );
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
        Victim::sleeper(&Attach::open(tree, rel))
    };
    let inside = ["pod/a", "pod/b/c/d/e", "pod/b/f"].map(sleeper);
    let beside = ["pod2/a", "podx"].map(sleeper);
    eventually("all are inside", || everyone(tree, "") == 5);

    let killed = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {})
        .unwrap();
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
        Victim::sleeper(&Attach::open(&tree, rel))
    };
    let victims = ["pod", "pod/a", "pod/a/b"].map(sleeper);
    let killed = KillHandle::open(&tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {})
        .unwrap();
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
    let victim = Victim::sleeper(&Attach::open(tree, container));
    eventually("it is inside", || everyone(tree, container) == 1);
    match tree.path(Controller::Freezer, &container.into()) {
        Ok(directory) => fs::write(directory.join("freezer.state"), "FROZEN").unwrap(),
        Err(_) => {
            let directory = tree.v2_path(&container.into()).unwrap();
            fs::write(directory.join("cgroup.freeze"), "1").unwrap();
        }
    }
    let killed = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {})
        .unwrap();
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
    let attach = Attach::open(tree, container);
    let victims: Vec<_> = (0..20)
        .map(|_| Victim::spawn(&attach, crate::support::eat::<32>))
        .collect();
    eventually("all are inside", || everyone(tree, "pod") == 20);
    let killed = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {})
        .unwrap();
    assert_eq!((killed.processes, killed.complete), (20, true));
    assert!(killed.passes <= 2, "{killed:?}");
    for victim in victims {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
}

/// Takes the name of a sandbox's process.
fn pause() {
    // SAFETY: the name is a C string that the call copies.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"pause".as_ptr()) };
}

fn sandbox_process() -> ! {
    pause();
    loop {
        // SAFETY: pause(2) takes nothing.
        unsafe { libc::pause() };
    }
}

fn hides_behind_the_name() -> ! {
    pause();
    crate::support::eat::<32>()
}

/// Starts a process in a new cgroup and waits until it is called `pause`.
fn called_pause(sandbox: &Sandbox, rel: &str, body: fn() -> !) -> Victim {
    sandbox.cgroup(rel);
    let victim = Victim::spawn(&Attach::open(&sandbox.tree, rel), body);
    let comm = format!("/proc/{}/comm", victim.pid);
    eventually("it has its name", || {
        fs::read_to_string(&comm).is_ok_and(|name| name == "pause\n")
    });
    victim
}

#[test]
fn the_sandbox_is_left_alive() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let sleeper = |rel: &str| {
        sandbox.cgroup(rel);
        Victim::sleeper(&Attach::open(tree, rel))
    };
    let pause = called_pause(&sandbox, "pod/sandbox", sandbox_process);
    let inside = ["pod/a", "pod/b", "pod/b/nested"].map(sleeper);
    let handle = KillHandle::open(tree, &"pod".into()).unwrap();
    let mut listed = Vec::new();
    handle.processes(&mut |pid| listed.push(pid)).unwrap();
    assert!(!listed.contains(&pause.pid), "{listed:?}");
    assert!(inside.iter().all(|victim| listed.contains(&victim.pid)));

    let v2 = tree.hierarchies().is_on_v2(Controller::Memory);
    assert_eq!(handle.is_populated().unwrap(), v2.then_some(true));
    let mut found = Vec::new();
    let killed = handle.kill_workload(&mut |pid| found.push(pid)).unwrap();
    assert_eq!(
        (killed.processes, killed.complete, killed.spared),
        (3, true, true)
    );
    found.sort_unstable();
    let mut want = inside.each_ref().map(|victim| victim.pid);
    want.sort_unstable();
    assert_eq!(found, want);
    for victim in inside {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
    assert!(pause.is_running());
    // With the workload gone there is no process to kill, and it stays that way.
    eventually("the workload is gone", || everyone(tree, "pod") == 1);
    let alone = v2.then_some(false);
    eventually("the sandbox is alone", || {
        handle.is_populated().unwrap() == alone
    });
    let killed = handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!(
        (killed.processes, killed.spared, killed.dying),
        (0, true, false)
    );
    assert!(pause.is_running());
}

#[test]
fn a_workload_does_not_hide_behind_the_sandboxs_name() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let hog = called_pause(&sandbox, "pod/a", hides_behind_the_name);
    eventually("it has eaten", || {
        let memory = podwarden_cgroup::MemoryReader::open(tree, &"pod/a".into()).unwrap();
        memory.usage().unwrap() > 16 << 20
    });
    let killed = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {});
    let killed = killed.unwrap();
    assert_eq!((killed.processes, killed.spared), (1, false));
    assert_eq!(hog.ended_by(), Some(libc::SIGKILL));
}

/// What the runtime says counts for more than what a process calls itself.
#[test]
fn the_sandbox_that_was_told_is_left_alive() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("pod/told");
    let told = Victim::sleeper(&Attach::open(tree, "pod/told"));
    let impostor = called_pause(&sandbox, "pod/workload", sandbox_process);
    sandbox.cgroup("pod/died");
    let handle = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .with_kinds(ChildKinds {
            sandboxes: ["told".to_owned(), "died".to_owned()].into(),
            workloads: ["workload".to_owned()].into(),
        });
    let killed = handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!((killed.processes, killed.spared), (1, true));
    assert_eq!(impostor.ended_by(), Some(libc::SIGKILL));
    assert!(told.is_running());
}

/// The sandbox of a virtual machine holds the workload, as with Kata and `sandbox_cgroup_only`.
#[test]
fn a_sandbox_that_was_told_and_holds_the_workload_is_killed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let eats = |name: &str| {
        let rel = format!("pod/{name}");
        let _removed_with_the_root = tree.create(&rel.as_str().into()).unwrap();
        let attach = Attach::open(tree, rel.as_str());
        let victim = Victim::spawn(&attach, hides_behind_the_name);
        eventually("it has eaten", || {
            let memory = podwarden_cgroup::MemoryReader::open(tree, &rel.as_str().into()).unwrap();
            memory.usage().unwrap() > 16 << 20
        });
        victim
    };
    let machine = eats("told");
    // Nor does a name make a monitor.
    let monitor = eats("crio-conmon-1.scope");
    let handle = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .with_kinds(ChildKinds {
            sandboxes: ["told".to_owned()].into(),
            ..ChildKinds::default()
        });
    let killed = handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!((killed.processes, killed.spared), (2, false));
    for victim in [machine, monitor] {
        assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    }
}

/// A monitor tells CRI-O of its container's end, also where the sandbox has died.
#[test]
fn monitors_are_left_alive() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let [monitor, workload] = ["pod/crio-conmon-1.scope", "pod/crio-1.scope"].map(|rel| {
        sandbox.cgroup(rel);
        Victim::sleeper(&Attach::open(tree, rel))
    });
    let handle = KillHandle::open(tree, &"pod".into()).unwrap();
    let killed = handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!((killed.processes, killed.spared), (1, false));
    assert_eq!(workload.ended_by(), Some(libc::SIGKILL));
    assert!(monitor.is_running());
}

/// One that died by itself may have a successor that was not told yet.
#[test]
fn a_sandbox_that_was_not_told_is_recognised_beside_one_that_died() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("pod/died");
    sandbox.cgroup("pod/workload");
    let workload = Victim::sleeper(&Attach::open(tree, "pod/workload"));
    let successor = called_pause(&sandbox, "pod/successor", sandbox_process);
    let handle = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .with_kinds(ChildKinds {
            sandboxes: ["died".to_owned()].into(),
            workloads: ["workload".to_owned()].into(),
        });
    let killed = handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!((killed.processes, killed.spared), (1, true));
    assert_eq!(workload.ended_by(), Some(libc::SIGKILL));
    assert!(successor.is_running());
}

/// What an agent leaves that is killed between freezing and thawing. What is frozen and not in its record
/// was frozen by another.
#[test]
fn what_is_in_the_record_is_thawed_and_nothing_else() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let Ok(freezer) = tree.path(Controller::Freezer, &"pod".into()) else {
        println!("skipped: v2 kills without freezing");
        return;
    };
    let victim = Victim::sleeper(&Attach::open(tree, container));
    let dir = tempfile::tempdir().unwrap();
    let file = freeze_record_file(dir.path(), "/a/b").unwrap();
    assert!(file.ends_with("podwarden-a%2Fb.frozen"));
    assert!(LeftFrozen::open(&file).unwrap().is_none());
    let record = Arc::new(FreezeRecord::create(&file).unwrap());
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let left = LeftFrozen::open(&file).unwrap().unwrap();
    let is_frozen = |state: &Path| fs::read_to_string(state).unwrap().trim() == "FROZEN";

    // Another freezes the pod, or a runtime the container in it.
    let (pod, nested) = (
        freezer.join("freezer.state"),
        freezer.join("container/freezer.state"),
    );
    for state in [&pod, &nested] {
        fs::write(state, "FROZEN").unwrap();
        eventually("it is frozen", || is_frozen(state));
        assert!(left.thaw(tree).unwrap().is_empty());
        assert!(is_frozen(state), "{}", state.display());
        fs::write(state, "THAWED").unwrap();
    }

    // As a kill notes it.
    let id = fs::metadata(&freezer).unwrap().ino();
    fs::write(&file, id.to_ne_bytes()).unwrap();
    assert!(left.thaw(tree).unwrap().is_empty(), "it is not frozen");
    fs::write(&nested, "FROZEN").unwrap();
    eventually("the container is frozen", || is_frozen(&nested));
    fs::write(&pod, "FROZEN").unwrap();
    assert_eq!(left.thaw(tree).unwrap(), std::slice::from_ref(&freezer));
    eventually("the pod is thawed", || {
        fs::read_to_string(freezer.join("freezer.self_freezing"))
            .unwrap()
            .trim()
            == "0"
    });
    assert!(is_frozen(&nested), "a paused container stays paused");
    fs::write(&nested, "THAWED").unwrap();
    assert!(victim.is_running());

    // A kill leaves nothing in it.
    let handle = KillHandle::open(tree, &"pod".into())
        .unwrap()
        .with_record(Arc::clone(&record));
    handle.kill_workload(&mut |_| {}).unwrap();
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    drop((handle, record));
    assert!(!file.exists());
}

#[test]
fn reclaiming_leaves_the_living_alone() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let victim = Victim::sleeper(&Attach::open(tree, container));
    match KillHandle::open(tree, &"pod".into())
        .unwrap()
        .reclaim_cache()
    {
        Ok(()) => {}
        Err(Error::NotFound { .. }) => println!("skipped: v2 without memory.reclaim"),
        Err(error) => panic!("{error}: {:?}", error.errno()),
    }
    assert!(victim.is_running());
}

#[test]
fn an_empty_cgroup_has_nothing_to_kill() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    sandbox.cgroup("pod/container");
    let killed = KillHandle::open(&sandbox.tree, &"pod".into())
        .unwrap()
        .kill_workload(&mut |_| {})
        .unwrap();
    let want = Killed {
        processes: 0,
        passes: 1,
        spared: false,
        dying: false,
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
    let handle = KillHandle::open(tree, &pod.into()).unwrap();
    tree.remove(&pod.into()).unwrap();
    let error = handle.kill_workload(&mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error:?}");
    assert!(matches!(
        KillHandle::open(tree, &pod.into()),
        Err(Error::NotFound { .. })
    ));
    assert!(matches!(
        KillHandle::open(tree, &"".into()),
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
    let attach = Attach::open(tree, "pod/container");
    // SAFETY: the child of a threaded program may allocate here only because the allocator takes
    // care of fork (pthread_atfork in the C library); it ends by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = attach.enter().is_ok()
            && matches!(
                KillHandle::open(tree, &"pod".into()),
                Err(Error::OwnCgroup { .. })
            );
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(if refused { 0 } else { 1 }) };
    }
    assert!(pid > 0);
    assert_eq!(Victim { pid: pid as u32 }.exit_code(), Some(0));
}
