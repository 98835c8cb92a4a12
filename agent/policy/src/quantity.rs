//! Kubernetes quantities: `250m`, `1.5Gi`, `12e6`.
//!
//! Grammar and rounding are those of apimachinery `pkg/api/resource/quantity.go`: a value finer
//! than the unit rounds up, so that a request above zero stays above zero. Stricter
//! than apimachinery in two places, see `deploy/docs/differences.md`: a value above 2^63-1 is an error rather
//! than capped, and a text without a digit is an error rather than zero.

use crate::units::{Bytes, MilliCpu};

/// Why a text is not a usable quantity. The text itself is the caller's to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// Nothing to parse.
    #[error("the quantity is empty")]
    Empty,
    /// Not `[+-]digits[.digits]` in front of the suffix.
    #[error("a quantity starts with a number such as 500 or 1.5")]
    Number,
    /// What follows the number is no suffix.
    #[error(
        "unknown suffix: Ki Mi Gi Ti Pi Ei, n u m k M G T P E or an exponent such as e3 may follow the number"
    )]
    Suffix,
    /// A request or limit below zero.
    #[error("the quantity is negative")]
    Negative,
    /// Above 2^63-1 in the unit asked for.
    #[error("the quantity is above 2^63-1")]
    Overflow,
}

/// Parses an amount of CPU; `0.1` and `100m` are 100 milli-CPUs, `0.1m` rounds up to 1.
pub fn parse_cpu(text: &str) -> Result<MilliCpu, QuantityError> {
    parse(text, 1000).map(MilliCpu)
}

/// Parses an amount of memory in bytes; a fraction of a byte rounds up.
pub fn parse_memory(text: &str) -> Result<Bytes, QuantityError> {
    parse(text, 1).map(Bytes)
}

/// Parses any other quantity, such as a number of process ids; a fraction rounds up.
pub fn parse_count(text: &str) -> Result<u64, QuantityError> {
    parse(text, 1)
}

/// What was parsed of a text that a server has accepted: above 2^63-1 of the unit it is that, below
/// zero it is zero. A text that is no quantity at all is an error.
pub fn capped<T: From<u64>>(parsed: Result<T, QuantityError>) -> Result<T, QuantityError> {
    match parsed {
        Err(QuantityError::Overflow) => Ok(T::from(i64::MAX as u64)),
        Err(QuantityError::Negative) => Ok(T::from(0)),
        other => other,
    }
}

/// `ceil(value(text) * per_unit)`.
pub(crate) fn parse(text: &str, per_unit: u64) -> Result<u64, QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Empty);
    }
    let (negative, unsigned) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let number = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number);
    let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
    if integer.len() + fraction.len() == 0 || fraction.contains('.') {
        return Err(QuantityError::Number);
    }
    let scale = suffix_scale(suffix)?;

    let decimal = Decimal { integer, fraction };
    if decimal.is_zero() {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative);
    }
    // At most 1000 * 2^60: fits with room for a digit's carry.
    let factor = u128::from(per_unit) << scale.binary;
    decimal
        .times_ceil(factor, scale.decimal)
        .ok_or(QuantityError::Overflow)
}

/// A suffix as `2^binary * 10^decimal`.
struct Scale {
    binary: u32,
    decimal: i64,
}

fn suffix_scale(suffix: &str) -> Result<Scale, QuantityError> {
    let (binary, decimal) = match suffix {
        "" => (0, 0),
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        _ => {
            let exponent = suffix
                .strip_prefix(['e', 'E'])
                .ok_or(QuantityError::Suffix)?;
            (0, exponent.parse().map_err(|_| QuantityError::Suffix)?)
        }
    };
    Ok(Scale { binary, decimal })
}

/// `integer.fraction`, both possibly empty runs of ASCII digits.
struct Decimal<'a> {
    integer: &'a str,
    fraction: &'a str,
}

