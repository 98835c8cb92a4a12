use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const MOST: usize = 2;

/// What happens to the workers.
#[derive(Debug, Clone, Copy)]
enum Step {
    Update(u8),
    Delete(u8),
    /// The next pod.
    Start,
    /// One of those that run ends, well or not, or is told when to come again.
    End(u8, Option<Option<u16>>),
    Hurry,
    Pass(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let failure = proptest::option::of(proptest::option::of(0..3000_u16));
    prop_oneof![
        4 => (0..4_u8).prop_map(Step::Update),
        1 => (0..4_u8).prop_map(Step::Delete),
        4 => Just(Step::Start),
        4 => (any::<u8>(), failure).prop_map(|(who, how)| Step::End(who, how)),
        1 => Just(Step::Hurry),
        2 => (0..2000_u16).prop_map(Step::Pass),
    ]
}

fn failure(wait: Option<u16>) -> JobError {
    JobError {
        problem: "no".to_owned(),
        wait: wait.map(|ms| Duration::from_millis(ms.into())),
    }
}

/// The last word about a pod, after a deletion that is not done yet.
#[derive(Debug, Clone, Default)]
struct Owed {
    deletion: Option<Work<u32>>,
    update: Option<Work<u32>>,
}

impl Owed {
    fn next(&self) -> Option<&Work<u32>> {
        self.deletion.as_ref().or(self.update.as_ref())
    }

    fn last(&self) -> Option<&Work<u32>> {
        self.update.as_ref().or(self.deletion.as_ref())
    }
}

/// A queue beside its model.
struct Model {
    queue: WorkQueue<u32>,
    now: Instant,
    /// Counts the updates.
    offered: u32,
    running: BTreeMap<String, Work<u32>>,
    /// What is not done yet.
    owed: BTreeMap<String, Owed>,
    /// What was done last for a pod.
    done: BTreeMap<String, Work<u32>>,
}

impl Model {
    fn new() -> Self {
        Self {
            queue: WorkQueue::new(MOST),
            now: Instant::now(),
            offered: 0,
            running: BTreeMap::new(),
            owed: BTreeMap::new(),
            done: BTreeMap::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Update(pod) => self.offer(pod, Work::Update),
            Step::Delete(pod) => self.offer(pod, Work::Delete),
            Step::Start => self.start(),
            Step::End(who, how) => self.end(who, how),
            Step::Hurry => self.queue.hurry(self.now, || 0.5),
            Step::Pass(ms) => self.now += Duration::from_millis(ms.into()),
        }
        assert!(self.running.len() <= MOST, "more than {MOST} at a time");
    }

    fn offer(&mut self, pod: u8, work: impl Fn(u32) -> Work<u32>) {
        self.offered += 1;
        let (uid, work) = (pod.to_string(), work(self.offered));
        self.queue.offer(&uid, work.clone(), self.now);
        let owed = self.owed.entry(uid).or_default();
        match work {
            Work::Update(_) => owed.update = Some(work),
            Work::Delete(_) => (owed.deletion, owed.update) = (Some(work), None),
        }
    }

    fn start(&mut self) {
        let due = self.queue.due();
        let Some((uid, work)) = self.queue.start(self.now) else {
            let later = due.is_none_or(|due| due > self.now);
            assert!(later, "something is due and not given out");
            return;
        };
        assert!(due <= Some(self.now), "given out before its time");
        let expected = self.owed.get(&uid).and_then(Owed::next);
        assert_eq!(expected, Some(&work), "not the last word");
        assert!(self.running.insert(uid, work).is_none(), "two at once");
    }

    fn end(&mut self, who: u8, how: Option<Option<u16>>) {
        let uids: Vec<_> = self.running.keys().cloned().collect();
        let Some(uid) = uids.get(usize::from(who) % uids.len().max(1)) else {
            return;
        };
        let work = self.running.remove(uid).unwrap();
        let result = match how {
            None => Ok(()),
            Some(wait) => Err(failure(wait)),
        };
        if result.is_ok() {
            if let Some(owed) = self.owed.get_mut(uid) {
                for what in [&mut owed.deletion, &mut owed.update] {
                    what.take_if(|what| *what == work);
                }
            }
            self.owed.retain(|_, owed| owed.last().is_some());
            self.done.insert(uid.clone(), work);
        }
        self.queue.finished(uid, result, self.now, 0.5);
    }

