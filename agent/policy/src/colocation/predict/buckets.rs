//! The buckets of CPU and memory, and the weight of a sample within a half-life.

use serde::{Deserialize, Serialize};

use super::{CPU_HALF_LIFE_S, MEMORY_HALF_LIFE_S, UNIT};

/// What a histogram counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scale {
    /// Microcores: the first bucket ends at 25 milli-CPU, the last begins above 1,024 CPUs.
    Cpu,
    /// Bytes: the first bucket ends at 5 MiB, the last begins above 2 TiB.
    Memory,
}

const CPU_BUCKETS: usize = 159;
const MEMORY_BUCKETS: usize = 206;

/// Where each bucket begins: the widths are `first x 1.05^i`.
const CPU_STARTS: [u64; CPU_BUCKETS] = starts(25_000);
const MEMORY_STARTS: [u64; MEMORY_BUCKETS] = starts(5 << 20);

const _: () = assert!(CPU_STARTS[CPU_BUCKETS - 1] > 1024 * 1_000_000);
const _: () = assert!(MEMORY_STARTS[MEMORY_BUCKETS - 1] > 1 << 41);
const _: () = assert!(MEMORY_BUCKETS <= u8::MAX as usize);

const fn starts<const N: usize>(first: u64) -> [u64; N] {
    const DIGITS: u32 = 32;
    let mut starts = [0; N];
    let mut width = (first as u128) << DIGITS;
    let mut start = 0_u128;
    let mut i = 1;
    while i < N {
        start += width;
        width = width * 105 / 100;
        starts[i] = (start >> DIGITS) as u64;
        i += 1;
    }
    starts
}

impl Scale {
    const fn starts(self) -> &'static [u64] {
        match self {
            Self::Cpu => &CPU_STARTS,
            Self::Memory => &MEMORY_STARTS,
        }
    }

    pub(super) const fn half_life_s(self) -> u64 {
        match self {
            Self::Cpu => CPU_HALF_LIFE_S,
            Self::Memory => MEMORY_HALF_LIFE_S,
        }
    }

    pub(super) const fn count(self) -> u8 {
        match self {
            Self::Cpu => CPU_BUCKETS as u8,
            Self::Memory => MEMORY_BUCKETS as u8,
        }
    }

    /// The bucket of an amount; those beyond the last start are in the last.
    pub(super) fn bucket(self, amount: u64) -> u8 {
        let above = self.starts().partition_point(|start| *start <= amount);
        u8::try_from(above.saturating_sub(1)).unwrap_or(u8::MAX)
    }

    /// Where the next bucket begins; the start of the last one, which has no end.
    pub(super) fn end(self, bucket: u8) -> u64 {
        let starts = self.starts();
        let next = usize::from(bucket) + 1;
        starts[next.min(starts.len() - 1)]
    }
}

const STEPS: usize = 64;

/// `UNIT x 2^(i/64)`.
const GROWTH: [u32; STEPS] = {
    const DIGITS: u32 = 48;
    // The sixth square root of two, which is 2^(1/64).
    let mut root = 2_u128 << DIGITS;
    let mut i = 0;
    while i < 6 {
        root = (root << DIGITS).isqrt();
        i += 1;
    }
    let mut growth = [0; STEPS];
    let mut factor = 1_u128 << DIGITS;
    let mut i = 0;
    while i < STEPS {
        growth[i] = ((UNIT as u128 * factor) >> DIGITS) as u32;
        factor = (factor * root) >> DIGITS;
        i += 1;
    }
    growth
};

/// The weight of a sample so many seconds after a half-life began.
pub(super) fn weight_within(part: u64, half_life_s: u64) -> u32 {
    let step = part.saturating_mul(STEPS as u64) / half_life_s.max(1);
    let at = usize::try_from(step).unwrap_or(STEPS).min(STEPS - 1);
    GROWTH[at]
}
