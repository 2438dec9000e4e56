//! Kubernetes quantities: `10Gi`, `1.5G`, `100m`, `1e3`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

/// The smallest step upstream keeps; anything finer is rounded up to it.
const NANOS: i128 = 1_000_000_000;

/// How a quantity was written, which decides how it is written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Powers of 1024: `Ki`, `Mi`, ...
    #[default]
    Binary,
    /// Powers of 1000: `k`, `M`, ...
    Decimal,
    /// Powers of ten: `e3`, `e6`, ...
    Exponent,
}

/// An exact amount. Two quantities are equal when their amounts are, however they were written.
///
/// Amounts beyond what 128 bits of nano units hold (about 1.7e29) are capped, as upstream caps what it cannot hold:
/// a foolish number must not make its object unreadable.
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

/// Why a text is not a quantity, or a quantity is not a size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The text does not follow the grammar.
    #[error("quantity {value:?} is not a number with an optional suffix such as Ki, Mi, Gi, Ti, k, M, G, T, m or e3")]
    Parse {
        /// The text.
        value: String,
    },
    /// The amount is no size in bytes that CSI can carry.
    #[error("quantity {value} is not a size from 0 to 9223372036854775807 bytes (just under 8Ei)")]
    FitBytes {
        /// The quantity.
        value: Quantity,
    },
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nanos: 0, format: Format::Binary };

    /// A number of bytes, written with binary suffixes.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nanos: bytes as i128 * NANOS, format: Format::Binary }
    }

    /// The amount in whole units, rounded up.
    pub const fn bytes(self) -> i128 {
        let whole = self.nanos / NANOS;
        if self.nanos % NANOS > 0 { whole + 1 } else { whole }
    }

    /// The amount in thousandths of a unit, rounded up.
    pub const fn millis(self) -> i128 {
        const NANOS_IN_A_THOUSANDTH: i128 = NANOS / 1000;
        let whole = self.nanos / NANOS_IN_A_THOUSANDTH;
        if self.nanos % NANOS_IN_A_THOUSANDTH > 0 { whole + 1 } else { whole }
    }

    /// The amount as a size in bytes, rounded up, if it is one that CSI can carry.
    pub fn size(self) -> Result<i64, Error> {
        match i64::try_from(self.bytes()) {
            Ok(size) if size >= 0 => Ok(size),
            _ => Err(Error::FitBytes { value: self }),
        }
    }

    /// Whether the amount is nothing.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// How it was written.
    pub const fn format(self) -> Format {
        self.format
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

/// What a suffix multiplies by: `2^binary * 10^decimal`.
struct Scale {
    binary: u32,
    decimal: i32,
    format: Format,
}

fn scale(suffix: &str) -> Option<Scale> {
    let of = |binary, decimal, format| Some(Scale { binary, decimal, format });
    match suffix {
        "Ki" => of(10, 0, Format::Binary),
        "Mi" => of(20, 0, Format::Binary),
        "Gi" => of(30, 0, Format::Binary),
        "Ti" => of(40, 0, Format::Binary),
        "Pi" => of(50, 0, Format::Binary),
        "Ei" => of(60, 0, Format::Binary),
        "n" => of(0, -9, Format::Decimal),
        "u" => of(0, -6, Format::Decimal),
        "m" => of(0, -3, Format::Decimal),
        "" => of(0, 0, Format::Decimal),
        "k" => of(0, 3, Format::Decimal),
        "M" => of(0, 6, Format::Decimal),
        "G" => of(0, 9, Format::Decimal),
        "T" => of(0, 12, Format::Decimal),
        "P" => of(0, 15, Format::Decimal),
        "E" => of(0, 18, Format::Decimal),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // An exponent beyond 32 bits is as good as infinite, in its direction.
            let limit = if exponent.starts_with('-') { -1_000_000 } else { 1_000_000 };
            let power = exponent.parse::<i32>().unwrap_or(limit).clamp(-1_000_000, 1_000_000);
            of(0, power, Format::Exponent)
        }
    }
}

/// `digits * 2^binary * 10^power` in whole steps, rounded up, capped at the largest number there is.
fn magnitude(digits: &str, binary: u32, mut power: i32) -> i128 {
    let mut dropped = false;
    let mut amount: i128 = 1 << binary;
    let mut mantissa: i128 = 0;
    for digit in digits.bytes().map(|byte| i128::from(byte - b'0')) {
        let next = mantissa.checked_mul(10).and_then(|m| m.checked_add(digit));
        match next.filter(|m| m.checked_mul(amount).is_some()) {
            Some(next) if !dropped => mantissa = next,
            // Too many digits to hold: the rest only shifts the scale, and rounds up.
            _ => {
                dropped = true;
                power = power.saturating_add(1);
            }
        }
    }
    amount *= mantissa;
    if amount == 0 {
        return 0;
    }
    if power >= 0 {
        return 10_i128.checked_pow(power.unsigned_abs()).and_then(|by| amount.checked_mul(by)).unwrap_or(i128::MAX);
    }
    match 10_i128.checked_pow(power.unsigned_abs()) {
        Some(by) => amount / by + i128::from(dropped || amount % by != 0),
        None => 1,
    }
}

impl FromStr for Quantity {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let fail = || Error::Parse { value: text.to_owned() };
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(fail());
        }
        let scale = scale(suffix).ok_or_else(fail)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let fraction_digits = i32::try_from(fraction.len()).map_err(|_| fail())?;
        let magnitude = magnitude(&digits, scale.binary, scale.decimal - fraction_digits + 9);
        Ok(Self { nanos: if negative { -magnitude } else { magnitude }, format: scale.format })
    }
}

/// Takes out factors of `by`, at most `most` of them.
fn without_factors(mut value: i128, by: i128, most: usize) -> (i128, usize) {
    let mut taken = 0;
    while taken < most && value != 0 && value % by == 0 {
        value /= by;
        taken += 1;
    }
    (value, taken)
}

impl fmt::Display for Quantity {
    /// The canonical form of upstream: the largest suffix that needs no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = self.nanos / NANOS;
        let whole = self.nanos % NANOS == 0;
        if self.format == Format::Binary && whole && !(-1023..=1023).contains(&units) {
            let (number, taken) = without_factors(units, 1024, 6);
            return f.pad(&format!("{number}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][taken]));
        }
        if self.nanos == 0 {
            return f.pad("0");
        }
        let (number, taken) = without_factors(self.nanos, 1000, 9);
        if self.format == Format::Exponent {
            let exponent = 3 * taken as i32 - 9;
            return f.pad(&if exponent == 0 { number.to_string() } else { format!("{number}e{exponent}") });
        }
        f.pad(&format!("{number}{}", ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][taken]))
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, as a string or a number")
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Quantity, E> {
                value.parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                self.visit_str(&value.to_string())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests;
