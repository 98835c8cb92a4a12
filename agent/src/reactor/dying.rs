//! The victims whose memory is promised ([`podwarden_policy::promise`]): a fixed array, read without allocating.

use std::sync::Arc;

use podwarden_policy::promise::Promise;

use super::{
    places::keep,
    plan::{ArmedPlan, Scope, ScopeName, Victim},
};

/// Victims that are looked after at a time; of more, the oldest one's memory counts again.
const MOST: usize = 64;

/// A victim whose memory is awaited.
#[derive(Debug)]
pub(super) struct Dying {
    /// Its plan: what holds its files is freed by the reconciler.
    plan: Arc<ArmedPlan>,
    victim: usize,
    /// The eviction's.
    pub(super) number: u64,
    pub(super) promise: Promise,
    /// What it used at the last look, bytes.
    left: u64,
    /// What became of its memory was reported.
    pub(super) told: bool,
}

impl Dying {
    pub(super) fn new(
        plan: &Arc<ArmedPlan>,
        victim: usize,
        number: u64,
        usage: u64,
        at: u64,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            victim,
            number,
            promise: Promise::new(usage, at),
            left: usage,
            told: false,
        }
    }

    pub(super) fn victim(&self) -> &Victim {
        &self.plan.victims[self.victim]
    }

    /// It was killed again at `at`: what grew in it is promised as well from now on.
    pub(super) fn killed_again(&mut self, at: u64) {
        self.promise = Promise::new(self.left, at);
        self.told = false;
    }

    /// What it used at the last look, bytes.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Reads what it uses; nothing where its cgroup is gone.
    pub(super) fn read(&mut self) -> u64 {
        self.left = self.victim().files.memory.usage().unwrap_or(0);
        self.left
    }

    /// What of its promised memory counts in a scope that it is in, and what of what is left its processes give back:
    /// shared memory waits for teardown.
    fn counted(&self, scope: &Scope) -> (u64, u64) {
        let promised = self.promise.promised();
        if promised == 0 {
            return (0, self.left);
        }
        // Page cache that the scope does not count is not taken off either.
        let stat = self.victim().files.memory.stat();
        stat.map_or((0, self.left), |stat| {
            let counted = scope.used(&stat, self.left).min(promised);
            (counted, self.left.saturating_sub(stat.shmem))
        })
    }
}

/// What the victims of a scope hold.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    /// What counts against its level and is on its way, bytes.
    pub(super) promised: u64,
    /// What of that is held by victims that give back nothing.
    pub(super) slow: u64,
    /// How fast it comes, bytes per second.
    pub(super) freeing: u64,
    /// When the processes of all others have given it back, nanoseconds from now.
    pub(super) due: u64,
}

#[derive(Debug)]
pub(super) struct Victims([Option<Dying>; MOST]);

impl Default for Victims {
    fn default() -> Self {
        Self([const { None }; MOST])
    }
}

impl Victims {
    pub(super) fn add(&mut self, dying: Dying) {
        let token = dying.victim().token;
        let same = |old: &Dying| old.victim().token == token;
        keep(&mut self.0, dying, same, |old| old.number);
    }

    /// Calls `look` with each, and forgets those of which nothing more is to come; true where there was one.
    pub(super) fn look(&mut self, mut look: impl FnMut(&mut Dying)) -> bool {
        let mut forgotten = false;
        for place in &mut self.0 {
            if let Some(dying) = place {
                look(dying);
                if dying.told && dying.promise.is_over() {
                    *place = None;
                    forgotten = true;
                }
            }
        }
        forgotten
    }

    fn all(&self) -> impl Iterator<Item = &Dying> {
        self.0.iter().flatten()
    }

    fn of(&self, scope: ScopeName) -> impl Iterator<Item = &Dying> {
        self.all()
            .filter(move |dying| scope.contains(dying.victim().place))
    }

    /// Those of a scope in which a process may be left and so many bytes grew since they were killed, or more.
    pub(super) fn grown(
        &mut self,
        scope: ScopeName,
        least: u64,
    ) -> impl Iterator<Item = &mut Dying> {
        let all = self.0.iter_mut().flatten();
        let here = all.filter(move |dying| scope.contains(dying.victim().place));
        here.filter(move |dying| dying.promise.is_dying() && dying.promise.grown() >= least)
    }

    /// What is promised of a pod's memory, bytes; `None` while a process of it may be left: it is evicted already.
    pub(super) fn promised_by(&self, token: u64) -> Option<u64> {
        let mut all = self.all();
        match all.find(|dying| dying.victim().token == token) {
            None => Some(0),
            Some(dying) if !dying.told || dying.promise.is_dying() => None,
            Some(dying) => Some(dying.promise.promised()),
        }
    }

    /// True while the end of one is not reported.
    pub(super) fn is_awaited(&self) -> bool {
        self.all().any(|dying| !dying.told)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// True where one is in the scope.
    pub(super) fn are_in(&self, scope: ScopeName) -> bool {
        self.of(scope).next().is_some()
    }

    /// True where processes of one in the scope still give back its memory.
    pub(super) fn give_back(&self, scope: ScopeName) -> bool {
        self.of(scope)
            .any(|dying| dying.promise.is_dying() && !dying.promise.is_over())
    }

    /// What they used at the last look, bytes.
    pub(super) fn left(&self, scope: ScopeName) -> u64 {
        self.of(scope).map(|dying| dying.left).sum()
    }

    /// What they use now, bytes.
    pub(super) fn left_now(&self, scope: ScopeName) -> u64 {
        let usage = |dying: &Dying| dying.victim().files.memory.usage().unwrap_or(0);
        self.of(scope).map(usage).sum()
    }

    /// What they hold at `now` by the last look, where freeing so many bytes takes `usual` nanoseconds.
    pub(super) fn held(&self, scope: &Scope, now: u64, usual: impl Fn(u64) -> u64) -> Held {
        let mut held = Held::default();
        for dying in self.of(scope.name) {
            let (promised, of_processes) = dying.counted(scope);
            held.promised = held.promised.saturating_add(promised);
            held.freeing = held.freeing.saturating_add(dying.promise.rate());
            match dying.promise.due(now, usual(of_processes)) {
                u64::MAX => held.slow = held.slow.saturating_add(promised),
                due => held.due = held.due.max(due),
            }
        }
        held
    }
}
