//! The words of an expression.

use super::Mistake;
use super::literal;
use super::syntax::Literal;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Name(String),
    Number(Number),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// A number as it was written: whether it is too large depends on a minus before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Number {
    Int(u64),
    Uint(u64),
    Double(f64),
}

impl Number {
    /// The literal, or nothing if no number is that large.
    pub fn literal(&self, negative: bool) -> Option<Literal> {
        Some(match *self {
            Self::Int(number) if negative => Literal::Int(0_i64.checked_sub_unsigned(number)?),
            Self::Int(number) => Literal::Int(i64::try_from(number).ok()?),
            Self::Uint(_) if negative => return None,
            Self::Uint(number) => Literal::Uint(number),
            Self::Double(number) => Literal::Double(if negative { -number } else { number }),
        })
    }
}

/// Longer ones first.
const SIGNS: [&str; 24] = [
    "==", "!=", "<=", ">=", "&&", "||", "(", ")", "[", "]", "{", "}", ".", ",", "?", ":", "+", "-", "*", "/", "%", "!",
    "<", ">",
];

/// All words, each with the byte where it begins; the last is the end.
pub(super) fn words(text: &str) -> Result<Vec<(usize, Token)>, Mistake> {
    let mut words = Vec::new();
    let mut at = 0;
    loop {
        at = skip_blank(text, at);
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else { break };
        let (token, length) = if let Some(found) = literal::quoted(rest) {
            found.map_err(|why| Mistake::new(at, why))?
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            (Token::Name(rest[..length].to_owned()), length)
        } else if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let (number, length) = literal::number(rest).map_err(|why| Mistake::new(at, why))?;
            (Token::Number(number), length)
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign =
                sign.ok_or_else(|| Mistake::new(at, format!("Syntax error: token recognition error at: '{first}'")))?;
            (Token::Sign(sign), sign.len())
        };
        words.push((at, token));
        at += length;
    }
    words.push((text.len(), Token::End));
    Ok(words)
}

fn skip_blank(text: &str, mut at: usize) -> usize {
    loop {
        let rest = &text[at..];
        let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']).len();
        let comment = rest[blank..].starts_with("//");
        at += blank;
        if !comment {
            return at;
        }
        at += text[at..].find('\n').unwrap_or(text.len() - at);
    }
}
