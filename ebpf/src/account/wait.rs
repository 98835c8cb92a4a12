//! The histogram of run-queue waits.

use podwarden_abi::{CpuAccount, WAIT_CARRY};

use super::shared;
use crate::{atomic, histogram};

/// Counts a wait of `ns` of the account `slot`.
#[inline(always)]
pub(super) fn wait(slot: u32, account: &mut CpuAccount, ns: u64) {
    account.wait_ns += ns;
    let bucket = histogram::bucket(ns);
    let count = account.wait_hist[bucket].wrapping_add(1);
    if count == 0
        && let Some(shared) = shared(slot)
    {
        // SAFETY: an aligned word of a map value.
        unsafe { atomic::add(&raw mut (*shared).wait_carry[bucket], WAIT_CARRY) };
    }
    account.wait_hist[bucket] = count;
}
