use std::{
    ffi::CString,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use podwarden_cgroup::{
    CgroupPath, Controller, Created, Error, Hierarchies, Identity, Tree, Version,
};
use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};

use crate::support::{Attach, Sandbox, Victim, eventually};

#[test]
fn create_says_what_it_made_and_only_that_is_removed() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("kubepods");
    let hierarchies = sandbox.directories("kubepods").len();

    let created = tree.create(&"kubepods/burstable/podA".into()).unwrap();
    assert_eq!(created.directories.len(), 2 * hierarchies);
    assert!(created.directories.iter().all(|d| d.is_dir()));
    assert_eq!(
        sandbox.directories("kubepods/burstable/podA").len(),
        hierarchies
    );
    assert!(
        tree.create(&"kubepods/burstable/podA".into())
            .unwrap()
            .is_empty()
    );

    tree.remove_created(&created).unwrap();
    assert!(sandbox.directories("kubepods/burstable").is_empty());
    assert_eq!(sandbox.directories("kubepods").len(), hierarchies);
    // What is gone already is no error.
    tree.remove_created(&created).unwrap();
}

#[test]
fn what_was_made_by_an_agent_killed_before_it_could_mark_it_is_its_own() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let ours = tree.create(&"ours".into()).unwrap().directories;
    let parent = ours.iter().find(|d| d.ends_with("ours")).unwrap();
    const MAKING: &str = "trusted.podwarden.making";
    let making = || getxattr(parent, MAKING, &mut [0; 255]);
    assert_eq!(making(), Err(Errno::NODATA), "it is marked by now");

    setxattr(parent, MAKING, b"pod", XattrFlags::empty()).unwrap();
    let announced = tree.made_before(&"ours/pod".into()).unwrap();
    assert!(announced.is_empty(), "it was killed before it made it");
    for name in ["pod", "theirs"] {
        fs::create_dir(parent.join(name)).unwrap();
    }
    let found = tree.made_before(&"ours/pod".into()).unwrap();
    assert_eq!(found.directories, [parent.join("pod")]);
    assert!(tree.made_before(&"ours/theirs".into()).unwrap().is_empty());
    let mark = || getxattr(parent.join("pod"), "trusted.podwarden", &mut [0; 1]);
    assert_eq!(
        mark(),
        Err(Errno::NODATA),
        "what is looked at stays as it is"
    );

    let _ = tree.create(&"ours/next".into()).unwrap();
    assert_eq!(making(), Err(Errno::NODATA));
    assert_eq!(mark(), Ok(1));
    assert_eq!(tree.made_before(&"ours/pod".into()).unwrap(), found);
}

#[test]
fn what_another_agent_made_is_told_apart() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let made = tree.create(&"ours/pod".into()).unwrap();
    for directory in &made.directories {
        fs::create_dir(directory.join("theirs")).unwrap();
    }
    let mut found = tree.made_before(&"ours".into()).unwrap();
    found.extend(tree.made_before(&"ours/pod".into()).unwrap());
    let sorted = |created: &Created| {
        let mut directories = created.directories.clone();
        directories.sort();
        directories
    };
    assert_eq!(sorted(&found), sorted(&made));
    assert!(tree.made_before(&"ours/theirs".into()).unwrap().is_empty());
    assert!(tree.made_before(&"nowhere".into()).unwrap().is_empty());
    let root = tree.made_before(&CgroupPath::ROOT).unwrap().directories;
    let mounts = tree.hierarchies().v2_mount.clone();
    assert!(
        root.iter()
            .all(|directory| Some(directory) != mounts.as_ref())
    );
    for directory in &made.directories {
        let _ = fs::remove_dir(directory.join("theirs"));
    }
}

#[test]
fn a_failing_create_leaves_nothing() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    // Below a new cgroup, the name of one of its own files.
    let error = tree.create(&"kubepods/cgroup.procs".into()).unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    assert!(sandbox.directories("kubepods").is_empty());
    for bad in ["/kubepods", "../x", "a//b", "a/"] {
        assert!(
            matches!(tree.create(&bad.into()), Err(Error::InvalidName { .. })),
            "{bad}"
        );
    }
}

#[test]
fn remove_goes_bottom_up_and_is_idempotent() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("kubepods/besteffort/podA/c1");
    sandbox.cgroup("kubepods/besteffort/podA/c2/nested");
    tree.remove(&"kubepods/besteffort".into()).unwrap();
    assert!(sandbox.directories("kubepods/besteffort").is_empty());
    assert!(!sandbox.directories("kubepods").is_empty());
    tree.remove(&"kubepods/besteffort".into()).unwrap();
    assert!(matches!(
        tree.remove(&CgroupPath::ROOT),
        Err(Error::InvalidName { .. })
    ));
    assert!(matches!(
        tree.remove(&"..".into()),
        Err(Error::InvalidName { .. })
    ));
}

#[test]
fn children_are_removed_but_for_those_with_processes() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    sandbox.cgroup("pod/left/nested");
    sandbox.cgroup("pod/used");
    let victim = Victim::sleeper(&Attach::open(tree, "pod/used"));
    eventually("the process is in the cgroup", || {
        tree.procs(&"pod/used".into()).unwrap() == [victim.pid]
    });
    let busy = tree.remove_children(&"pod".into()).unwrap_err();
    assert_eq!(busy.errno(), Some(Errno::BUSY));
    assert!(sandbox.directories("pod/left").is_empty());
    assert!(!sandbox.directories("pod/used").is_empty());

    // SAFETY: a signal to our own child.
    unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
    eventually("what was used is removed", || {
        tree.remove_children(&"pod".into()).is_ok()
    });
    assert!(sandbox.directories("pod/used").is_empty());
    assert!(!sandbox.directories("pod").is_empty());
    tree.remove_children(&"gone".into()).unwrap();
}

