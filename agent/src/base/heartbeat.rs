//! Heartbeats: each loop says that it goes round, and a thread outside it judges.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// Every loop of this process that has not ended.
static LOOPS: Mutex<Vec<Weak<Loop>>> = Mutex::new(Vec::new());

/// What a judge sees of a loop.
#[derive(Debug)]
pub(crate) struct Loop {
    /// What is lost while it stands still, one sentence.
    pub(crate) stuck: &'static str,
    beats: AtomicU64,
    idle: AtomicBool,
}

impl Loop {
    /// A number that grows while the loop goes round; `None` while it waits for work without a time limit.
    pub(crate) fn beat(&self) -> Option<u64> {
        (!self.idle.load(Ordering::Acquire)).then(|| self.beats.load(Ordering::Acquire))
    }
}

/// A loop's own end; the loop is no longer judged once this is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat(Arc<Loop>);

impl Heartbeat {
    /// `stuck` says what is lost while the loop stands still.
    pub(crate) fn new(stuck: &'static str) -> Self {
        let this = Arc::new(Loop {
            stuck,
            beats: AtomicU64::new(1),
            idle: AtomicBool::new(false),
        });
        let mut loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
        loops.retain(|one| one.strong_count() > 0);
        loops.push(Arc::downgrade(&this));
        Self(this)
    }

    /// The loop goes round.
    pub(crate) fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::AcqRel);
        self.0.idle.store(false, Ordering::Release);
    }

    /// The loop waits for work, for as long as there is none.
    pub(crate) fn idle(&self) {
        self.0.idle.store(true, Ordering::Release);
    }
}

/// Every loop that has not ended.
pub(crate) fn loops() -> Vec<Arc<Loop>> {
    let loops = LOOPS.lock().unwrap_or_else(PoisonError::into_inner);
    loops.iter().filter_map(Weak::upgrade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_judged_from_its_first_beat_to_its_end_but_not_while_it_waits() {
        let heartbeat = Heartbeat::new("a loop of a test");
        let found = || loops().into_iter().find(|l| l.stuck == "a loop of a test");
        let one = found().unwrap();
        let first = one.beat().unwrap();
        heartbeat.beat();
        assert_ne!(one.beat(), Some(first));
        heartbeat.idle();
        assert_eq!(one.beat(), None);
        heartbeat.beat();
        assert!(one.beat().is_some());
        drop((heartbeat, one));
        assert!(found().is_none());
    }
}
