//! Whether one more eviction is worth it, and of which pod.
//!
//! Problem: a scope is at its level, and the order of eviction names a pod. Its death may gain nothing: a
//! daemon outside the pods leaks, an exempt pod fills memory, or the pod holds four megabytes while another
//! one fills five hundred in a second. Evicting down the order then ends every pod and saves none.
//!
//! Approach: an eviction has to last. It is *effective* when the victim's memory, and what it would have
//! filled, cover the excess and the growth of the scope over a horizon. The first eviction has no horizon; the next
//! ones have [`KUBELET_PACE_NS`] until that has passed: memory that was filled again at once is not worth a second
//! pod. A pod that is not effective, or whose memory would be free only after the scope is at its hard limit, gives way
//! to the candidate that grows, if that one uses more than it requested.
//!
//! Where no candidate grows, evictions keep the kubelet's pace, and the pause doubles while they change nothing. The pod
//! is then the first in the order that keeps the scope below its level for that long, else the first that keeps it
//! below its hard limit, else the first. Where the hard limit would be reached within the pause, a pod of the first two
//! kinds does not wait for it, nor does one whose death lasts as long as the rest of the pause.
//!
//! A pod of which no source has told yet may not be evicted, and may be what fills the scope: a kubelet starts a pod
//! while the API server does not answer here. Where such *strangers* use as much as is to be freed, and grew the
//! most, no other pod goes for it ([`Shortage::is_of`]). Each is known soon, or may be evicted as it is.
//!
//! Terms: the *excess* is what counts against the level less the target; the *grower* is what grew most over
//! the last half second to second, further back where nothing moved before; the *gain* of a victim is its working set.
//!
//! Properties, each with a test (`tests/worth.rs`):
//! - pods that do not grow lose at most one of theirs to growth that is no candidate's in any
//!   [`KUBELET_PACE_NS`];
//! - the candidate that fills is evicted after at most one other pod that is not worth it;
//! - an excess that one effective candidate covers costs one pod.
//!
//! Times are nanoseconds of any clock that does not go backwards, sizes bytes, rates bytes per second.

const SECOND_NS: u64 = 1_000_000_000;

/// The kubelet looks at its thresholds this often and evicts one pod at most each time
/// (`monitoringInterval` of kubelet `pkg/kubelet/kubelet.go`).
pub const KUBELET_PACE_NS: u64 = 10 * SECOND_NS;

/// The longest pause between two evictions that change nothing.
pub const LONGEST_PAUSE_NS: u64 = 300 * SECOND_NS;

/// How much a scope grew of late, and how much of that its candidates did, all over the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// Of the pods that may be evicted, bytes; what shrank counts as nothing.
    pub candidates: u64,
    /// Of everything else, bytes: daemons, exempt pods, cgroups that no source explains.
    pub others: u64,
}

/// Less growth than this says nothing about what grew, bytes: what one CPU charges ahead (`MEMCG_CHARGE_BATCH` of
/// kernel `include/linux/memcontrol.h`).
const CLEAR_GROWTH: u64 = 256 << 10;

/// A scope that was below its level for this long starts afresh, nanoseconds.
const FORGET_NS: u64 = 60 * SECOND_NS;

/// What grew in a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grower {
    /// Pods that may be evicted: at least half of the growth is theirs.
    Candidates,
    /// Something else.
    Others,
}

impl Growth {
    /// All of it, bytes.
    pub const fn all(&self) -> u64 {
        self.candidates.saturating_add(self.others)
    }

    /// What grew most; `None` where the scope hardly grew.
    fn grower(&self) -> Option<Grower> {
        match self.all() {
            0..CLEAR_GROWTH => None,
            _ if self.candidates >= self.others => Some(Grower::Candidates),
            _ => Some(Grower::Others),
        }
    }
}

/// A scope that is at its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// What has to be freed, bytes.
    pub excess: u64,
    /// How fast the scope fills, bytes per second.
    pub rate: u64,
    /// How much it grew of late.
    pub growth: Growth,
    /// What is left below its hard limit, where there is one, bytes.
    pub room: Option<u64>,
}

impl Shortage {
    /// What has to be freed for the scope to stay below its level for `horizon` nanoseconds, bytes.
    fn needed(&self, horizon: u64) -> u64 {
        let filled = part(self.rate, horizon, SECOND_NS);
        self.excess.saturating_add(filled)
    }

    /// What has to be freed for the scope to stay below its hard limit for `horizon` nanoseconds, bytes; `None`
    /// without a limit.
    fn needed_below_limit(&self, horizon: u64) -> Option<u64> {
        let filled = part(self.rate, horizon, SECOND_NS);
        self.room.map(|room| filled.saturating_sub(room))
    }

    /// Whether the scope is at its hard limit within `nanos` nanoseconds: then a pod whose death lasts need not wait
    /// for the kubelet's pace.
    pub fn reaches_limit(&self, nanos: u64) -> bool {
        let filled = part(self.rate, nanos, SECOND_NS);
        self.room.is_some_and(|room| filled >= room)
    }

    /// What a death has to come to for growth that is no candidate's, the best first: the scope stays below its level
    /// for [`KUBELET_PACE_NS`], or below its hard limit. With `pause` nanoseconds to wait, also: it makes up for what is
    /// filled meanwhile.
    pub fn lasting(&self, pause: u64) -> [Option<Lasting>; 3] {
        let over = |horizon| move |bytes| Lasting { bytes, horizon };
        let below_level = self.needed(KUBELET_PACE_NS);
        let below_limit = self.needed_below_limit(KUBELET_PACE_NS);
        let meanwhile = part(self.rate, pause, SECOND_NS);
        [
            Some(below_level).map(over(KUBELET_PACE_NS)),
            below_limit.map(over(KUBELET_PACE_NS)),
            (pause > 0).then_some(meanwhile).map(over(pause)),
        ]
    }

