//! Points in time and durations.

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned, civil};

use super::Takes;
use super::{Call, Function, Gives::Int, Outcome, failed};
use crate::cel::{Error, Value};

type Implementation = for<'c, 'a> fn(Call<'c, 'a>) -> Outcome<'a>;

const fn of(name: &'static str, takes: &'static [Takes], call: Implementation) -> Function {
    Function { name, method: true, takes, gives: Int, call }
}

/// A field of the calendar or the clock, in UTC or another zone.
macro_rules! fields {
    ($($name:literal => $read:expr),* $(,)?) => {
        &[
            $(of($name, &[Takes::Timestamp], |call| field(call, $read)),
            of($name, &[Takes::Timestamp, Takes::Text], |call| field(call, $read)),)*
            of("getHours", &[Takes::Duration], |call| total(call, |d| d.as_hours())),
            of("getMinutes", &[Takes::Duration], |call| total(call, |d| d.as_mins())),
            of("getSeconds", &[Takes::Duration], |call| total(call, |d| d.as_secs())),
            of("getMilliseconds", &[Takes::Duration], |call| {
                total(call, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
            }),
        ]
    };
}

pub(super) const TABLE: &[Function] = fields! {
    "getFullYear" => |at| at.year().into(),
    "getMonth" => |at| i64::from(at.month()) - 1,
    "getDate" => |at| at.day().into(),
    "getDayOfMonth" => |at| i64::from(at.day()) - 1,
    "getDayOfWeek" => |at| at.weekday().to_sunday_zero_offset().into(),
    "getDayOfYear" => |at| i64::from(at.day_of_year()) - 1,
    "getHours" => |at| at.hour().into(),
    "getMinutes" => |at| at.minute().into(),
    "getSeconds" => |at| at.second().into(),
    "getMilliseconds" => |at| at.millisecond().into(),
};

fn field<'a>(call: Call<'_, 'a>, read: fn(&Zoned) -> i64) -> Outcome<'a> {
    let (at, zone) = match call.values {
        [Value::Timestamp(at)] => (at, TimeZone::UTC),
        [Value::Timestamp(at), Value::Text(name)] => (at, zone(name)?),
        _ => return Ok(None),
    };
    Ok(Some(Value::Int(read(&at.to_zoned(zone)))))
}

fn total<'a>(call: Call<'_, 'a>, read: fn(&SignedDuration) -> i64) -> Outcome<'a> {
    let [Value::Duration(duration)] = call.values else { return Ok(None) };
    Ok(Some(Value::Int(read(duration))))
}

/// `UTC`, or an offset such as `-08:00`. There is no table of the zones of the world here.
fn zone(name: &str) -> Result<TimeZone, Error> {
    let unknown =
        || failed(format!("unknown time zone {name:?}: this API server knows UTC and offsets such as +02:00"));
    if matches!(name, "UTC" | "Etc/UTC" | "GMT") {
        return Ok(TimeZone::UTC);
    }
    let (sign, digits) = match name.split_at_checked(1) {
        Some(("-", rest)) => (-1, rest),
        Some(("+", rest)) => (1, rest),
        _ => (1, name),
    };
    let (hours, minutes) = digits.split_once(':').ok_or_else(unknown)?;
    let number = |text: &str| text.parse::<u8>().map(i32::from).map_err(|_| unknown());
    let seconds = sign * (number(hours)? * 3600 + number(minutes)? * 60);
    Offset::from_seconds(seconds).map(|offset| offset.to_time_zone()).map_err(|_| unknown())
}

/// A text of RFC 3339, or a date alone.
pub(in crate::cel) fn timestamp(text: &str) -> Option<Timestamp> {
    if text.len() > 64 {
        return None;
    }
    if let Ok(at) = text.parse() {
        return Some(at);
    }
    let date: civil::Date = text.parse().ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// A duration as Go writes it: `1h30m`, `-1.5s`, `100ms`.
pub(in crate::cel) fn duration(text: &str) -> Option<SignedDuration> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() || rest.len() > 64 {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let nanos: i128 = match &tail[..end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        // A billionth of an hour has 4 digits more than a billionth of a second.
        let fraction = &fraction[..fraction.len().min(15)];
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        let number: i128 = format!("0{whole}{fraction}").parse().ok()?;
        total = total.checked_add(number.checked_mul(nanos)? / scale)?;
        rest = &tail[end..];
    }
    // As upstream's, which has 64 bits of them.
    i64::try_from(sign * total).ok().map(SignedDuration::from_nanos)
}

/// In seconds.
pub(in crate::cel) fn written(duration: &SignedDuration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos().abs());
    let sign = if duration.is_negative() && seconds == 0 { "-" } else { "" };
    let fraction = format!(".{nanos:09}");
    format!("{sign}{seconds}{}s", fraction.trim_end_matches('0').trim_end_matches('.'))
}
