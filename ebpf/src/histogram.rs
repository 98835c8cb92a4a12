//! Which bucket of a histogram of times one counts to.

use podwarden_abi::BUCKETS;

/// The bucket of a time of `ns`.
#[inline(always)]
pub(crate) fn bucket(ns: u64) -> usize {
    // In 32 bits a division by a constant is a multiplication.
    let ns = if ns > u64::from(u32::MAX) {
        u32::MAX
    } else {
        ns as u32
    };
    let bucket = log2(ns / 1000);
    if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    }
}

/// floor(log2(n)), 0 for 0. Branches on purpose: this target has no count-leading-zeros instruction.
#[inline(always)]
fn log2(mut n: u32) -> usize {
    let mut bits = 0;
    if n >= 1 << 16 {
        n >>= 16;
        bits += 16;
    }
    if n >= 1 << 8 {
        n >>= 8;
        bits += 8;
    }
    if n >= 1 << 4 {
        n >>= 4;
        bits += 4;
    }
    if n >= 1 << 2 {
        n >>= 2;
        bits += 2;
    }
    bits + (n >> 1) as usize
}
