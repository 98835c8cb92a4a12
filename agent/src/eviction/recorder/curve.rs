//! Usage over time: how points are kept, joined from several sources, and thinned out.

use std::collections::VecDeque;

/// Points kept for one cgroup: 10 s at 10 a second, and some more.
const KEPT: usize = 128;

/// Points that a curve in a record has at most.
const SHOWN: usize = 240;

/// Time in nanoseconds of `CLOCK_MONOTONIC`, and bytes.
pub(super) type Point = (u64, u64);

/// The latest points of one cgroup. Where usage stands still only the ends of that time are kept, so
/// that an idle pod has two of them.
#[derive(Debug, Default)]
pub(super) struct Ring(VecDeque<Point>);

impl Ring {
    pub(super) fn push(&mut self, point: Point) {
        let flat = |at: usize| self.0.get(at).is_some_and(|(_, usage)| *usage == point.1);
        let len = self.0.len();
        if len >= 2 && flat(len - 1) && flat(len - 2) {
            self.0.pop_back();
        } else if len == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(point);
    }

    pub(super) fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.0.iter().copied()
    }

    /// Usage at the latest point no later than `at`.
    pub(super) fn usage_at(&self, at: u64) -> Option<u64> {
        let before = self.0.iter().rev().find(|(time, _)| *time <= at);
        before.map(|(_, usage)| *usage)
    }
}

/// The part of `points` from `from` on, in order of time. Between the ends of a time in which usage
/// stood still it is known: where `from` lies in one the part begins at `from`.
pub(super) fn part(points: impl IntoIterator<Item = Point>, from: u64) -> Vec<Point> {
    let mut points: Vec<_> = points.into_iter().collect();
    points.sort_unstable();
    points.dedup_by_key(|(at, _)| *at);
    let first = points.partition_point(|(at, _)| *at < from);
    let at_from = match (
        first.checked_sub(1).and_then(|i| points.get(i)),
        points.get(first),
    ) {
        (Some((_, before)), Some((at, after))) if before == after && *at > from => {
            Some((from, *after))
        }
        _ => None,
    };
    at_from.into_iter().chain(points.drain(first..)).collect()
}

/// At most [`SHOWN`] of `points`, dense around `busy` and sparse elsewhere; the first and the last stay.
pub(super) fn thin(points: &[Point], busy: std::ops::RangeInclusive<u64>) -> Vec<Point> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    // Two thirds for what is busy, the rest for the rest.
    let busy_for = busy.end().saturating_sub(*busy.start());
    let dense = busy_for.div_ceil(SHOWN as u64 * 2 / 3).max(1);
    let sparse = (last.0 - first.0).div_ceil(SHOWN as u64 / 3 - 4).max(1);
    let mut kept: Vec<Point> = Vec::with_capacity(SHOWN);
    for (index, point) in points.iter().enumerate() {
        let grain = if busy.contains(&point.0) {
            dense
        } else {
            sparse
        };
        let far = kept.last().is_none_or(|(at, _)| point.0 - at >= grain);
        if far || index + 1 == points.len() {
            kept.push(*point);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring(points: &[Point]) -> Ring {
        let mut ring = Ring::default();
        points.iter().for_each(|point| ring.push(*point));
        ring
    }

    #[test]
    fn what_stands_still_has_two_ends() {
        let ring = ring(&[(1, 5), (2, 5), (3, 5), (4, 6), (5, 6), (6, 6), (7, 1)]);
        let points: Vec<_> = ring.points().collect();
        assert_eq!(points, [(1, 5), (3, 5), (4, 6), (6, 6), (7, 1)]);
        assert_eq!(ring.usage_at(5), Some(6));
        assert_eq!(ring.usage_at(0), None);
    }

    #[test]
    fn a_part_begins_where_usage_was_known_to_stand() {
        let points = [(1, 5), (9, 5), (10, 7)];
        assert_eq!(part(points, 4), [(4, 5), (9, 5), (10, 7)]);
        assert_eq!(part(points, 9), [(9, 5), (10, 7)]);
        assert_eq!(
            part([(1, 5), (9, 6)], 4),
            [(9, 6)],
            "between them it is not known"
        );
        assert_eq!(part([(9, 6), (3, 1), (9, 6)], 0), [(3, 1), (9, 6)]);
        assert_eq!(part(points, 11), []);
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_the_latest_is_there(usages in proptest::collection::vec(0u64..4, 1..1000)) {
            let mut ring = Ring::default();
            for (at, usage) in (0..).zip(&usages) {
                ring.push((at, *usage));
                prop_assert!(ring.0.len() <= KEPT);
                prop_assert_eq!(ring.usage_at(at), Some(*usage));
                // A time that is still covered has an exact answer.
                let from = ring.0[0].0;
                for (then, usage) in (0..=at).zip(&usages).skip(usize::try_from(from).unwrap()) {
                    prop_assert_eq!(ring.usage_at(then), Some(*usage));
                }
            }
        }

        #[test]
        fn thinned_out_is_few_in_order_and_keeps_its_ends(
            steps in proptest::collection::vec(0u64..10_000_000, 1..3000), start in 0u64..1 << 40, len in 0u64..1 << 36
        ) {
            let mut at = 0;
            let points: Vec<Point> = steps.iter().map(|step| { at += step; (at, *step) }).collect();
            let shown = thin(&points, start..=start + len);
            prop_assert!(shown.len() <= SHOWN, "{}", shown.len());
            prop_assert!(shown.is_sorted_by_key(|p| p.0));
            prop_assert_eq!(shown.first(), points.first());
            prop_assert_eq!(shown.last(), points.last());
        }
    }
}