    /// Whether the death of `gain` comes to `least`, with what it would have filled.
    pub fn lasts(&self, gain: Gain, least: Lasting) -> bool {
        let spared = part(self.rate_of(gain), least.horizon, SECOND_NS);
        gain.bytes.saturating_add(spared) >= least.bytes
    }

    /// Whether the death of `gain` keeps the scope below its level for `horizon` nanoseconds: its memory is
    /// free then, and it fills no more.
    fn is_covered(&self, gain: Gain, horizon: u64) -> bool {
        let spared = part(self.rate_of(gain), horizon, SECOND_NS);
        gain.bytes.saturating_add(spared) >= self.needed(horizon)
    }

    /// Whether the memory of `gain` is free before the scope is at its hard limit.
    fn is_in_time(&self, gain: Gain) -> bool {
        let rate = self.rate.saturating_sub(self.rate_of(gain));
        let filled = part(rate, gain.takes, SECOND_NS);
        self.room.is_none_or(|room| filled <= room)
    }

    /// Whether strangers use enough for it to be theirs, and grew as much as anything else did.
    pub fn is_of(&self, strangers: Strangers) -> bool {
        let Growth { candidates, others } = self.growth;
        // Theirs is part of what others grew.
        let rest = others.saturating_sub(strangers.growth);
        strangers.usage > 0
            && strangers.usage >= self.excess
            && strangers.growth >= candidates.max(rest)
    }

    /// How much of the rate is of `gain`.
    fn rate_of(&self, gain: Gain) -> u64 {
        let all = self.growth.all();
        part(self.rate, gain.growth.min(all), all)
    }

    /// Whether `gain` is what fills the scope: half of the growth or more.
    fn is_filled_by(&self, gain: Gain) -> bool {
        gain.growth > 0 && gain.growth >= self.growth.all() / 2
    }
}

/// What pods have of which no source has told yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Bytes.
    pub usage: u64,
    /// How much of that they grew over the time of [`Shortage::growth`], bytes.
    pub growth: u64,
}

/// So many bytes over so long a time: [`Shortage::lasting`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lasting {
    bytes: u64,
    /// Nanoseconds.
    horizon: u64,
}

/// What a candidate's death gains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gain {
    /// Memory that is free then, bytes.
    pub bytes: u64,
    /// How much of the scope's growth is its own, bytes.
    pub growth: u64,
    /// How long until its memory is free, nanoseconds.
    pub takes: u64,
}

/// `value * numerator / denominator`; 0 of nothing.
fn part(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator);
    let part = product.checked_div(u128::from(denominator)).unwrap_or(0);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Which of two candidates is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The first in the order.
    First,
    /// The one that fills the scope, ahead of the first, whose death would gain too little or too late.
    Filler,
}

/// Picks between the first in the order and `filler`, the candidate that grew most among those over their
/// memory request.
pub fn pick(shortage: &Shortage, horizon: u64, first: Gain, filler: Option<Gain>) -> Pick {
    let suffices = shortage.is_covered(first, horizon) && shortage.is_in_time(first);
    match filler {
        Some(filler) if !suffices && shortage.is_filled_by(filler) => Pick::Filler,
        _ => Pick::First,
    }
}

/// The evictions of one scope, and what came of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    last: Option<u64>,
    /// The last one for growth that is no candidate's.
    paced: Option<u64>,
    pause: u64,
    /// What is taken to grow before growth was seen, and what was seen last.
    assumed: Grower,
    grower: Grower,
    at_level: u64,
}

impl Effect {
    /// Of a scope in which `assumed` grows, as long as nothing was seen to grow.
    pub const fn new(assumed: Grower) -> Self {
        Self {
            last: None,
            paced: None,
            pause: KUBELET_PACE_NS,
            assumed,
            grower: assumed,
            at_level: 0,
        }
    }

    /// What brought the scope, which is at its level at `now` and grew so much of late, there. Memory that was
    /// filled counts for what filled it, also when that rests.
    pub fn grower(&mut self, growth: &Growth, now: u64) -> Grower {
        if now.saturating_sub(self.at_level) >= FORGET_NS {
            self.grower = self.assumed;
        }
        self.at_level = now;
        self.grower = growth.grower().unwrap_or(self.grower);
        self.grower
    }

    /// How long the eviction at `now` has to last, nanoseconds.
    pub const fn horizon(&self, now: u64) -> u64 {
        match self.last {
            Some(last) if now.saturating_sub(last) < KUBELET_PACE_NS => KUBELET_PACE_NS,
            _ => 0,
        }
    }

    /// When the next eviction is allowed; 0 is at once. Pods that were evicted for the growth of candidates do not
    /// count: their death had an end.
    pub const fn allowed_from(&self, grower: Grower) -> u64 {
        match (grower, self.paced) {
            (Grower::Others, Some(last)) => last.saturating_add(self.pause),
            _ => 0,
        }
    }

    /// A pod was evicted at `now`, for what [`Effect::grower`] named last.
    pub fn evicted(&mut self, now: u64) {
        self.last = Some(now);
        if self.grower == Grower::Candidates {
            return;
        }
        if let Some(last) = self.paced {
            self.pause = match now.saturating_sub(last) {
                // It lasted clearly longer than the pause: the scope was below its level meanwhile.
                lasted if lasted >= self.pause.saturating_mul(2) => KUBELET_PACE_NS,
                lasted if lasted >= self.pause => {
                    self.pause.saturating_mul(2).min(LONGEST_PAUSE_NS)
                }
                _ => self.pause,
            };
        }
        self.paced = Some(now);
    }
}
