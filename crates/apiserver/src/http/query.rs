//! Query parameters.

use std::collections::BTreeMap;

use crate::status::Status;

/// The parameters of one request.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decode(&name.replace('+', " ")), decode(&value.replace('+', " "))))
                .collect(),
        )
    }

    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Whether the parameter is there, with a value or without.
    pub fn is_there(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Whether the parameter is there with a value.
    pub fn has(&self, name: &str) -> bool {
        !self.text(name).is_empty()
    }

    /// Absent, `false` and `0` are false.
    pub fn flag(&self, name: &str) -> bool {
        self.0.contains_key(name) && !matches!(self.text(name), "false" | "0" | "False" | "FALSE" | "f" | "F")
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Status> {
        match self.text(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!("the parameter {name}={text:?} is not a number this server can use"))
            }),
        }
    }

    /// Whether nothing is to be kept.
    pub fn dry_run(&self) -> Result<bool, Status> {
        match self.text("dryRun") {
            "" => Ok(false),
            "All" => Ok(true),
            other => Err(Status::bad_request(format!("dryRun={other:?} is not supported; the only value is \"All\""))),
        }
    }
}

/// Undoes percent-encoding; what is not valid stays as it is.
pub(super) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = (bytes[index] == b'%').then(|| text.get(index + 1..index + 3)).flatten().and_then(hex_byte);
        match escaped {
            Some(byte) => {
                out.push(byte);
                index += 3;
            }
            None => {
                out.push(bytes[index]);
                index += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The bytes that a percent-encoded text stands for; nothing if an escape of it is not valid.
pub(super) fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(hex_byte(part.get(..2)?)?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Some(bytes)
}

fn hex_byte(digits: &str) -> Option<u8> {
    // A sign is no digit.
    let digits = Some(digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u8::from_str_radix(digits, 16).ok()
}
