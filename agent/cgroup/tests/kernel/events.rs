use crate::support::{Attach, Sandbox, Victim, eat, eventually, is_ready};
use podwarden_cgroup::{
    CgroupPath, Controller, Errno, Error, MemoryEvents, MemoryReader, MemoryThresholds, PsiKind,
    PsiResource, PsiThreshold, PsiTrigger,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

#[test]
fn a_memory_threshold_notices_the_crossing() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let level = 16 << 20;
    let notice = |path: &CgroupPath| MemoryThresholds::of(tree, path)?.notice_at(level);
    let noticed = match notice(&"pod".into()) {
        Err(Error::Unsupported { reason, .. }) => {
            println!("skipped: {reason}");
            return;
        }
        other => other.unwrap(),
    };
    assert!(!is_ready(&noticed, 0));
    let _victim = Victim::spawn(&Attach::open(tree, container), eat::<32>);
    assert!(is_ready(&noticed, 20));
    assert!(
        MemoryReader::open(tree, &"pod".into())
            .unwrap()
            .usage()
            .unwrap()
            >= level
    );
    assert!(notice(&"other".into()).unwrap_err().is_gone());
}

#[test]
fn psi_triggers_are_taken_where_there_is_v2() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let threshold = |kind, window_us| PsiThreshold {
        kind,
        stall_us: 1000,
        window_us,
    };
    let trigger = |kind, window_us| {
        PsiTrigger::new(
            tree,
            &pod.into(),
            PsiResource::Memory,
            threshold(kind, window_us),
        )
    };
    // A window that also a caller without CAP_SYS_RESOURCE may have.
    match trigger(PsiKind::Some, 2_000_000) {
        Err(error @ (Error::Unsupported { .. } | Error::NotFound { .. })) => {
            println!("skipped: {error}");
            return;
        }
        other => drop(other.unwrap()),
    }
    drop(trigger(PsiKind::Full, 2_000_000).unwrap());
    let error = trigger(PsiKind::Some, 1000).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL));
    let of_node =
        |window_us| PsiTrigger::of_node(PsiResource::Memory, threshold(PsiKind::Full, window_us));
    drop(of_node(4_000_000).unwrap());
    assert_eq!(of_node(1000).unwrap_err().errno(), Some(Errno::INVAL));
}

#[test]
fn a_limit_that_is_reached_is_noticed_on_v2() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let events = match MemoryEvents::open(tree, &pod.into()) {
        Ok(events) => events,
        Err(error @ Error::Unsupported { .. }) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let noticed = || {
        let mut fds = [PollFd::new(&events, PollFlags::PRI)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
    };
    events.silence().unwrap();
    assert!(!noticed());
    let container = sandbox.cgroup("pod/container");
    let high = tree.path(Controller::Memory, &container.into()).unwrap();
    std::fs::write(high.join("memory.high"), "1M").unwrap();
    let _victim = Victim::spawn(&Attach::open(tree, container), eat::<32>);
    eventually("its excess is noticed", noticed);
    std::fs::write(high.join("memory.high"), "max").unwrap();
    eventually("silence", || {
        events.silence().unwrap();
        !noticed()
    });
}
