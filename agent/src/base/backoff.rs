//! Pauses after failures. Values only: no IO, no clock.

use std::time::Duration;

/// The first pause (`backoffManager` of client-go's reflector, `tools/cache/reflector.go`).
const FIRST: Duration = Duration::from_millis(800);
/// The longest, before it is spread.
const MOST: Duration = Duration::from_secs(30);

/// Failures in a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Another failure: how long to wait, each time longer, and never as long as all other nodes do.
    /// `spread` is a random number from 0 to 1.
    pub(crate) fn next(&mut self, spread: f64) -> Duration {
        let pause = FIRST.saturating_mul(2_u32.saturating_pow(self.0)).min(MOST);
        self.0 = self.0.saturating_add(1);
        pause.mul_f64(1.0 + spread.clamp(0.0, 1.0))
    }
}
