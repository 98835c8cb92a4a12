use std::fs;

use podwarden_cgroup::{AgentLock, Error};

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
