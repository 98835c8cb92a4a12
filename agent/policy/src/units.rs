//! Amounts with their unit in the type, so that milli-CPUs are never added to bytes.
//!
//! Arithmetic saturates: a sum of requests that does not fit 64 bits is a limit that no node
//! reaches, and must not wrap into a small one.

use core::{fmt, iter::Sum};

use derive_more::Display;
use serde::{Deserialize, Serialize};

/// The nearest amount that 64 bits hold, for differences, which may be below zero.
pub(crate) fn saturate(amount: i128) -> i64 {
    let nearest = if amount < 0 { i64::MIN } else { i64::MAX };
    i64::try_from(amount).unwrap_or(nearest)
}

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// None of it.
            pub const ZERO: Self = Self(0);

            /// The bare number.
            pub const fn as_u64(self) -> u64 {
                self.0
            }

            /// True for none of it.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }

            /// The sum, or the largest representable amount.
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }

            /// The difference, or zero.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl From<u64> for $name {
            fn from(amount: u64) -> Self {
                Self(amount)
            }
        }

        /// Saturates.
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::ZERO, Self::saturating_add)
            }
        }
    };
}

unit! {
    /// CPU in thousandths of a core, as Kubernetes counts and writes requests and limits: `250m`.
    #[derive(Display)]
    #[display("{_0}m")]
    MilliCpu
}

unit! {
    /// `cpu.shares` of cgroup v1. The kernel keeps it within
    /// [`CpuShares::MIN`]..=[`CpuShares::MAX`].
    #[derive(Display)]
    CpuShares
}

unit! {
    /// `cpu.weight` of cgroup v2. The kernel accepts
    /// [`CpuWeight::MIN`]..=[`CpuWeight::MAX`]; a cgroup with `cpu.idle` set reads 0.
    #[derive(Display)]
    CpuWeight
}

impl CpuShares {
    /// `MIN_SHARES` of the kernel's `kernel/sched/sched.h`.
    pub const MIN: Self = Self(2);
    /// `MAX_SHARES` of the kernel's `kernel/sched/sched.h`.
    pub const MAX: Self = Self(1 << 18);
}

impl CpuWeight {
    /// `CGROUP_WEIGHT_MIN` of the kernel's `include/linux/cgroup.h`.
    pub const MIN: Self = Self(1);
    /// `CGROUP_WEIGHT_MAX` of the kernel's `include/linux/cgroup.h`.
    pub const MAX: Self = Self(10_000);
}

unit! {
    /// Memory in bytes.
    Bytes
}

impl Bytes {
    /// One KiB.
    pub const KI: Self = Self(1 << 10);
    /// One MiB.
    pub const MI: Self = Self(1 << 20);
    /// One GiB.
    pub const GI: Self = Self(1 << 30);

    /// `n` MiB, saturating.
    pub const fn mebi(n: u64) -> Self {
        Self(n.saturating_mul(Self::MI.0))
    }

    /// `n` GiB, saturating.
    pub const fn gibi(n: u64) -> Self {
        Self(n.saturating_mul(Self::GI.0))
    }

    /// `self * numerator / denominator` rounded down, computed without overflow on the way and
    /// saturating at the end. A zero denominator gives zero.
    #[must_use]
    pub fn mul_div(self, numerator: u64, denominator: u64) -> Self {
        let product = u128::from(self.0) * u128::from(numerator);
        match product.checked_div(u128::from(denominator)) {
            Some(amount) => Self(u64::try_from(amount).unwrap_or(u64::MAX)),
            None => Self::ZERO,
        }
    }

    /// `percent` hundredths of it, rounded down.
    #[must_use]
    pub fn percent(self, percent: u64) -> Self {
        self.mul_div(percent, 100)
    }

    /// The largest multiple of `page` that is not above it; itself when `page` is zero.
    #[must_use]
    pub const fn round_down(self, page: Self) -> Self {
        match self.0.checked_rem(page.0) {
            Some(rest) => Self(self.0 - rest),
            None => self,
        }
    }

    /// The smallest multiple of `page` that is not below it, or the largest representable one;
    /// itself when `page` is zero.
    #[must_use]
    pub const fn round_up(self, page: Self) -> Self {
        match self.0.checked_rem(page.0) {
            None | Some(0) => self,
            Some(rest) => match self.0.checked_add(page.0 - rest) {
                Some(up) => Self(up),
                None => Self(self.0 - rest),
            },
        }
    }
}

/// As Kubernetes writes it: the largest binary suffix that loses nothing, else plain bytes.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (amount, suffix) = match self.0.trailing_zeros() / 10 {
            _ if self.0 == 0 => (0, ""),
            0 => (self.0, ""),
            1 => (self.0 >> 10, "Ki"),
            2 => (self.0 >> 20, "Mi"),
            _ => (self.0 >> 30, "Gi"),
        };
        write!(f, "{amount}{suffix}")
    }
}
