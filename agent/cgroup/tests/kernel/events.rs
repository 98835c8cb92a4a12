use crate::support::{Sandbox, Victim, is_ready};
use podwarden_cgroup::{
    Controller, DirectoryWatch, Errno, Error, MemoryReader, PsiResource, PsiTrigger,
    memory_threshold,
};

#[test]
fn a_memory_threshold_notices_the_crossing() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let level = 16 << 20;
    let notice = match memory_threshold(tree, "pod", level) {
        Err(Error::Unsupported { reason, .. }) => {
            println!("skipped: {reason}");
            return;
        }
        other => other.unwrap(),
    };
    assert!(!is_ready(&notice, 0));
    let _victim = Victim::spawn(
        &tree.open_attach(container).unwrap(),
        crate::readers::eat_32_mib,
    );
    assert!(is_ready(&notice, 20));
    assert!(MemoryReader::open(tree, "pod").unwrap().usage().unwrap() >= level);
    assert!(
        memory_threshold(tree, "other", level)
            .unwrap_err()
            .is_gone()
    );
}

#[test]
fn psi_triggers_are_taken_where_there_is_v2() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let trigger = |stall, window| PsiTrigger::new(tree, pod, PsiResource::Memory, stall, window);
    // A window that also a caller without CAP_SYS_RESOURCE may have.
    match trigger(50_000, 2_000_000) {
        Err(error @ (Error::Unsupported { .. } | Error::NotFound { .. })) => {
            println!("skipped: {error}");
            return;
        }
        other => drop(other.unwrap()),
    }
    let error = trigger(50_000, 1000).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL));
}

#[test]
fn new_cgroups_are_noticed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let directory = tree.path(Controller::Memory, "").unwrap();
    let mut watch = DirectoryWatch::new(&directory).unwrap();
    assert!(watch.created().unwrap().is_empty());
    sandbox.cgroup("kubepods/burstable");
    assert!(is_ready(&watch, 20));
    assert_eq!(watch.created().unwrap(), ["kubepods"]);
    assert!(watch.created().unwrap().is_empty());
    assert!(
        DirectoryWatch::new(&directory.join("other"))
            .unwrap_err()
            .is_gone()
    );
}

#[test]
fn a_watched_directory_that_goes_away_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut watch = DirectoryWatch::new(directory.path()).unwrap();
    std::fs::write(directory.path().join("file"), "").unwrap();
    std::fs::create_dir(directory.path().join("directory")).unwrap();
    assert_eq!(
        watch.created().unwrap(),
        ["directory"],
        "files are not cgroups"
    );
    drop(directory);
    assert!(matches!(watch.created(), Err(Error::Gone { .. })));
}
