//! The hard limits that podwarden wrote recently, so that its own writes do not count as foreign.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use podwarden_cgroup::CgroupPath;
use podwarden_policy::{Bytes, limits::Limit};

/// How long an overwritten value still counts as podwarden's. A reader has read the file
/// some milliseconds before it asks, or has read a whole tree in between.
const LATELY: Duration = Duration::from_secs(1);

/// Values that are remembered of each cgroup.
const KEPT: usize = 64;

/// The writer of a value that a reader found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Ours; or nothing is known of the file yet; or it is about to be answered.
    Ours,
    /// A foreign value.
    Others {
        /// What was left in the file here.
        left: Limit<Bytes>,
    },
}

#[derive(Debug, Default)]
pub struct Ours(Mutex<HashMap<CgroupPath, File>>);

#[derive(Debug, Default)]
struct File {
    /// With when it was overwritten here; the last stands.
    kept: VecDeque<(Limit<Bytes>, Option<Instant>)>,
    /// A foreign value that is to be overwritten.
    answered: Option<Limit<Bytes>>,
}

impl File {
    fn has(&self, limit: Limit<Bytes>, now: Instant) -> bool {
        self.kept.iter().any(|(kept, until)| {
            *kept == limit && until.is_none_or(|until| now.duration_since(until) < LATELY)
        })
    }
}

impl Ours {
    /// This is what a cgroup's file holds rightly, or will in a moment.
    pub(super) fn note(&self, path: &CgroupPath, limit: Limit<Bytes>, now: Instant) {
        let mut all = self.lock();
        let file = all.entry(path.to_owned()).or_default();
        match file.kept.back_mut() {
            Some((last, _)) if *last == limit => return,
            Some((_, until)) => *until = Some(now),
            None => {}
        }
        if file.kept.len() == KEPT {
            file.kept.pop_front();
        }
        file.kept.push_back((limit, None));
    }

    /// A foreign value is to be overwritten; until that has been tried it is not judged again.
    pub(super) fn answer(&self, path: &CgroupPath, found: Limit<Bytes>) {
        self.lock().entry(path.to_owned()).or_default().answered = Some(found);
    }

    /// That has been tried.
    pub(super) fn answered(&self, path: &CgroupPath) {
        if let Some(file) = self.lock().get_mut(path) {
            file.answered = None;
        }
    }

    /// Whether a cgroup's file held this by what was written here. Ask after the file was read.
    pub(super) fn has(&self, path: &CgroupPath, limit: Limit<Bytes>, now: Instant) -> bool {
        self.lock()
            .get(path)
            .is_some_and(|file| file.has(limit, now))
    }

    /// Whose value a cgroup's file held. Ask after the file was read.
    pub fn whose(&self, path: &CgroupPath, found: Limit<Bytes>, now: Instant) -> Whose {
        let all = self.lock();
        let left = all.get(path).and_then(|file| {
            let answered = file.answered == Some(found);
            let (left, _) = file.kept.back()?;
            (!answered && !file.has(found, now)).then_some(*left)
        });
        left.map_or(Whose::Ours, |left| Whose::Others { left })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CgroupPath, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(n: u64) -> Limit<Bytes> {
        Limit::At(Bytes(n))
    }

    #[test]
    fn the_last_is_ours_and_those_before_it_for_a_while() {
        let (ours, start) = (Ours::default(), Instant::now());
        let ms = |n| start + Duration::from_millis(n);
        assert_eq!(
            ours.whose(&"a".into(), at(7), start),
            Whose::Ours,
            "not known yet"
        );
        for n in 1..=3 {
            ours.note(&"a".into(), at(n), ms(n));
            ours.note(&"a".into(), at(n), ms(n));
        }
        let others = Whose::Others { left: at(3) };
        for (found, now, whose) in [
            (3, 10, Whose::Ours),
            (2, 10, Whose::Ours),
            (7, 10, others),
            (2, 1002, Whose::Ours),
            (1, 1002, others),
            (2, 1003, others),
            (3, 100_000, Whose::Ours),
        ] {
            assert_eq!(
                ours.whose(&"a".into(), at(found), ms(now)),
                whose,
                "{found} at {now}"
            );
        }
        assert!(ours.has(&"a".into(), at(3), ms(9)) && !ours.has(&"b".into(), at(3), ms(9)));
        for n in 0..1000 {
            ours.note(&"a".into(), at(n), ms(n));
        }
        assert_eq!(ours.lock()["a"].kept.len(), KEPT);
    }

    #[test]
    fn what_is_about_to_be_overwritten_is_judged_once() {
        let (ours, now) = (Ours::default(), Instant::now());
        ours.note(&"a".into(), at(1), now);
        let others = Whose::Others { left: at(1) };
        assert_eq!(ours.whose(&"a".into(), at(7), now), others);
        ours.answer(&"a".into(), at(7));
        assert_eq!(ours.whose(&"a".into(), at(7), now), Whose::Ours);
        assert_eq!(ours.whose(&"a".into(), at(8), now), others, "another one");
        ours.answered(&"a".into());
        ours.answered(&"b".into());
        assert_eq!(ours.whose(&"a".into(), at(7), now), others);
    }
}