#[test]
fn remove_waits_for_the_dying() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    let attach = {
        sandbox.cgroup("pod");
        Attach::open(tree, "pod")
    };
    let victim = Victim::sleeper(&attach);
    eventually("the process is in the cgroup", || {
        tree.procs(&"pod".into()).unwrap() == [victim.pid]
    });
    let busy = std::thread::scope(|scope| {
        let removal = scope.spawn(|| tree.remove(&"pod".into()));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let busy = !sandbox.directories("pod").is_empty();
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(victim.pid as i32, libc::SIGKILL) };
        removal.join().unwrap().unwrap();
        busy
    });
    assert!(busy, "a cgroup with a process in it was removed");
    assert!(sandbox.directories("pod").is_empty());
    assert_eq!(victim.ended_by(), Some(libc::SIGKILL));
}

#[test]
fn list_and_ids() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    for rel in ["kubepods/podB/c", "kubepods/podA", "kubepods/besteffort"] {
        sandbox.cgroup(rel);
    }
    let entries = tree.list(&"kubepods".into()).unwrap();
    let shown: Vec<_> = entries.iter().map(|e| (e.path.as_str(), e.depth)).collect();
    assert_eq!(
        shown,
        [
            ("kubepods", 0),
            ("kubepods/besteffort", 1),
            ("kubepods/podA", 1),
            ("kubepods/podB", 1),
            ("kubepods/podB/c", 2),
        ]
    );
    for entry in &entries {
        assert_eq!(entry.id, tree.id(&entry.path).unwrap(), "{}", entry.path);
        assert_eq!(
            entry.id,
            handle_id(&tree.identity_path(&entry.path).unwrap())
        );
        let memory = tree.path(Controller::Memory, &entry.path).unwrap();
        assert_eq!(tree.memory_id(&entry.path).unwrap(), handle_id(&memory));
    }
    assert_eq!(
        tree.list(&CgroupPath::ROOT).unwrap()[1].path.as_str(),
        "kubepods"
    );
    assert!(tree.list(&"kubepods/podC".into()).unwrap_err().is_gone());
    assert!(tree.id(&"kubepods/podC".into()).unwrap_err().is_gone());
}

/// The cgroup id by the documented way: the file handle of its directory is the id
/// (`kernfs_encode_fh`, `fs/kernfs/mount.c`).
fn handle_id(path: &Path) -> u64 {
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        id: [u8; 8],
    }
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle {
        bytes: 8,
        kind: 0,
        id: [0; 8],
    };
    let mut mount = 0_i32;
    // SAFETY: the handle has room for the 8 bytes it announces; the path ends with a NUL.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount,
            0,
        )
    };
    assert_eq!(result, 0, "{path:?}: {}", std::io::Error::last_os_error());
    u64::from_ne_bytes(handle.id)
}

/// cgroup v2: processes only where no controllers are handed down.
#[test]
fn processes_inside_the_tree_are_a_named_error_on_v2() {
    let Some(sandbox) = Sandbox::new() else {
        return;
    };
    let tree = &sandbox.tree;
    if tree.hierarchies().version != Version::V2 {
        println!("skipped: the controllers are not on v2");
        return;
    }
    let pod = sandbox.cgroup("kubepods/pod");
    let _victim = Victim::sleeper(&Attach::open(tree, pod));
    let error = tree.create(&"kubepods/pod/container".into()).unwrap_err();
    assert!(
        matches!(error, Error::InternalProcesses { .. }),
        "{error:?}"
    );
    assert!(sandbox.directories("kubepods/pod/container").is_empty());
    let kind = fs::read_to_string(tree.v2_path(&pod.into()).unwrap().join("cgroup.type")).unwrap();
    assert_eq!(
        kind, "domain\n",
        "the failure must not leave a threaded subtree"
    );
}

/// What the identity is where a kubelet made kubepods on v1 only.
#[test]
fn identity_follows_the_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |name: &str| -> PathBuf {
        let path = directory.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (memory, v2) = (mount("memory"), mount("unified"));
    let hierarchies = |text: String| Hierarchies::parse(&text).unwrap();
    let v1_line = format!("1 2 0:9 / {} rw - cgroup c rw,memory\n", memory.display());
    let v2_line = format!("1 2 0:8 / {} rw - cgroup2 c rw\n", v2.display());
    let hybrid = hierarchies(format!("{v1_line}{v2_line}"));
    let identity = |h: &Hierarchies, root| Tree::new(h.clone(), root).unwrap().identity();

    assert_eq!(identity(&hybrid, "/"), Identity::V2, "nothing is there yet");
    fs::create_dir(memory.join("kubepods.slice")).unwrap();
    assert_eq!(
        identity(&hybrid, "/"),
        Identity::V1Memory,
        "tasks are on v1 only"
    );
    assert_eq!(
        identity(&hybrid, "/private"),
        Identity::V2,
        "another root is another tree"
    );
    fs::create_dir(v2.join("kubepods.slice")).unwrap();
    assert_eq!(identity(&hybrid, "/"), Identity::V2, "tasks are on both");
    assert_eq!(identity(&hierarchies(v1_line), "/"), Identity::V1Memory);
    assert_eq!(identity(&hierarchies(v2_line), "/"), Identity::V2);
    assert!(Tree::new(hybrid, "/../x").is_err());
}
