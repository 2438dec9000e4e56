//! Kubernetes quantities, as far as checking and comparing them needs.

/// The value of a quantity in thousandths, or nothing if it is not one.
pub(crate) fn parse(text: &str) -> Option<i128> {
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
    let thousandths = mantissa.checked_mul(numerator)?.checked_mul(1000)?;
    // Rounded up, as upstream does with what is finer than it keeps.
    let divisor = scale.checked_mul(denominator)?;
    Some(sign * ((thousandths + divisor - 1) / divisor))
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
    use super::parse;

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
    fn other_text_is_no_quantity() {
        for text in ["", "Gi", "1 Gi", "1GB", "1.2.3", ".", "1e", "0x10", "--1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
