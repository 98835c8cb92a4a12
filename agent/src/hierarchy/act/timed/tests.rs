use std::{
    sync::{
        Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use podwarden_cgroup::{Hierarchies, Version};
use podwarden_policy::{Bytes, limits::Limit};
use tokio::sync::Notify;

use super::*;

const SETTING: Setting = Setting::MemoryLimit(Limit::At(Bytes::mebi(64)));

/// In "stuck" a call comes back once it is told so.
#[derive(Debug)]
struct Stuck {
    go_on: Mutex<Receiver<()>>,
}

impl Stuck {
    fn timed() -> (Timed, Sender<()>) {
        let (go, go_on) = channel();
        let go_on = Mutex::new(go_on);
        (Timed::new(Arc::new(Self { go_on })), go)
    }

    fn wait(&self, path: &CgroupPath) {
        if path.as_str() == "stuck" {
            self.go_on.lock().unwrap().recv().unwrap();
        }
    }
}

impl Backend for Stuck {
    fn limit(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn create(&self, _: &Tree, path: &CgroupPath, _: &[Setting]) -> Result<Created, Error> {
        self.wait(path);
        let directories = vec![path.as_str().into()];
        Ok(Created { directories })
    }

    fn write(&self, _: &Tree, path: &CgroupPath, _: &Setting) -> Result<(), Error> {
        self.wait(path);
        Ok(())
    }

    fn remove(&self, _: &Tree, _: &CgroupPath, _: &Created) -> Result<(), Error> {
        Ok(())
    }

    fn made_before(&self, _: &Tree, _: &CgroupPath) -> Result<Created, Error> {
        Ok(Created::default())
    }

    fn remove_unused(&self, _: &Tree, _: Vec<PathBuf>) {}
}

/// What the calls are for does not matter here.
fn tree() -> Tree {
    let hierarchies = Hierarchies {
        version: Version::V2,
        v2_mount: Some("/".into()),
        controllers: BTreeMap::new(),
    };
    Tree::new(hierarchies, "").unwrap()
}

fn wait_for(notify: &Notify) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(notify.notified());
}

#[test]
fn a_call_that_does_not_come_back_is_left_and_its_cgroup_with_it() {
    let tree = tree();
    let (mut timed, go) = Stuck::timed();
    let (stuck, other) = (CgroupPath::from("stuck"), CgroupPath::from("other"));
    let outcome = timed.write(&tree, &stuck, &SETTING);
    assert!(
        matches!(&outcome, Err(error @ Error::Unanswered { .. }) if error.is_silence()),
        "{outcome:?}"
    );
    let outcome = timed.write(&tree, &stuck, &SETTING);
    assert!(
        matches!(&outcome, Err(error @ Error::StillWaiting { .. }) if !error.is_silence()),
        "{outcome:?}"
    );
    timed.write(&tree, &other, &SETTING).unwrap();
    let said = timed.unanswered();
    assert!(
        said.len() == 1 && said[0].starts_with("stuck is not brought up to date"),
        "{said:?}"
    );
    go.send(()).unwrap();
    wait_for(&timed.shared.came_back);
    assert!(timed.unanswered().is_empty());
    go.send(()).unwrap();
    timed.write(&tree, &stuck, &SETTING).unwrap();
}

#[test]
fn what_a_late_call_made_is_known_once_it_is_there() {
    let tree = tree();
    let (mut timed, go) = Stuck::timed();
    let stuck = CgroupPath::from("stuck");
    timed.create(&tree, &stuck, &[]).unwrap_err();
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    wait_for(&timed.shared.came_back);
    let created = timed.create(&tree, &stuck, &[]).unwrap();
    assert_eq!(created.directories.len(), 2);
    assert!(timed.shared.left().made.is_empty());
}

#[test]
fn no_more_calls_are_made_than_may_be_left() {
    let tree = tree();
    let (mut timed, _go) = Stuck::timed();
    for n in 0..MOST_LEFT {
        let path = CgroupPath::from(format!("waiting-{n}").as_str());
        timed.shared.left().waiting.insert(path, "write to");
    }
    let outcome = timed.write(&tree, &"other".into(), &SETTING);
    assert!(
        matches!(outcome, Err(Error::StillWaiting { .. })),
        "{outcome:?}"
    );
}
