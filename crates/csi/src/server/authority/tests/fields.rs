//! Field by field, beside a decoder that is not ours.

use std::collections::BTreeSet;

use loona_hpack::huffman::HuffmanDecoder;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;
use crate::server::authority::hpack::{Table, count_symbols};

/// A string, plain or in Huffman code.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let huffman = |octets: &[u8]| [&[0x80 | octets.len() as u8], octets].concat();
    let coded = vec![huffman(&HUFFMAN_PATH), huffman(&HUFFMAN_NAME), huffman(&[0x1f]), huffman(&[])];
    let plain = prop_oneof![3 => "[a-z/%:]{0,20}", 1 => Just(":authority".to_owned()), 1 => "[a-z]{100,1000}"];
    prop_oneof![plain.prop_map(|text| string(&text)), select(coded)]
}

/// An integer below 127 with what stands before its prefix.
fn integer(before: u8, prefix: u32, value: u8) -> Vec<u8> {
    let mask = (1u8 << prefix) - 1;
    if value < mask { vec![before | value] } else { vec![before | mask, value - mask] }
}

fn field() -> impl Strategy<Value = Vec<u8>> {
    let kind = select(vec![(0x40, 6), (0x40, 6), (0x00, 4), (0x10, 4)]);
    let new = (kind.clone(), text(), text())
        .prop_map(|((before, prefix), name, value)| [integer(before, prefix, 0), name, value].concat());
    let named = (kind, 1..70u8, text())
        .prop_map(|((before, prefix), index, value)| [integer(before, prefix, index), value].concat());
    prop_oneof![3 => (1..72u8).prop_map(|index| integer(0x80, 7, index)), 2 => new, 2 => named]
}

fn block() -> impl Strategy<Value = Vec<u8>> {
    let limits = prop_oneof![8 => Just(vec![]), 1 => (0..127u8).prop_map(|limit| integer(0x20, 5, limit))];
    (limits, vec(field(), 1..6)).prop_map(|(limit, fields)| [limit, fields.concat()].concat())
}

proptest! {
    /// The other decoder follows the client with a table, and reads ours without one.
    #[test]
    fn a_rewritten_block_says_what_the_block_said(blocks in vec(block(), 1..8)) {
        let mut table = Table::new();
        let mut other = Decoder::new();
        for block in blocks {
            let Ok(mut said) = other.decode(&block) else {
                prop_assert!(table.rewrite(&block).is_none(), "taken: {block:x?}");
                break;
            };
            for (name, value) in &mut said {
                if name == b":authority" {
                    *value = b"localhost".to_vec();
                }
            }
            let rewritten = table.rewrite(&block).expect("a block the other can read");
            prop_assert_eq!(Decoder::new().decode(&rewritten).unwrap(), said);
        }
    }

    #[test]
    fn huffman_code_is_as_long_as_its_text(octets in vec(prop_oneof![any::<u8>(), Just(0xff)], 0..40)) {
        if let Ok(text) = HuffmanDecoder::new().decode(&octets) {
            prop_assert_eq!(count_symbols(&octets), text.len());
        }
    }
}

#[test]
fn every_octet_counts_as_one() {
    let mut decoder = HuffmanDecoder::new();
    let mut met = BTreeSet::new();
    // In codes longer than one octet, the last but one begins with four ones and all before it are ones.
    let fronts = (0..3).flat_map(|ones| (0xf0..=0xff).map(move |next| [vec![0xff; ones], vec![next]].concat()));
    for front in std::iter::once(vec![]).chain(fronts) {
        for last in 0..=0xff {
            let octets = [&front[..], &[last]].concat();
            if let Ok(text) = decoder.decode(&octets) {
                assert_eq!(count_symbols(&octets), text.len(), "{octets:x?}");
                met.extend(text);
            }
        }
    }
    assert_eq!(met.len(), 256);
}
