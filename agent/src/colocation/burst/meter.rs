//! One container: its usage over the last period, whether it is stopped at its quota, its tokens.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use podwarden_cgroup::{CgroupPath, Error, KernelCpu, ThrottleReader, Tree};
use podwarden_policy::colocation::burst::{Rates, TokenBucket};

/// The least time between two looks at a container near its quota.
const SHORTEST: Duration = Duration::from_millis(2);
/// The most: at rest a container costs 20 readings a second.
const LONGEST: Duration = Duration::from_millis(50);
/// From this part of its quota on a container that does not run counts as stopped by it, percent. The CPUs hold
/// slices of the quota that they do not use.
const STOPPED_PERCENT: u64 = 90;
/// Below this part of the time since the last look a container does not run, percent.
const RUNNING_PERCENT: u64 = 10;
/// Between two additions to the tokens.
const TOKENS_EACH: Duration = Duration::from_millis(10);

/// What a look showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// True where the container was throttled since the last look, or is stopped at its quota now.
    pub(super) throttled: bool,
    /// For how long, as far as it is known, nanoseconds.
    pub(super) throttled_nanos: u64,
    /// The tokens let it exceed its limit.
    pub(super) allowed: bool,
}

/// The quota in force, microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quota {
    /// The limit's.
    pub(super) base_us: u64,
    /// In force now.
    pub(super) now_us: u64,
    /// The burst in force.
    pub(super) burst_us: u64,
    pub(super) period_us: u64,
}

#[derive(Debug)]
pub(super) struct Meter {
    cpu: KernelCpu,
    throttle: ThrottleReader,
    /// Usage with its time, over the last period and the reading before it.
    window: VecDeque<(Instant, u64)>,
    throttled_periods: u64,
    throttled_nanos: u64,
    /// Since when it has not run.
    stopped: Option<Instant>,
    /// Unused quota that the kernel has carried over, as far as usage shows it, nanoseconds.
    carried: u64,
    tokens: Option<TokenBucket>,
    tokens_at: (Instant, u64),
    next: Instant,
}

impl Meter {
    pub(super) fn open(
        tree: &Tree,
        path: &CgroupPath,
        rates: Option<Rates>,
        now: Instant,
    ) -> Result<Self, Error> {
        let (cpu, throttle) = (
            KernelCpu::open(tree, path)?,
            ThrottleReader::open(tree, path)?,
        );
        let (used, figures) = (cpu.usage_nanos()?, throttle.read()?);
        Ok(Self {
            cpu,
            throttle,
            window: VecDeque::from([(now, used)]),
            throttled_periods: figures.throttled_periods,
            throttled_nanos: figures.throttled_nanos,
            stopped: None,
            carried: 0,
            tokens: rates.map(TokenBucket::quarter),
            tokens_at: (now, used),
            next: now,
        })
    }

    /// No step is possible: the next look is no sooner than this.
    pub(super) fn rest(&mut self, until: Instant) {
        self.next = self.next.max(until);
    }

    /// Time until the next look.
    pub(super) fn due(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Reads the container's figures. `cpus` is how many it could use at a time.
    pub(super) fn look(&mut self, quota: Quota, cpus: u64, now: Instant) -> Result<Seen, Error> {
        let used = self.cpu.usage_nanos()?;
        let (last_at, last_used) = self.window.back().copied().unwrap_or((now, used));
        let elapsed = nanos(now.duration_since(last_at));
        let delta = used.saturating_sub(last_used);
        self.carry(quota, elapsed, delta);
        self.window.push_back((now, used));
        let period = Duration::from_micros(quota.period_us);
        while self
            .window
            .get(1)
            .is_some_and(|(at, _)| now.duration_since(*at) >= period)
        {
            self.window.pop_front();
        }
        let in_period = used.saturating_sub(self.window.front().map_or(used, |(_, used)| *used));
        let limit = quota.now_us.saturating_mul(1000);
        let near = in_period.saturating_mul(2) >= limit;
        let stands =
            elapsed > 0 && delta.saturating_mul(100) < elapsed.saturating_mul(RUNNING_PERCENT);
        self.stopped = match (stands, self.stopped) {
            (false, _) => None,
            (true, since) => since.or(Some(last_at)),
        };
        let at_limit = in_period.saturating_mul(100) >= limit.saturating_mul(STOPPED_PERCENT)
            && self.carried.saturating_mul(10) <= limit;
        let mut seen = Seen {
            throttled: stands && at_limit,
            throttled_nanos: self
                .stopped
                .map_or(0, |since| nanos(now.duration_since(since))),
            allowed: self.spend(quota, used, now),
        };
        if near {
            self.read_stat(&mut seen)?;
        }
        self.next = now + pause(limit, in_period, cpus);
        Ok(seen)
    }

    /// The kernel's own count, which it keeps at the end of each period.
    fn read_stat(&mut self, seen: &mut Seen) -> Result<(), Error> {
        let figures = self.throttle.read()?;
        if figures.throttled_periods > self.throttled_periods {
            seen.throttled = true;
            let since = figures.throttled_nanos.saturating_sub(self.throttled_nanos);
            seen.throttled_nanos = seen.throttled_nanos.max(since);
        }
        self.throttled_periods = figures.throttled_periods;
        self.throttled_nanos = figures.throttled_nanos;
        Ok(())
    }

    /// Quota that was not used fills the burst, usage beyond the quota empties it.
    fn carry(&mut self, quota: Quota, elapsed: u64, used: u64) {
        let filled =
            u128::from(quota.now_us) * u128::from(elapsed) / u128::from(quota.period_us.max(1));
        let filled = u64::try_from(filled).unwrap_or(u64::MAX);
        let most = quota.burst_us.saturating_mul(1000);
        self.carried = self
            .carried
            .saturating_add(filled)
            .saturating_sub(used)
            .min(most);
    }

    /// Takes and gives tokens for the usage since the last time.
    fn spend(&mut self, quota: Quota, used: u64, now: Instant) -> bool {
        let Some(tokens) = &mut self.tokens else {
            return true;
        };
        let (at, before) = self.tokens_at;
        let elapsed = now.duration_since(at);
        if elapsed < TOKENS_EACH {
            return tokens.allows();
        }
        self.tokens_at = (now, used);
        let limit =
            u128::from(quota.base_us) * elapsed.as_nanos() / u128::from(quota.period_us.max(1));
        let percent = u128::from(used.saturating_sub(before)) * 100;
        let percent = percent.checked_div(limit).unwrap_or(0);
        let milliseconds = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        tokens.used(u64::try_from(percent).unwrap_or(u64::MAX), milliseconds)
    }
}

/// As long as the container cannot reach its quota, on all CPUs that it could use.
fn pause(limit: u64, used: u64, cpus: u64) -> Duration {
    let stop = limit / 100 * STOPPED_PERCENT;
    let headroom = stop.saturating_sub(used) / cpus.max(1);
    Duration::from_nanos(headroom).clamp(SHORTEST, LONGEST)
}

fn nanos(duration: Duration) -> u64 {
    crate::base::clock::nanos(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_comes_before_the_quota_can_be_reached() {
        let ms = |n: u64| n * 1_000_000;
        assert_eq!(pause(ms(50), 0, 2), Duration::from_micros(22_500));
        assert_eq!(pause(ms(50), ms(44), 2), SHORTEST);
        assert_eq!(pause(ms(50), ms(60), 2), SHORTEST);
        assert_eq!(pause(ms(500), 0, 2), LONGEST);
    }
}
