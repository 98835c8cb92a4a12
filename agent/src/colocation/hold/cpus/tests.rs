use std::fs;

use podwarden_cgroup::{Controller, Hierarchies, Version};

use super::*;

/// A tier with a pod and its container on the real cgroups; removed at the end.
struct Scene {
    outer: Tree,
    root: String,
    tree: Tree,
    directory: tempfile::TempDir,
}

impl Scene {
    /// `None`, with the reason printed, where that is not allowed.
    fn start(name: &str) -> Option<Self> {
        let hierarchies = Hierarchies::detect().ok()?;
        let root = format!("podwarden-cpus-{name}-{}", std::process::id());
        let tree = Tree::new(hierarchies.clone(), &root).unwrap();
        let scene = Self {
            outer: Tree::new(hierarchies, "").unwrap(),
            root,
            tree,
            directory: tempfile::tempdir().unwrap(),
        };
        let made = scene.tree.create(&"tier/pod/main".into());
        let all = scene.tree.effective_cpus(&"tier".into());
        match (made, all) {
            (Ok(_), Ok(cpus)) if cpus.0.len() > 1 => Some(scene),
            (made, cpus) => {
                println!("skipped: {made:?}, {cpus:?}");
                None
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("cpuset.json")
    }

    fn cpus(&self, path: &str) -> BTreeSet<u32> {
        self.tree.effective_cpus(&path.into()).unwrap().0
    }

    fn written(&self) -> Vec<String> {
        let paths = ["tier", "tier/pod", "tier/pod/main"];
        let of = |path: &str| self.tree.cpus(&path.into()).unwrap().to_string();
        paths.map(of).to_vec()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for path in ["tier/pod/late", "tier/pod/main", "tier/pod", "tier", ""] {
            let path: CgroupPath = format!("{}/{path}", self.root).trim_matches('/').into();
            let _ = self.outer.remove(&path);
        }
    }
}

#[test]
fn a_tier_gets_fewer_cpus_and_then_those_that_were_found() {
    let Some(scene) = Scene::start("set") else {
        return;
    };
    let before = scene.written();
    let all = scene.cpus("tier");
    let one: BTreeSet<u32> = all.iter().take(1).copied().collect();
    let mut cpus = Cpus::open(&scene.tree, &"tier".into(), scene.file()).unwrap();
    for _ in 0..2 {
        cpus.set(&scene.tree, &one).unwrap();
        for path in ["tier", "tier/pod", "tier/pod/main"] {
            assert_eq!(scene.cpus(path), one, "{path}");
        }
        cpus.set(&scene.tree, &all).unwrap();
        assert_eq!(scene.cpus("tier/pod/main"), all);
    }
    cpus.set(&scene.tree, &one).unwrap();
    assert!(cpus.restore(&scene.tree));
    assert_eq!(scene.written(), before);
}

#[test]
fn a_container_made_while_its_tier_is_held_rises_with_it() {
    let Some(scene) = Scene::start("late") else {
        return;
    };
    let all = scene.cpus("tier");
    let one: BTreeSet<u32> = all.iter().take(1).copied().collect();
    let mut cpus = Cpus::open(&scene.tree, &"tier".into(), scene.file()).unwrap();
    cpus.set(&scene.tree, &one).unwrap();
    let _removed_at_the_end = scene.tree.create(&"tier/pod/late".into()).unwrap();
    // What a runtime does on v1.
    scene
        .tree
        .set_cpus(&"tier/pod/late".into(), &CpuList(one.clone()))
        .unwrap();
    cpus.set(&scene.tree, &one).unwrap();
    cpus.set(&scene.tree, &all).unwrap();
    assert_eq!(scene.cpus("tier/pod/late"), all);
    cpus.set(&scene.tree, &one).unwrap();
    assert!(cpus.restore(&scene.tree));
    assert_eq!(scene.cpus("tier/pod/late"), all);
}

#[test]
fn what_a_killed_agent_left_is_put_back_also_for_a_container_made_since() {
    let Some(scene) = Scene::start("left") else {
        return;
    };
    let before = scene.written();
    let all = scene.cpus("tier");
    let one: BTreeSet<u32> = all.iter().take(1).copied().collect();
    let mut cpus = Cpus::open(&scene.tree, &"tier".into(), scene.file()).unwrap();
    cpus.set(&scene.tree, &one).unwrap();
    drop(cpus);
    let _removed_at_the_end = scene.tree.create(&"tier/pod/late".into()).unwrap();
    assert_eq!(left(scene.file())[0], "tier".into());
    assert!(restore(&scene.tree, scene.file()));
    assert_eq!(scene.written(), before);
    assert_eq!(scene.cpus("tier/pod/late"), all);
    assert!(!scene.file().exists());
    assert!(!restore(&scene.tree, scene.file()));
}

/// On files in the place of a v2 hierarchy, where a tier that takes its parent's CPUs has an empty list.
#[test]
fn an_empty_list_of_v2_is_held_and_is_empty_again_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path().join("cgroup");
    fs::create_dir_all(mount.join("tier/pod")).unwrap();
    for (file, text) in [
        ("cpuset.cpus.effective", "0-7\n"),
        ("tier/cpuset.cpus", "\n"),
        ("tier/cpuset.cpus.effective", "0-3\n"),
        ("tier/pod/cpuset.cpus", "\n"),
    ] {
        fs::write(mount.join(file), text).unwrap();
    }
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some(mount.clone()),
        controllers: [(Controller::CpuSet, mount.clone())].into(),
    };
    let tree = Tree::new(hierarchies, "").unwrap();
    // A write does not shorten an ordinary file: what counts is the line.
    let held = |file: &str| {
        let text = fs::read_to_string(mount.join(file)).unwrap();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let file = directory.path().join("cpuset.json");
    let mut cpus = Cpus::open(&tree, &"tier".into(), file.clone()).unwrap();
    let present = Present {
        tier: (0..4).collect(),
        usable: (0..8).collect(),
    };
    assert_eq!(cpus.present(&tree).unwrap(), present);
    cpus.set(&tree, &[0, 1].into()).unwrap();
    assert_eq!(held("tier/cpuset.cpus"), "0-1");
    assert_eq!(
        held("tier/pod/cpuset.cpus"),
        "",
        "the tier alone is written"
    );
    assert!(cpus.restore(&tree));
    assert_eq!(held("tier/cpuset.cpus"), "");
    // The same by the next agent.
    fs::write(mount.join("tier/cpuset.cpus"), "\n").unwrap();
    cpus.set(&tree, &[2].into()).unwrap();
    drop(cpus);
    assert!(restore(&tree, file));
    assert_eq!(held("tier/cpuset.cpus"), "");
    // Without the controller there is no list, which is an error with the file.
    fs::remove_file(mount.join("tier/cpuset.cpus")).unwrap();
    let refused = Cpus::open(&tree, &"tier".into(), directory.path().join("none.json"));
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("tier/cpuset.cpus"), "{error}");
}

#[test]
fn the_files_of_one_root_lie_side_by_side() {
    let (run, root) = (Path::new("/run/x"), "/a/b");
    let hold = crate::colocation::hold_file(run, root);
    assert_eq!(beside(&hold), Some(file(run, root)));
    assert_eq!(beside(&crate::colocation::found_file(run, root)), None);
}
