//! The reactor's sleep: until the earliest moment at which usage can reach a level.

use std::time::Duration;

/// As fast as one CPU can fill fresh memory, bytes per second. Clearing a 4 KiB page and charging it
/// takes 250 ns and more; with huge pages clearing alone limits, at about 10 GiB/s.
const FILL_RATE_PER_CPU: u64 = 10 << 30;

/// How long usage that is `headroom` bytes below its level cannot reach it with `cpus` CPUs filling,
/// within `shortest..=longest`: below the one, waking costs more than it finds; the other bounds
/// how late a level is seen that was lowered, or whose usage jumped.
pub(super) fn sleep(headroom: u64, cpus: u32, shortest: Duration, longest: Duration) -> Duration {
    let rate = FILL_RATE_PER_CPU.saturating_mul(u64::from(cpus.max(1)));
    let nanos = u128::from(headroom) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).clamp(shortest, longest)
}

/// When usage passed `level` between two samples (time in nanoseconds, usage in bytes), by a
/// straight line; the later time where that makes no sense.
pub(super) fn interpolate(before: (u64, u64), after: (u64, u64), level: u64) -> u64 {
    let ((t0, u0), (t1, u1)) = (before, after);
    if u0 >= level || u1 <= u0 || t1 <= t0 {
        return t1;
    }
    let part = u128::from(t1 - t0) * u128::from(level - u0) / u128::from(u1 - u0);
    t0 + u64::try_from(part).unwrap_or(u64::MAX).min(t1 - t0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHORTEST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(100);

    #[test]
    fn the_crossing_lies_on_the_line() {
        assert_eq!(interpolate((1000, 0), (2000, 100), 50), 1500);
        assert_eq!(
            interpolate((1000, 60), (2000, 100), 50),
            2000,
            "was above already"
        );
        assert_eq!(interpolate((1000, 60), (2000, 10), 50), 2000, "fell");
    }

    proptest! {
        #[test]
        fn a_full_speed_filler_cannot_pass_unseen_by_more_than_the_shortest_sleep(
            headroom in any::<u64>(), cpus in 1u32..1024
        ) {
            let slept = sleep(headroom, cpus, SHORTEST, LONGEST);
            let filled = slept.as_secs_f64() * (FILL_RATE_PER_CPU as f64) * f64::from(cpus);
            prop_assert!(slept == SHORTEST || filled <= headroom as f64 * 1.001);
            prop_assert!(slept <= LONGEST);
        }

        #[test]
        fn less_headroom_never_sleeps_longer(a in any::<u64>(), b in any::<u64>(), cpus in 1u32..1024) {
            prop_assert!(sleep(a.min(b), cpus, SHORTEST, LONGEST) <= sleep(a.max(b), cpus, SHORTEST, LONGEST));
        }

        #[test]
        fn the_crossing_is_between_the_samples(
            t0 in 0u64..1 << 60, dt in 0u64..1 << 40, u0 in any::<u64>(), u1 in any::<u64>(), level in any::<u64>()
        ) {
            let at = interpolate((t0, u0), (t0 + dt, u1), level);
            prop_assert!((t0..=t0 + dt).contains(&at));
        }
    }
}
