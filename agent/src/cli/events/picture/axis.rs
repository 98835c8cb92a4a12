//! Round numbers along an axis.

/// Round values within `from..=to`, about `most` of them at most: steps of 1, 2 or 5 times a power of
/// ten.
pub(super) fn decimal(from: i64, to: i64, most: i64) -> Vec<i64> {
    let span = to.saturating_sub(from).max(1);
    let mut step: i64 = 1;
    let mut factors = [2, 5, 10].iter().cycle();
    let mut decade: i64 = 1;
    while span / step > most {
        let Some(factor) = factors.next() else { break };
        step = decade.saturating_mul(*factor);
        if *factor == 10 {
            decade = step;
        }
    }
    multiples(from, to, step)
}

/// Round sizes within `0..=to`, about `most` of them at most: steps of a power of two, so that they are
/// whole in Ki, Mi or Gi.
pub(super) fn binary(to: u64, most: u64) -> Vec<u64> {
    let mut step: u64 = 1;
    while to / step > most && step < 1 << 62 {
        step *= 2;
    }
    (0..=to / step).map(|n| n * step).collect()
}

fn multiples(from: i64, to: i64, step: i64) -> Vec<i64> {
    let first = from.div_euclid(step) + i64::from(from.rem_euclid(step) != 0);
    (first..=to.div_euclid(step)).map(|n| n * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_and_few() {
        assert_eq!(decimal(-3, 11, 7), [-2, 0, 2, 4, 6, 8, 10]);
        assert_eq!(decimal(0, 1000, 5), [0, 200, 400, 600, 800, 1000]);
        assert_eq!(decimal(5, 5, 5), [5]);
        assert_eq!(
            binary(10 << 20, 5),
            [0, 2 << 20, 4 << 20, 6 << 20, 8 << 20, 10 << 20]
        );
        assert_eq!(binary(0, 5), [0]);
    }
}
