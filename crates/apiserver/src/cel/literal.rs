//! Numbers, and texts with their quotes and escapes.

use super::lex::{Number, Token};

/// The number at the beginning of `text`, and its length.
pub(super) fn number(text: &str) -> Result<(Number, usize), String> {
    let digits = |text: &str, of: fn(&char) -> bool| text.chars().take_while(of).count();
    let decimal: fn(&char) -> bool = |c| c.is_ascii_digit();
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let length = digits(hex, |c| c.is_ascii_hexdigit());
        let number = u64::from_str_radix(&hex[..length], 16).map_err(|_| invalid(&text[..length + 2]))?;
        return Ok(unsigned(number, text, length + 2));
    }
    let mut length = digits(text, decimal);
    let mut whole = true;
    let fraction = text[length..].strip_prefix('.').map_or(0, |rest| digits(rest, decimal));
    if fraction > 0 {
        whole = false;
        length += 1 + fraction;
    }
    if let Some(exponent) = text[length..].strip_prefix(['e', 'E']) {
        let sign = usize::from(exponent.starts_with(['+', '-']));
        let power = digits(&exponent[sign..], decimal);
        if power > 0 {
            whole = false;
            length += 1 + sign + power;
        }
    }
    let written = &text[..length];
    if whole {
        let number = written.parse().map_err(|_| invalid(written))?;
        return Ok(unsigned(number, text, length));
    }
    Ok((Number::Double(written.parse().map_err(|_| invalid(written))?), length))
}

fn unsigned(number: u64, text: &str, length: usize) -> (Number, usize) {
    match text[length..].starts_with(['u', 'U']) {
        true => (Number::Uint(number), length + 1),
        false => (Number::Int(number), length),
    }
}

fn invalid(written: &str) -> String {
    format!("invalid number literal {written}")
}

/// The text or bytes at the beginning, if there is a quote with or without `r` and `b` before it, and the length.
pub(super) fn quoted(text: &str) -> Option<Result<(Token, usize), String>> {
    let prefix = text.bytes().take(3).position(|byte| matches!(byte, b'"' | b'\''))?;
    let (raw, bytes) = match text[..prefix].to_ascii_lowercase().as_str() {
        "" => (false, false),
        "r" => (true, false),
        "b" => (false, true),
        "rb" | "br" => (true, true),
        _ => return None,
    };
    let quote = &text[prefix..];
    let fence = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|fence| quote.starts_with(fence))?;
    Some(inside(&quote[fence.len()..], fence, raw, bytes).map(|(token, length)| (token, prefix + fence.len() + length)))
}

/// Up to the closing quote, which the length includes.
fn inside(text: &str, fence: &'static str, raw: bool, bytes: bool) -> Result<(Token, usize), String> {
    let mut made = Vec::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix(fence) {
            let length = text.len() - after.len();
            return match bytes {
                true => Ok((Token::Bytes(made), length)),
                false => Ok((Token::Text(String::from_utf8(made).map_err(|_| "invalid text literal")?), length)),
            };
        }
        let character = rest.chars().next().ok_or("Syntax error: a text has no closing quote")?;
        if fence.len() == 1 && matches!(character, '\n' | '\r') {
            return Err("Syntax error: a text has no closing quote on its line".to_owned());
        }
        rest = &rest[character.len_utf8()..];
        match character {
            '\\' if raw => {
                // The backslash stays, and a quote after it does not end the text.
                made.push(b'\\');
                if let Some(next) = rest.chars().next() {
                    push(&mut made, next);
                    rest = &rest[next.len_utf8()..];
                }
            }
            '\\' => rest = escape(rest, bytes, &mut made)?,
            other => push(&mut made, other),
        }
    }
}

fn push(made: &mut Vec<u8>, character: char) {
    made.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
}

/// What stands after a backslash; returns what follows.
fn escape<'a>(text: &'a str, bytes: bool, made: &mut Vec<u8>) -> Result<&'a str, String> {
    let wrong = || "Syntax error: invalid escape sequence in a text".to_owned();
    let kind = text.chars().next().ok_or_else(wrong)?;
    let rest = &text[kind.len_utf8()..];
    let simple = match kind {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => kind as u8,
        _ => 0,
    };
    if simple != 0 {
        made.push(simple);
        return Ok(rest);
    }
    let (digits, base, after) = match kind {
        'x' | 'X' => (rest.get(..2), 16, rest.get(2..)),
        'u' => (rest.get(..4), 16, rest.get(4..)),
        'U' => (rest.get(..8), 16, rest.get(8..)),
        '0'..='3' => (text.get(..3), 8, text.get(3..)),
        _ => return Err(wrong()),
    };
    let code = u32::from_str_radix(digits.ok_or_else(wrong)?, base).map_err(|_| wrong())?;
    match u8::try_from(code) {
        Ok(byte) if bytes && !matches!(kind, 'u' | 'U') => made.push(byte),
        _ => push(made, char::from_u32(code).ok_or_else(wrong)?),
    }
    after.ok_or_else(wrong)
}
