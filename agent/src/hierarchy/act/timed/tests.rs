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

/// In "stuck" a call comes back once it is told so.
#[derive(Debug)]
struct Stuck {
    go_on: Mutex<Receiver<()>>,
    written: Arc<Mutex<Vec<String>>>,
}

impl Stuck {
    /// With it, and with what has been written.
    fn timed() -> (Timed, Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (go, go_on) = channel();
        let written = Arc::default();
        let stuck = Self {
            go_on: Mutex::new(go_on),
            written: Arc::clone(&written),
        };
        (Timed::new(Arc::new(stuck)), go, written)
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
        self.written.lock().unwrap().push(path.to_string());
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

/// A call on each of these, and what came of those that were made.
fn make(timed: &mut Timed, paths: &[&str], what: &What) -> Vec<Result<Done, Error>> {
    let call = |path: &&str| Call {
        path: CgroupPath::from(*path),
        what: what.clone(),
    };
    let calls: Vec<_> = paths.iter().map(call).collect();
    let answers = timed.make(&tree(), &calls).into_iter();
    answers.map(|answer| answer.result).collect()
}

const WRITE: What = What::Write(Setting::MemoryLimit(Limit::At(Bytes::mebi(64))));

#[test]
fn a_call_that_does_not_come_back_ends_the_pass_and_holds_its_cgroup() {
    let (mut timed, go, _) = Stuck::timed();
    let paths = ["before", "stuck", "after"];
    let results = make(&mut timed, &paths, &WRITE);
    assert!(
        matches!(&results[..], [Ok(Done::Written), Err(error @ Error::Unanswered { .. })] if error.is_silence()),
        "{results:?}"
    );
    let results = make(&mut timed, &paths, &WRITE);
    assert!(
        matches!(
            &results[..],
            [Ok(Done::Written), Err(error @ Error::StillWaiting { .. }), Ok(Done::Written)] if !error.is_silence()
        ),
        "{results:?}"
    );
    let said = timed.unanswered();
    assert!(
        said.len() == 1 && said[0].starts_with("stuck is not brought up to date"),
        "{said:?}"
    );
    go.send(()).unwrap();
    wait_for(&timed.shared.came_back);
    assert!(timed.unanswered().is_empty());
    go.send(()).unwrap();
    let results = make(&mut timed, &paths, &WRITE);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn what_was_left_makes_no_later_call() {
    let (mut timed, go, written) = Stuck::timed();
    make(&mut timed, &["stuck", "after"], &WRITE);
    go.send(()).unwrap();
    wait_for(&timed.shared.came_back);
    let results = make(&mut timed, &["other"], &WRITE);
    assert!(matches!(&results[..], [Ok(Done::Written)]), "{results:?}");
    assert_eq!(*written.lock().unwrap(), ["stuck", "other"]);
}

#[test]
fn what_a_late_call_made_is_known_once_it_is_there() {
    let (mut timed, go, _) = Stuck::timed();
    let create = What::Create(Vec::new());
    make(&mut timed, &["stuck"], &create).remove(0).unwrap_err();
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    wait_for(&timed.shared.came_back);
    let done = make(&mut timed, &["stuck"], &create).remove(0).unwrap();
    assert!(
        matches!(&done, Done::Created(created) if created.directories.len() == 2),
        "{done:?}"
    );
    assert!(timed.shared.left().made.is_empty());
}

#[test]
fn no_more_calls_are_made_than_may_be_left() {
    let (mut timed, _go, _) = Stuck::timed();
    for n in 0..MOST_LEFT {
        let path = CgroupPath::from(format!("waiting-{n}").as_str());
        timed.shared.left().waiting.insert(path, "write to");
    }
    let results = make(&mut timed, &["other"], &WRITE);
    assert!(
        matches!(&results[..], [Err(Error::StillWaiting { .. })]),
        "{results:?}"
    );
}
