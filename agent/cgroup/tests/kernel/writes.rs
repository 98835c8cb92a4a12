//! Foreign writes are noticed.

use std::{collections::BTreeSet, fs};

use podwarden_cgroup::{CgroupPath, Controller, Notice, Reading, WatchId, WriteWatch, is_setting};
use podwarden_policy::{
    Bytes, CpuShares,
    limits::{CpuMax, Limit},
    settings::Setting,
};

use crate::support::{Attach, Sandbox, Victim, is_ready};

fn notices(watch: &WriteWatch) -> Vec<(WatchId, String)> {
    let mut notices = Vec::new();
    let reading = watch.read(|id, file| notices.push((id, file.to_owned())));
    assert_eq!(reading.unwrap(), Reading::Drained);
    notices
}

/// Every way to write a setting.
const WRITES: [(&str, Setting); 4] = [
    ("shares", Setting::CpuShares(CpuShares(100))),
    ("quota", QUOTA),
    ("memory", MEMORY),
    ("pids", Setting::PidsLimit(Limit::At(99))),
];
const QUOTA: Setting = Setting::CpuMax(CpuMax {
    quota_us: Limit::At(5000),
    period_us: 50_000,
});
const MEMORY: Setting = Setting::MemoryLimit(Limit::At(Bytes::gibi(1)));

#[test]
fn every_setting_that_is_written_is_noticed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let pod = sandbox.cgroup("pod");
    let watch = WriteWatch::new().unwrap();
    let directories = tree.setting_directories(&pod.into()).unwrap();
    let ids: BTreeSet<_> = directories
        .iter()
        .map(|directory| {
            let id = watch.directory(directory).unwrap();
            assert_eq!(watch.directory(directory).unwrap(), id, "watched once");
            id
        })
        .collect();
    assert_eq!(ids.len(), directories.len());
    for (what, setting) in WRITES {
        // The second time it is there already.
        for _ in 0..2 {
            tree.write(&pod.into(), &setting).unwrap();
            assert!(is_ready(&watch, 20), "{what}");
            let notices = notices(&watch);
            assert!(
                notices
                    .iter()
                    .all(|(id, file)| ids.contains(id) && is_setting(file)),
                "{what}: {notices:?}"
            );
            assert!(!notices.is_empty(), "{what}");
        }
    }
    ids.iter().for_each(|id| watch.remove(*id));
    let _ = watch.read(|_, _| ()).unwrap();
    for (_, setting) in WRITES {
        tree.write(&pod.into(), &setting).unwrap();
    }
    assert_eq!(notices(&watch), [], "nothing is watched any more");
}

#[test]
fn a_cgroup_that_is_made_anew_is_another() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let watch = WriteWatch::new().unwrap();
    let directory = tree.path(Controller::Memory, &"pod".into()).unwrap();
    let error = watch.directory(&directory).unwrap_err();
    assert!(error.is_gone(), "{error}");
    sandbox.cgroup("pod");
    let first = watch.directory(&directory).unwrap();
    tree.remove(&"pod".into()).unwrap();
    sandbox.cgroup("pod");
    let second = watch.directory(&directory).unwrap();
    assert_ne!(first, second);
    watch.remove(first);
    tree.write(&"pod".into(), &MEMORY).unwrap();
    assert!(is_ready(&watch, 20));
    let seen: BTreeSet<_> = notices(&watch).into_iter().map(|(id, _)| id).collect();
    assert_eq!(seen, BTreeSet::from([second]));
}

#[test]
fn new_cgroups_are_noticed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let directory = sandbox.tree.path(Controller::Memory, &CgroupPath::ROOT);
    let directory = directory.unwrap();
    let watch = WriteWatch::new().unwrap();
    let parent = watch.directory_and_children(&directory).unwrap();
    let made = || {
        let mut made = Vec::new();
        let reading = watch.read_all(|id, notice, name| {
            if notice == Notice::Made {
                made.push((id, name.to_owned()));
            }
        });
        assert_eq!(reading.unwrap(), Reading::Drained);
        made
    };
    assert_eq!(made(), []);
    sandbox.cgroup("kubepods/burstable");
    assert!(is_ready(&watch, 20));
    assert_eq!(made(), [(parent, "kubepods".to_owned())]);
    assert_eq!(made(), []);
    let elsewhere = tempfile::tempdir().unwrap();
    let parent = watch.directory_and_children(elsewhere.path()).unwrap();
    fs::write(elsewhere.path().join("file"), "").unwrap();
    fs::create_dir(elsewhere.path().join("directory")).unwrap();
    let directories = [(parent, "directory".to_owned())];
    assert_eq!(made(), directories, "files are not cgroups");
    let missing = watch.directory_and_children(&directory.join("other"));
    assert!(missing.unwrap_err().is_gone());
}

#[test]
fn a_process_that_enters_is_noticed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let container = sandbox.cgroup("pod/container");
    let watch = WriteWatch::new().unwrap();
    let directory = tree.identity_path(&container.into()).unwrap();
    let entered = watch.directory(&directory).unwrap();
    let events = watch.file(&directory.join("cgroup.events"));
    let _victim = Victim::sleeper(&Attach::open(tree, container));
    let mut wanted = vec![(entered, "cgroup.procs".to_owned())];
    // v1 has no such file.
    wanted.extend(events.ok().map(|events| (events, String::new())));
    // The second is a task of the kernel's (`kernfs_notify` of fs/kernfs/file.c), and may come later.
    let mut found = Vec::new();
    while !wanted.iter().all(|notice| found.contains(notice)) {
        assert!(is_ready(&watch, 20), "{found:?}");
        found.extend(notices(&watch));
    }
}

#[test]
fn notices_that_the_kernel_dropped_are_told() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let watch = WriteWatch::new().unwrap();
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    for rel in ["a", "b"] {
        sandbox.cgroup(rel);
        let directory = tree.path(Controller::Pids, &rel.into()).unwrap();
        watch.directory(&directory).unwrap();
    }
    // Two in turn, or the kernel makes one notice of all.
    let nine = Setting::PidsLimit(Limit::At(9));
    for _ in 0..=limit / 2 {
        tree.write(&"a".into(), &nine).unwrap();
        tree.write(&"b".into(), &nine).unwrap();
    }
    let mut count = 0;
    let mut overflowed = false;
    loop {
        match watch.read(|_, _| count += 1).unwrap() {
            Reading::More => {}
            Reading::Overflowed => overflowed = true,
            Reading::Drained => break,
        }
    }
    assert!(overflowed, "{count} notices");
    assert!(count <= limit, "{count} of {limit}");
}
