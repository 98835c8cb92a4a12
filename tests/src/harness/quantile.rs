//! Quantiles of what was measured.

/// The smallest of the values, in ascending order, that this many thousandths of them do not exceed; `None` of none.
pub(crate) fn quantile<T: Copy>(sorted: &[T], thousandths: usize) -> Option<T> {
    let rank = (sorted.len() * thousandths).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied()
}
