//! Durations as Go programs write them: `15s`, `1m30s`, `1.5h`, `300ms`, `0`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A duration that reads and prints the way Go's `time.Duration` does, for use as a flag value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration(pub Duration);

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was given.
    #[error("empty duration, write a number with a unit such as 15s or 1m30s")]
    ReadEmpty,
    /// A number stands without a unit.
    #[error("duration {text:?} has no unit after {number:?}, write for example {number}s")]
    ReadUnit {
        /// The whole text.
        text: String,
        /// The number that lacks its unit.
        number: String,
    },
    /// A unit that Go does not know.
    #[error("duration {text:?} has the unknown unit {unit:?}, use one of ns, us, ms, s, m, h")]
    KnowUnit {
        /// The whole text.
        text: String,
        /// The unit found.
        unit: String,
    },
    /// Something that is not a number where one is due.
    #[error("duration {text:?} is not a number with a unit, write for example 15s or 1m30s")]
    ReadNumber {
        /// The whole text.
        text: String,
    },
    /// Durations of flags never run backwards.
    #[error("duration {text:?} is negative, use zero or more")]
    AcceptNegative {
        /// The whole text.
        text: String,
    },
    /// More than Go's 64 bits of nanoseconds.
    #[error("duration {text:?} is too long, the longest is about 292 years")]
    Hold {
        /// The whole text.
        text: String,
    },
}

impl FromStr for GoDuration {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unsigned = match text.strip_prefix('-') {
            Some(rest) if rest.trim_start_matches(['0', '.']).is_empty() && !rest.is_empty() => rest,
            Some(_) => return Err(Error::AcceptNegative { text: text.into() }),
            None => text.strip_prefix('+').unwrap_or(text),
        };
        if text.is_empty() {
            return Err(Error::ReadEmpty);
        }
        if unsigned == "0" {
            return Ok(Self(Duration::ZERO));
        }
        if unsigned.is_empty() {
            return Err(Error::ReadNumber { text: text.into() });
        }
        let mut rest = unsigned;
        let mut nanos: u128 = 0;
        while !rest.is_empty() {
            let (term, after) = leading_term(text, rest)?;
            nanos = nanos.saturating_add(term);
            rest = after;
        }
        match i64::try_from(nanos) {
            Ok(nanos) => Ok(Self(Duration::from_nanos(nanos.unsigned_abs()))),
            Err(_) => Err(Error::Hold { text: text.into() }),
        }
    }
}

/// Reads one number with its unit off the front of `rest`; `text` is the whole, for messages.
fn leading_term<'a>(text: &str, rest: &'a str) -> Result<(u128, &'a str), Error> {
    let (number, rest) = split(rest, |c| c.is_ascii_digit() || c == '.');
    let (unit, rest) = split(rest, |c| !c.is_ascii_digit() && c != '.');
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(Error::ReadNumber { text: text.into() });
    }
    let nanos_per_unit: u128 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3_600 * NANOS_PER_SECOND,
        "" => return Err(Error::ReadUnit { text: text.into(), number: number.into() }),
        unknown => return Err(Error::KnowUnit { text: text.into(), unit: unknown.into() }),
    };
    let too_long = || Error::Hold { text: text.into() };
    let mut nanos = digits(whole).and_then(|whole| whole.checked_mul(nanos_per_unit)).ok_or_else(too_long)?;
    let mut scale = nanos_per_unit;
    for digit in fraction.bytes() {
        nanos = nanos.saturating_add(u128::from(digit - b'0') * scale / 10);
        scale /= 10;
    }
    Ok((nanos, rest))
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

fn digits(text: &str) -> Option<u128> {
    if text.is_empty() { Some(0) } else { text.parse().ok() }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if nanos < NANOS_PER_SECOND {
            let (unit, name) = match nanos {
                1..1_000 => (1, "ns"),
                1_000..1_000_000 => (1_000, "µs"),
                _ => (1_000_000, "ms"),
            };
            return write!(f, "{}{name}", decimal(nanos / unit, nanos % unit, unit));
        }
        let seconds = nanos / NANOS_PER_SECOND;
        let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if seconds >= 60 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}s", decimal(seconds % 60, nanos % NANOS_PER_SECOND, NANOS_PER_SECOND))
    }
}

fn decimal(whole: u128, fraction: u128, one: u128) -> String {
    if fraction == 0 {
        return whole.to_string();
    }
    let width = one.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

impl From<GoDuration> for Duration {
    fn from(duration: GoDuration) -> Self {
        duration.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Duration, Error> {
        text.parse::<GoDuration>().map(Duration::from)
    }

    #[test]
    fn what_go_accepts_is_accepted() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("-0", 0),
            ("15s", 15_000),
            ("+5s", 5_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("300ms", 300),
            (".5s", 500),
            ("1.s", 1_000),
            ("1h1m1s1ms", 3_661_001),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse("3µs2ns"), Ok(Duration::from_nanos(3_002)));
    }

    #[test]
    fn what_go_refuses_is_refused_with_the_way_out() {
        for (text, message) in [
            ("", "empty duration, write a number with a unit such as 15s or 1m30s"),
            ("15", "duration \"15\" has no unit after \"15\", write for example 15s"),
            ("1m30", "duration \"1m30\" has no unit after \"30\", write for example 30s"),
            ("5d", "duration \"5d\" has the unknown unit \"d\", use one of ns, us, ms, s, m, h"),
            ("s", "duration \"s\" is not a number with a unit, write for example 15s or 1m30s"),
            ("1.2.3s", "duration \"1.2.3s\" is not a number with a unit, write for example 15s or 1m30s"),
            ("-5s", "duration \"-5s\" is negative, use zero or more"),
            ("-", "duration \"-\" is negative, use zero or more"),
            ("3000000h", "duration \"3000000h\" is too long, the longest is about 292 years"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn durations_print_as_go_prints_them() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (300_000_000, "300ms"),
            (15_000_000_000, "15s"),
            (90_000_000_000, "1m30s"),
            (3_600_000_000_000, "1h0m0s"),
            (5_400_500_000_000, "1h30m0.5s"),
        ] {
            assert_eq!(GoDuration(Duration::from_nanos(nanos)).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn a_printed_duration_reads_back_as_itself(nanos in 0..=i64::MAX.unsigned_abs()) {
            let duration = GoDuration(Duration::from_nanos(nanos));
            prop_assert_eq!(duration.to_string().parse::<GoDuration>(), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_fail_in_any_other_way(text in ".{0,24}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
