//! The histogram of run-queue waits.

use podwarden_abi::{CpuAccount, WAIT_BUCKETS, WAIT_CARRY};

use super::shared;
use crate::atomic;

/// Counts a wait of `ns` of the account `slot`.
#[inline(always)]
pub(super) fn wait(slot: u32, account: &mut CpuAccount, ns: u64) {
    account.wait_ns += ns;
    // In 32 bits a division by a constant is a multiplication.
    let ns = if ns > u64::from(u32::MAX) {
        u32::MAX
    } else {
        ns as u32
    };
    let bucket = log2(ns / 1000);
    let bucket = if bucket < WAIT_BUCKETS {
        bucket
    } else {
        WAIT_BUCKETS - 1
    };
    let count = account.wait_hist[bucket].wrapping_add(1);
    if count == 0
        && let Some(shared) = shared(slot)
    {
        // SAFETY: an aligned word of a map value.
        unsafe { atomic::add(&raw mut (*shared).wait_carry[bucket], WAIT_CARRY) };
    }
    account.wait_hist[bucket] = count;
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