    /// Nothing fails any more.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.end(0, None);
            self.start();
            if let Some(due) = self.queue.due() {
                self.now = self.now.max(due);
            } else if self.running.is_empty() {
                return;
            }
        }
        panic!("it does not come to rest");
    }
}

proptest! {
    #[test]
    fn one_at_a_time_and_the_last_word_counts(steps in proptest::collection::vec(step(), 0..200)) {
        let mut model = Model::new();
        let mut last: BTreeMap<String, Work<u32>> = BTreeMap::new();
        for step in steps {
            model.take(step);
            for (uid, owed) in &model.owed {
                last.extend(owed.last().map(|work| (uid.clone(), work.clone())));
            }
        }
        model.settle();
        prop_assert!(model.owed.is_empty(), "work was lost: {:?}", model.owed);
        prop_assert!(model.queue.pods.is_empty(), "an entry is left");
        prop_assert_eq!(model.done, last);
    }
}

#[test]
fn a_deletion_ends_the_pause_and_an_update_does_not() {
    let now = Instant::now();
    let mut queue = WorkQueue::new(MOST);
    queue.offer("a", Work::Update(1), now);
    assert_eq!(queue.start(now), Some(("a".to_owned(), Work::Update(1))));
    let news = queue.finished("a", Err(failure(None)), now, 0.0);
    assert_eq!(news.as_deref(), Some("no"));
    queue.offer("a", Work::Update(2), now);
    assert_eq!(queue.start(now), None);
    queue.offer("a", Work::Delete(3), now);
    assert_eq!(queue.start(now), Some(("a".to_owned(), Work::Delete(3))));
    assert_eq!(
        queue.finished("a", Err(failure(None)), now, 0.0),
        None,
        "it has been said"
    );
    let due = queue.due().unwrap();
    assert!(due > now);
    queue.hurry(now, || 0.0);
    assert!(queue.start(now).is_some());
}

#[test]
fn a_pod_that_comes_back_is_worked_for_once_its_end_is_done() {
    let now = Instant::now();
    let mut queue = WorkQueue::new(MOST);
    let next = |queue: &mut WorkQueue<u32>| queue.start(now).map(|(_, work)| work);
    queue.offer("a", Work::Delete(1), now);
    assert_eq!(next(&mut queue), Some(Work::Delete(1)));
    queue.offer("a", Work::Update(2), now);
    assert_eq!(next(&mut queue), None, "two at once");
    queue.finished("a", Err(failure(Some(0))), now, 0.0);
    assert_eq!(next(&mut queue), Some(Work::Delete(1)));
    queue.finished("a", Ok(()), now, 0.0);
    assert_eq!(next(&mut queue), Some(Work::Update(2)));
    queue.finished("a", Ok(()), now, 0.0);
    assert!(queue.pods.is_empty());
}

#[test]
fn the_time_that_the_other_side_names_is_kept() {
    let now = Instant::now();
    let mut queue = WorkQueue::new(MOST);
    for uid in ["asked", "pausing"] {
        queue.offer(uid, Work::Update(()), now);
        queue.start(now).unwrap();
    }
    queue.finished("asked", Err(failure(Some(3000))), now, 0.0);
    queue.finished("pausing", Err(failure(None)), now, 0.0);
    queue.hurry(now, || 0.0);
    let due: BTreeSet<_> = queue.start(now).into_iter().map(|(uid, _)| uid).collect();
    assert_eq!(due, BTreeSet::from(["pausing".to_owned()]));
    assert_eq!(queue.due(), Some(now + Duration::from_secs(3)));
    assert_eq!(queue.start(now + Duration::from_millis(2999)), None);
    assert!(queue.start(now + Duration::from_secs(3)).is_some());
}
