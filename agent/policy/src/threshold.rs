//! Eviction thresholds: `memory.available<500Mi`, `<5%`, soft ones with a grace period.
//!
//! Parsed and judged as the kubelet does (`ParseThresholdConfig` and `thresholdsMet` of kubelet
//! `pkg/kubelet/eviction/helpers.go`), from the maps of KubeletConfiguration.

use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::{fmt, time::Duration};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::{
    quantity::{self, QuantityError},
    signal::Signal,
};

/// Parts of one percent that [`Amount::Percent`] counts in.
const PER_PERCENT: u64 = 1_000_000;
const HUNDRED_PERCENT: u64 = 100 * PER_PERCENT;

/// A quantity, or a part of the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Amount {
    /// Bytes, inodes or process ids.
    Quantity(u64),
    /// Millionths of a percent of the capacity; 5 % is 5,000,000.
    Percent(u64),
}

impl Amount {
    /// The quantity for a capacity, rounded down (`GetThresholdQuantity` of kubelet
    /// `pkg/kubelet/eviction/api/types.go`).
    pub fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Quantity(quantity) => quantity,
            Self::Percent(parts) => {
                let amount = u128::from(capacity) * u128::from(parts) / u128::from(HUNDRED_PERCENT);
                u64::try_from(amount).unwrap_or(u64::MAX)
            }
        }
    }

    /// Reads what a threshold compares with; `None` for 0 % and 100 %, which switch it off, as for
    /// the kubelet.
    pub fn parse_threshold(text: &str) -> Result<Option<Self>, AmountError> {
        match Self::parse(text)? {
            Self::Percent(0 | HUNDRED_PERCENT) => Ok(None),
            Self::Quantity(0) => Err(AmountError::Zero),
            amount => Ok(Some(amount)),
        }
    }

    /// Reads a minimum reclaim. A quantity of zero is one, 0 % is an error, as for the kubelet.
    pub fn parse_reclaim(text: &str) -> Result<Self, AmountError> {
        match Self::parse(text)? {
            Self::Percent(0) => Err(AmountError::Zero),
            amount => Ok(amount),
        }
    }

    /// Reads an amount, zero included.
    pub fn parse(text: &str) -> Result<Self, AmountError> {
        let Some(percent) = text.strip_suffix('%') else {
            return Ok(Self::Quantity(quantity::parse_count(text)?));
        };
        if !percent.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(AmountError::Percentage);
        }
        match quantity::parse(percent, PER_PERCENT) {
            Ok(parts) if parts <= HUNDRED_PERCENT => Ok(Self::Percent(parts)),
            Ok(_) | Err(QuantityError::Negative | QuantityError::Overflow) => {
                Err(AmountError::PercentageRange)
            }
            Err(_) => Err(AmountError::Percentage),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(quantity) => crate::Bytes(*quantity).fmt(f),
            Self::Percent(parts) => {
                write!(f, "{}", parts / PER_PERCENT)?;
                let fraction = parts % PER_PERCENT;
                if fraction != 0 {
                    let digits = alloc::format!("{fraction:06}");
                    write!(f, ".{}", digits.trim_end_matches('0'))?;
                }
                f.write_str("%")
            }
        }
    }
}

/// Why a text is not an amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AmountError {
    /// No quantity.
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    /// No number in front of the `%`.
    #[error("a percentage is a number and %, such as 5%")]
    Percentage,
    /// Below 0 % or above 100 %.
    #[error("a percentage lies within 0% and 100%")]
    PercentageRange,
    /// Zero where something above zero is needed.
    #[error("must be above zero")]
    Zero,
}

/// A point below which pods are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Display, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[display("{signal}<{less_than}")]
pub struct Threshold {
    /// What is watched.
    pub signal: Signal,
    /// How long it must stay crossed; `None` for a hard threshold.
    pub grace: Option<Duration>,
    /// Crossed when less than this is left.
    pub less_than: Amount,
    /// How much more must be available before it counts as relieved.
    pub min_reclaim: Option<Amount>,
}

impl Threshold {
    /// True when it acts at once.
    pub const fn is_hard(&self) -> bool {
        self.grace.is_none()
    }
}

/// The five settings of KubeletConfiguration that make thresholds, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ThresholdConfig {
    /// `evictionHard`.
    pub eviction_hard: BTreeMap<String, String>,
    /// `evictionSoft`.
    pub eviction_soft: BTreeMap<String, String>,
    /// `evictionSoftGracePeriod`.
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    /// `evictionMinimumReclaim`.
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// `enforceNodeAllocatable` contains `pods`: the hard memory threshold also counts for what is
    /// left below the limit of `kubepods`.
    pub enforce_pods: bool,
}

