//! Stages that run beside each other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::Result;
use xtask::report::{Counts, Report, begin};

/// What a stage counted, and what was wrong with it.
pub(super) type Outcome = (Counts, Option<String>);

/// A stage.
pub(super) struct Job<'a> {
    /// What the report calls it.
    pub(super) name: String,
    /// Runs it.
    pub(super) run: Box<dyn FnOnce() -> Result<Outcome> + Send + 'a>,
}

/// Takes them up in their order, at most `at_once` at a time, and adds each to the report as it ends. After
/// one with a failure no other is taken up, unless told to keep going; each of those counts as one skipped.
pub(super) fn run(
    jobs: Vec<Job<'_>>,
    at_once: usize,
    keep_going: bool,
    report: &mut Report,
) -> Result<()> {
    let queue = Mutex::new(VecDeque::from(jobs));
    let locked = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = AtomicBool::new(false);
    let next = || match stop.load(Ordering::SeqCst) {
        true => None,
        false => locked().pop_front(),
    };
    thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for _ in 0..at_once.max(1) {
            let done = done.clone();
            scope.spawn(|| {
                let done = done;
                while let Some(Job { name, run }) = next() {
                    let stage = begin(&name);
                    let result = run();
                    let failed = result
                        .as_ref()
                        .map_or(true, |(counts, _)| counts.failed > 0);
                    if failed && !keep_going {
                        stop.store(true, Ordering::SeqCst);
                    }
                    if done.send((stage, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (stage, result) in results {
            let (counts, reason) = result?;
            report.ended(stage, counts, reason);
        }
        anyhow::Ok(())
    })?;
    for Job { name, .. } in std::mem::take(&mut *locked()) {
        let why = "not run after a failure; --keep-going runs every stage".to_owned();
        report.add(&name, Counts::skipped(1), Some(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn job<'a>(name: &str, run: impl FnOnce() -> Counts + Send + 'a) -> Job<'a> {
        Job {
            name: name.to_owned(),
            run: Box::new(|| Ok((run(), None))),
        }
    }

    #[test]
    fn at_most_that_many_run_at_a_time_and_each_once() {
        let (now, most, runs) = (
            AtomicUsize::new(0),
            AtomicUsize::new(0),
            AtomicUsize::new(0),
        );
        let jobs = (0..6)
            .map(|n| {
                job(&n.to_string(), || {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    runs.fetch_add(1, Ordering::SeqCst);
                    Counts::PASSED
                })
            })
            .collect();
        let mut report = Report::default();
        run(jobs, 2, false, &mut report).unwrap();
        assert_eq!(report.total().passed, 6);
        assert_eq!(runs.load(Ordering::SeqCst), 6);
        assert!(most.load(Ordering::SeqCst) <= 2);
    }

    #[test]
    fn a_failure_ends_it_unless_told_to_go_on() {
        for (keep_going, expected) in [(false, 0), (true, 1)] {
            let jobs = vec![
                job("first", || Counts::FAILED),
                job("second", || Counts::PASSED),
            ];
            let mut report = Report::default();
            run(jobs, 1, keep_going, &mut report).unwrap();
            let total = report.total();
            assert_eq!((total.failed, total.passed), (1, expected));
            assert_eq!(total.skipped, 1 - expected, "what was not run is told");
        }
    }
}