impl Decimal<'_> {
    fn digits(&self) -> impl DoubleEndedIterator<Item = u8> {
        let digit = |b: u8| b - b'0';
        self.integer.bytes().chain(self.fraction.bytes()).map(digit)
    }

    fn is_zero(&self) -> bool {
        self.digits().all(|digit| digit == 0)
    }

    /// `ceil(self * factor * 10^exponent)`, or `None` above 2^63-1.
    ///
    /// Exact for any number of digits: the digits behind the point are multiplied from the last to
    /// the first as on paper, keeping the carry and whether anything non-zero was left behind.
    fn times_ceil(&self, factor: u128, exponent: i64) -> Option<u64> {
        let count = self.integer.len() + self.fraction.len();
        let point = i64::try_from(self.integer.len())
            .ok()?
            .saturating_add(exponent);
        let whole = usize::try_from(point.clamp(0, i64::try_from(count).ok()?)).ok()?;

        let mut carry: u128 = 0;
        let mut remainder = false;
        for digit in self.digits().rev().take(count - whole) {
            carry += u128::from(digit) * factor;
            remainder |= !carry.is_multiple_of(10);
            carry /= 10;
        }
        // Zeros between the point and the first digit, as in 1e-30.
        for _ in 0..point.saturating_neg().max(0) {
            if carry == 0 {
                break;
            }
            remainder |= !carry.is_multiple_of(10);
            carry /= 10;
        }

        let mut integer: u128 = 0;
        for digit in self.digits().take(whole) {
            integer = integer.checked_mul(10)?.checked_add(digit.into())?;
        }
        // Zeros between the last digit and the point, as in 1e30.
        if integer != 0 {
            let zeros = point.saturating_sub(i64::try_from(count).ok()?).max(0);
            let power = 10u128.checked_pow(u32::try_from(zeros).ok()?)?;
            integer = integer.checked_mul(power)?;
        }
        let total = integer
            .checked_mul(factor)?
            .checked_add(carry)?
            .checked_add(u128::from(remainder))?;
        u64::try_from(total).ok().filter(|n| *n <= i64::MAX as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_rounds_up_to_milli() {
        let cases = [
            ("0", 0),
            ("1", 1000),
            ("100m", 100),
            ("0.1", 100),
            (".5", 500),
            ("2.", 2000),
            ("0.1m", 1),
            ("1n", 1),
            ("1e-9", 1),
            ("1e-40", 1),
            ("1.0001", 1001),
            ("+1", 1000),
            ("1k", 1_000_000),
            ("-0", 0),
            ("9223372036854775807m", i64::MAX as u64),
        ];
        for (text, milli) in cases {
            assert_eq!(parse_cpu(text), Ok(MilliCpu(milli)), "{text}");
        }
    }

    #[test]
    fn memory_knows_every_suffix() {
        let cases = [
            ("128974848", 128_974_848),
            ("129e6", 129_000_000),
            ("129E6", 129_000_000),
            ("129M", 129_000_000),
            ("123Mi", 128_974_848),
            ("1.5Gi", 3 << 29),
            ("1E", 1_000_000_000_000_000_000),
            ("7Ei", 7 << 60),
            ("0.5", 1),
            ("100m", 1),
            ("1e+3", 1000),
            ("00001Ki", 1024),
            ("1.00000000000000000000000000000000000001Ki", 1025),
            ("1.00000000000000000099Ei", (1 << 60) + 2),
            ("0e999999999999", 0),
            ("0.000000000000000000000001e24", 1),
            ("9223372036854775807", i64::MAX as u64),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_memory(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_a_server_accepted_is_capped() {
        const MOST: u64 = i64::MAX as u64;
        for text in ["9223372036854775808", "8Ei", "1e30", "1e999999999"] {
            assert_eq!(capped(parse_memory(text)), Ok(Bytes(MOST)), "{text}");
            assert_eq!(capped(parse_cpu(text)), Ok(MilliCpu(MOST)), "{text}");
        }
        assert_eq!(
            capped(parse_cpu("9223372036854775807")),
            Ok(MilliCpu(MOST)),
            "fits as a number of CPUs, not in milli"
        );
        assert_eq!(capped(parse_memory("-1")), Ok(Bytes::ZERO));
        assert_eq!(capped(parse_memory("1Gi")), Ok(Bytes::gibi(1)));
        assert_eq!(capped(parse_memory("64Mib")), Err(QuantityError::Suffix));
    }

    #[test]
    fn refuses_what_is_no_amount() {
        let cases = [
            ("", QuantityError::Empty),
            ("Gi", QuantityError::Number),
            (".", QuantityError::Number),
            ("+", QuantityError::Number),
            ("1..5", QuantityError::Number),
            ("1.2.3", QuantityError::Number),
            (" 1", QuantityError::Number),
            ("1 Gi", QuantityError::Suffix),
            ("1gi", QuantityError::Suffix),
            ("1K", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1e1.5", QuantityError::Suffix),
            ("1m5", QuantityError::Suffix),
            ("\u{ff11}", QuantityError::Number),
            ("-1", QuantityError::Negative),
            ("-0.001n", QuantityError::Negative),
            ("8Ei", QuantityError::Overflow),
            ("9223372036854775808", QuantityError::Overflow),
            ("1e19", QuantityError::Overflow),
            ("1e999999999", QuantityError::Overflow),
            (
                "99999999999999999999999999999999999999999999999",
                QuantityError::Overflow,
            ),
        ];
        for (text, error) in cases {
            assert_eq!(parse_memory(text), Err(error), "{text}");
        }
        assert_eq!(
            parse_cpu("9223372036854776"),
            Err(QuantityError::Overflow),
            "fits as a number, not in milli"
        );
    }
}