/// What is wrong with a [`ThresholdConfig`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ThresholdError {
    /// Not a signal.
    #[error("{field}: {name:?} is no signal that this agent watches")]
    Signal {
        /// Which setting.
        field: &'static str,
        /// The key.
        name: String,
    },
    /// Not an amount.
    #[error("{field}[{signal}]: {value:?} is no threshold")]
    Amount {
        /// Which setting.
        field: &'static str,
        /// Of which signal.
        signal: Signal,
        /// As written.
        value: String,
        /// Why.
        #[source]
        source: AmountError,
    },
    /// Not a duration of zero or more.
    #[error("evictionSoftGracePeriod[{signal}]: {value:?} is no duration such as 1m30s")]
    Grace {
        /// Of which signal.
        signal: Signal,
        /// As written.
        value: String,
    },
    /// A soft threshold without its grace period.
    #[error("evictionSoft[{signal}] needs evictionSoftGracePeriod[{signal}]")]
    NoGrace {
        /// Of which signal.
        signal: Signal,
    },
}

impl ThresholdConfig {
    /// The thresholds, in the order in which they are acted on. One of 0 % or 100 % is none, as
    /// for the kubelet. The error is the first thing that is wrong.
    pub fn parse(&self) -> Result<Vec<Threshold>, ThresholdError> {
        let hard = amounts("evictionHard", &self.eviction_hard, Amount::parse_threshold)?;
        let soft = amounts("evictionSoft", &self.eviction_soft, Amount::parse_threshold)?;
        let reclaim = amounts(
            "evictionMinimumReclaim",
            &self.eviction_minimum_reclaim,
            |text| Amount::parse_reclaim(text).map(Some),
        )?;
        let grace = graces(&self.eviction_soft_grace_period)?;

        let threshold = |signal: Signal, less_than: Amount, grace: Option<Duration>| Threshold {
            signal,
            grace,
            less_than,
            min_reclaim: reclaim.get(&signal).copied(),
        };
        let mut thresholds = Vec::new();
        for (signal, amount) in hard {
            let hard = threshold(signal, amount, None);
            if self.enforce_pods && signal == Signal::MemoryAvailable {
                thresholds.push(Threshold {
                    signal: Signal::AllocatableMemoryAvailable,
                    ..hard
                });
            }
            thresholds.push(hard);
        }
        for (signal, amount) in soft {
            let grace = *grace
                .get(&signal)
                .ok_or(ThresholdError::NoGrace { signal })?;
            thresholds.push(threshold(signal, amount, Some(grace)));
        }
        thresholds.sort();
        Ok(thresholds)
    }
}

fn amounts(
    field: &'static str,
    written: &BTreeMap<String, String>,
    parse: impl Fn(&str) -> Result<Option<Amount>, AmountError>,
) -> Result<BTreeMap<Signal, Amount>, ThresholdError> {
    let mut amounts = BTreeMap::new();
    for (name, value) in written {
        let signal = signal(field, name)?;
        let error = |source| ThresholdError::Amount {
            field,
            signal,
            value: value.clone(),
            source,
        };
        if let Some(amount) = parse(value).map_err(error)? {
            amounts.insert(signal, amount);
        }
    }
    Ok(amounts)
}

fn graces(
    written: &BTreeMap<String, String>,
) -> Result<BTreeMap<Signal, Duration>, ThresholdError> {
    let mut graces = BTreeMap::new();
    for (name, value) in written {
        let signal = signal("evictionSoftGracePeriod", name)?;
        let grace = parse_duration(value).ok_or_else(|| ThresholdError::Grace {
            signal,
            value: value.clone(),
        })?;
        graces.insert(signal, grace);
    }
    Ok(graces)
}

fn signal(field: &'static str, name: &str) -> Result<Signal, ThresholdError> {
    Signal::of_key(name).ok_or_else(|| ThresholdError::Signal {
        field,
        name: name.to_string(),
    })
}

/// A duration as Go writes it (`time.ParseDuration`): `30s`, `1m30s`, `1.5h`, `0`. `None` for
/// anything else, for a negative one and for more than 2^63-1 nanoseconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("\u{b5}s", 1_000),
        ("\u{3bc}s", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total: u64 = 0;
    loop {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(number);
        let unit = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(quantity::parse(number, nanos).ok()?)?;
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    (total <= i64::MAX as u64).then(|| Duration::from_nanos(total))
}
