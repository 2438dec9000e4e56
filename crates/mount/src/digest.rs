//! Digests of contents, as OCI descriptors name them.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::str::FromStr;

use sha2::{Digest as _, Sha256, Sha512};

/// What contents must hash to: `sha256:<hex>` or `sha512:<hex>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }
}

impl Digest {
    /// The SHA-256 of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest { algorithm: Algorithm::Sha256, hex: text(&Sha256::digest(bytes)) }
    }

    /// Whether these bytes hash to it.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        let mut hashing = Hashing::new(self, bytes);
        io::copy(&mut hashing, &mut io::sink()).is_ok() && hashing.ends_right()
    }

    /// Its hexadecimal digits, which are a plain name.
    pub fn hex(&self) -> &str {
        &self.hex
    }

    /// Where a layout has the contents.
    pub fn blob(&self) -> PathBuf {
        ["blobs", self.algorithm.name(), &self.hex].iter().collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, hex) = text.split_once(':').unwrap_or((text, ""));
        let (algorithm, length) = match name {
            "sha256" => (Algorithm::Sha256, 64),
            "sha512" => (Algorithm::Sha512, 128),
            _ => return Err(format!("{text:?} is no digest that is known; sha256 and sha512 are")),
        };
        match hex.len() == length && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            true => Ok(Digest { algorithm, hex: hex.to_owned() }),
            false => Err(format!("{text:?} has not the {length} hexadecimal digits of a {name}")),
        }
    }
}

fn text(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

/// Hashes what is read through it.
pub(crate) struct Hashing<'a, R> {
    source: R,
    hasher: Hasher,
    wanted: &'a Digest,
    count: u64,
}

impl<'a, R> Hashing<'a, R> {
    pub(crate) fn new(wanted: &'a Digest, source: R) -> Self {
        let hasher = match wanted.algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Box::default()),
        };
        Hashing { source, hasher, wanted, count: 0 }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether all that was read is what it should be.
    pub(crate) fn ends_right(self) -> bool {
        let hash = match self.hasher {
            Hasher::Sha256(hasher) => text(&hasher.finalize()),
            Hasher::Sha512(hasher) => text(&hasher.finalize()),
        };
        hash == self.wanted.hex
    }
}

impl<R: Read> Read for Hashing<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        match &mut self.hasher {
            Hasher::Sha256(hasher) => hasher.update(&buffer[..count]),
            Hasher::Sha512(hasher) => hasher.update(&buffer[..count]),
        }
        self.count += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_a_known_algorithm_and_as_many_digits_as_it_has() {
        let right = Digest::of(b"abc");
        assert_eq!(right.to_string(), "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(right.to_string().parse(), Ok(right.clone()));
        assert!(right.is_of(b"abc") && !right.is_of(b"abd"));
        assert!(right.blob().starts_with("blobs/sha256"));
        let capital = right.to_string().to_uppercase().replace("SHA", "sha");
        for wrong in ["", "sha256:", "md5:00", "sha256:../../../../etc/passwd", &capital, &right.to_string()[..70]] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
        let long = format!("sha512:{}", "0".repeat(128)).parse::<Digest>().unwrap();
        assert!(!long.is_of(b"abc"));
    }
}
