//! The user that a client certificate names: common name and organisations, as upstream reads them.
//!
//! The chain has been verified by then; only the subject is read here.

use crate::auth::User;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `[0]`, the optional version at the beginning.
const VERSION: u8 = 0xa0;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// 2.5.4.10
const ORGANISATION: &[u8] = &[0x55, 0x04, 0x0a];

/// The user named by a DER certificate; nobody if it has no common name.
pub(crate) fn user(certificate: &[u8]) -> Option<User> {
    let subject = subject(certificate)?;
    let mut name = None;
    let mut organisations = Vec::new();
    let mut sets = Reader(subject);
    while let Some(set) = sets.expect(SET) {
        let mut attributes = Reader(set);
        while let Some(attribute) = attributes.expect(SEQUENCE) {
            let mut attribute = Reader(attribute);
            let kind = attribute.expect(OBJECT_IDENTIFIER)?;
            let (_, text) = attribute.next()?;
            let text = std::str::from_utf8(text).ok()?.to_owned();
            match kind {
                COMMON_NAME => name = Some(text),
                ORGANISATION => organisations.push(text),
                _ => {}
            }
        }
    }
    name.filter(|n| !n.is_empty()).map(|name| User::new(name, organisations))
}

fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let mut certificate = Reader(Reader(certificate).expect(SEQUENCE)?);
    let mut signed = Reader(certificate.expect(SEQUENCE)?);
    let (tag, _) = signed.next()?;
    // Serial number, algorithm, issuer, validity; one less to go if there was no version.
    for _ in 0..if tag == VERSION { 4 } else { 3 } {
        signed.next()?;
    }
    signed.expect(SEQUENCE)
}

/// Reads tag, length, content; nothing at the end or if it is cut off.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            short @ ..=0x7f => (usize::from(short), rest),
            // More than four bytes of length is no certificate.
            long @ 0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
                (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn expect(&mut self, wanted: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, content)| content)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(name: Option<&str>, organisation: Option<&str>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(organisation) = organisation {
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_common_name_is_the_user_and_organisations_are_groups() {
        let found = user(&certificate(Some("alice"), Some("dev"))).unwrap();
        assert_eq!((found.name.as_str(), found.groups[0].as_str()), ("alice", "dev"));
        assert!(user(&certificate(None, Some("dev"))).is_none());
    }

    #[test]
    fn a_certificate_that_is_cut_off_names_nobody() {
        let whole = certificate(Some("alice"), None);
        for length in 0..100 {
            assert!(user(&whole[..length]).is_none());
        }
    }
}
