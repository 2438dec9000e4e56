//! Kubernetes quantities, as far as checking, comparing and spelling them needs.

/// The value of a quantity in thousandths, or nothing if it is not one.
pub(crate) fn parse(text: &str) -> Option<i128> {
    scaled(text, 1000).map(|(thousandths, _)| thousandths)
}

/// The value of a quantity in billionths, which is as fine as they are kept.
pub(crate) fn parse_nano(text: &str) -> Option<i128> {
    scaled(text, NANO).map(|(nano, _)| nano)
}

/// The one spelling of a quantity that is kept: no fraction, the largest unit that loses nothing, of the same family.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let (nano, suffix) = scaled(text, NANO)?;
    if nano == 0 {
        return Some("0".to_owned());
    }
    let binary = suffix.ends_with('i') && nano % NANO == 0 && (nano / NANO).abs() >= 1024;
    if binary {
        let mut number = nano / NANO;
        let mut power = 0;
        while number % 1024 == 0 && power + 1 < BINARY.len() {
            number /= 1024;
            power += 1;
        }
        return Some(format!("{number}{}", BINARY[power]));
    }
    let (mut number, mut power) = (nano, 0);
    while number % 1000 == 0 && power + 1 < DECIMAL.len() {
        number /= 1000;
        power += 1;
    }
    let exponent = 3 * i32::try_from(power).ok()? - 9;
    let is_exponent = suffix.len() > 1 && suffix.starts_with(['e', 'E']) && !suffix.ends_with('i');
    Some(match exponent {
        0 => number.to_string(),
        exponent if is_exponent => format!("{number}e{exponent}"),
        _ => format!("{number}{}", DECIMAL[power]),
    })
}

pub(crate) const NANO: i128 = 1_000_000_000;
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];

/// The value times `parts`, rounded away from zero as upstream rounds what is finer than it keeps, and the suffix.
fn scaled(text: &str, parts: i128) -> Option<(i128, &str)> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mantissa: i128 = format!("0{whole}{fraction}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let (numerator, denominator) = unit(suffix)?;
    let value = mantissa.checked_mul(numerator)?.checked_mul(parts)?;
    let divisor = scale.checked_mul(denominator)?;
    Some((sign * (value.checked_add(divisor - 1)? / divisor), suffix))
}

fn unit(suffix: &str) -> Option<(i128, i128)> {
    let binary = |power: u32| Some((1_i128 << (10 * power), 1));
    let decimal = |power: u32| Some((10_i128.pow(power), 1));
    match suffix {
        "" => decimal(0),
        "n" => Some((1, 1_000_000_000)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let power: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let factor = 10_i128.checked_pow(power.unsigned_abs()).filter(|_| power.abs() <= 18)?;
            Some(if power >= 0 { (factor, 1) } else { (1, factor) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{canonical, parse};

    #[test]
    fn quantities_are_read_with_every_suffix() {
        assert_eq!(parse("1"), Some(1000));
        assert_eq!(parse("1.5Gi"), Some(1_610_612_736_000));
        assert_eq!(parse("100m"), Some(100));
        assert_eq!(parse("2e3"), Some(2_000_000));
        assert_eq!(parse("1E"), Some(1_000_000_000_000_000_000_000));
        assert_eq!(parse("-1Ki"), Some(-1_024_000));
        assert_eq!(parse("1n"), Some(1));
    }

    #[test]
    fn quantities_are_spelled_in_the_largest_unit_that_loses_nothing() {
        for (written, kept) in [
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("512", "512"),
            ("0.5Ki", "512"),
            ("1000", "1k"),
            ("1500m", "1500m"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1e3", "1e3"),
            ("12e5", "1200e3"),
            ("0Gi", "0"),
            ("2E", "2E"),
            ("1Ei", "1Ei"),
            ("-2048Ki", "-2Mi"),
        ] {
            assert_eq!(canonical(written).as_deref(), Some(kept), "{written}");
        }
        assert_eq!(canonical("1GB"), None);
    }

    #[test]
    fn other_text_is_no_quantity() {
        for text in ["", "Gi", "1 Gi", "1GB", "1.2.3", ".", "1e", "0x10", "--1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
