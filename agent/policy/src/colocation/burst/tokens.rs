//! How long a container may exceed its limit: a bucket of tokens, each a percent of its limit for a second.

/// Tokens are counted in thousandths, so that looks a millisecond apart count.
const PER_TOKEN: i128 = 1000;

/// At what usage tokens are taken and returned, percent of the limit
/// (`cpuThresholdPercentForLimiterConsumeTokens`, `cpuThresholdPercentForLimiterSavingTokens`).
const CONSUMES_FROM: u64 = 100;
const SAVES_BELOW: u64 = 60;

/// What fills and empties a bucket: `cfsQuotaBurstPeriodSeconds` and `cfsQuotaBurstPercent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rates {
    /// How long a full bucket lasts at the highest quota, seconds.
    pub period_seconds: u64,
    /// The highest quota, percent of the limit.
    pub quota_percent: u64,
}

impl Rates {
    /// The most tokens of a bucket, and the most that it owes.
    pub fn capacity(self) -> i64 {
        let beyond = i128::from(self.quota_percent.saturating_sub(100));
        crate::units::saturate(i128::from(self.period_seconds) * beyond)
    }
}

/// One container's tokens (`burstLimiter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Thousandths of a token.
    thousandths: i128,
    capacity: i64,
}

impl TokenBucket {
    /// A bucket with `tokens`, at most full.
    pub fn new(rates: Rates, tokens: i64) -> Self {
        let mut bucket = Self {
            thousandths: i128::from(tokens) * PER_TOKEN,
            capacity: rates.capacity(),
        };
        bucket.clamp();
        bucket
    }

    /// A bucket a quarter full: the mean of what the koordlet draws for each container.
    pub fn quarter(rates: Rates) -> Self {
        Self::new(rates, rates.capacity() / 4)
    }

    /// A container used this percent of its limit for so many milliseconds. True where it may exceed its
    /// limit from now on.
    pub fn used(&mut self, percent_of_limit: u64, milliseconds: u64) -> bool {
        let percent = i128::from(percent_of_limit);
        let time = i128::from(milliseconds);
        if !(SAVES_BELOW..CONSUMES_FROM).contains(&percent_of_limit) {
            self.thousandths = self
                .thousandths
                .saturating_add((100 - percent).saturating_mul(time));
        }
        self.clamp();
        self.allows()
    }

    /// True where the container may exceed its limit.
    pub const fn allows(&self) -> bool {
        self.tokens() > 0
    }

    /// Whole tokens; below zero for what the container owes.
    pub const fn tokens(&self) -> i64 {
        // Between minus and plus the capacity, which 64 bits hold.
        self.thousandths.div_euclid(PER_TOKEN) as i64
    }

    fn clamp(&mut self) {
        let most = i128::from(self.capacity) * PER_TOKEN;
        self.thousandths = self.thousandths.clamp(-most, most);
    }
}
