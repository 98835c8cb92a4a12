use std::{fs, sync::mpsc, thread};

use podwarden_cgroup::{AgentLock, Error, Predecessor, Progress};

#[test]
fn one_agent_for_each_root() {
    let directory = tempfile::tempdir().unwrap();
    let at = |root| AgentLock::acquire(directory.path(), root);
    let first = at("/a/b").unwrap();
    match at("a/b/").unwrap_err() {
        Error::Locked { path, holder } => {
            assert_eq!(&*path, first.path());
            assert_eq!(holder, Some(std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    let message = at("a/b").unwrap_err().to_string();
    assert!(
        message.contains(&format!("process {}", std::process::id())),
        "{message}"
    );
    // Other roots are others', also those that would look alike in a file name.
    let others = ["", "a", "a%2Fb", "a-b"].map(|root| at(root).unwrap());
    drop(first);
    drop(at("a/b").unwrap());
    drop(others);
    let left = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "the lock files are removed");
}

#[test]
fn a_file_left_by_a_crash_is_no_lock() {
    let directory = tempfile::tempdir().unwrap();
    let path = AgentLock::acquire(directory.path(), "x")
        .unwrap()
        .path()
        .to_owned();
    fs::write(&path, "4194303999").unwrap();
    let lock = AgentLock::acquire(directory.path(), "x").unwrap();
    assert_eq!(
        fs::read_to_string(lock.path()).unwrap(),
        std::process::id().to_string()
    );
}

#[test]
fn a_missing_directory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = AgentLock::acquire(&directory.path().join("none"), "x").unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
}

#[test]
fn one_agent_waits_and_hears_of_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    let first = AgentLock::acquire(dir, "x").unwrap();
    assert!(!first.has_successor());
    let progress = || AgentLock::progress(dir, "x").unwrap();
    assert_eq!(progress(), Progress::Underway);
    first.note_settled(true);
    assert_eq!(progress(), Progress::Settled);
    let (say, ready) = mpsc::channel();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| AgentLock::wait(dir, "x", |holder| say.send(holder).unwrap()));
        let this = Some(std::process::id());
        let holder = ready.recv().unwrap();
        assert_eq!(holder.pid, this);
        assert!(first.has_successor());
        first.note_settled(false);
        assert_eq!(progress(), Progress::Underway);
        first.note_end(77);
        assert_eq!(progress(), Progress::Underway);
        drop(first);
        let (second, before) = waiting.join().unwrap().unwrap();
        let expected = Predecessor {
            pid: this,
            ended_nanos: Some(77),
        };
        assert_eq!(before, Some(expected));
        assert!(!second.has_successor());
        assert_eq!(
            fs::read_to_string(second.path()).unwrap(),
            std::process::id().to_string()
        );
        assert_eq!(progress(), Progress::Underway);
    });
    assert_eq!(progress(), Progress::Absent);
    // One that finds the root free does not wait.
    let (lock, before) = AgentLock::wait(dir, "x", |_| unreachable!()).unwrap();
    assert_eq!(before, None);
    // One that waits counts, also where the other is gone already.
    fs::remove_file(lock.path()).unwrap();
    assert_eq!(progress(), Progress::Absent);
    let waits = fs::File::create(dir.join("podwarden-x.next")).unwrap();
    waits.lock().unwrap();
    assert_eq!(progress(), Progress::Underway);
    fs::remove_file(dir.join("podwarden-x.next")).unwrap();
    drop((lock, waits));
    let left = fs::read_dir(dir).unwrap().count();
    assert_eq!(left, 0, "the lock files are removed");
}

#[test]
fn one_that_ends_as_soon_as_the_next_is_ready_is_heard() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path();
    for ended_nanos in [Some(77), None] {
        let first = AgentLock::acquire(dir, "x").unwrap();
        let (_second, before) = AgentLock::wait(dir, "x", |_| {
            if let Some(nanos) = ended_nanos {
                first.note_end(nanos);
            }
            drop(first);
        })
        .unwrap();
        let pid = Some(std::process::id());
        assert_eq!(before, Some(Predecessor { pid, ended_nanos }));
    }
}

#[test]
fn one_that_waits_no_more_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_owned();
    let first = AgentLock::acquire(&dir, "x").unwrap();
    let (say, ready) = mpsc::channel();
    let there = dir.clone();
    // Ends with this process.
    thread::spawn(move || AgentLock::wait(&there, "x", |_| say.send(()).unwrap()));
    ready.recv().unwrap();
    AgentLock::stop_waiting(&dir, "x");
    assert!(!first.has_successor());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
}
