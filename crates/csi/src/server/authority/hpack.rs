//! As much of HPACK (RFC 7541) as it takes to tell the fields of a block apart.
//!
//! What a field says is not decoded: its strings go on as they came, and h2 decodes them. Only their length is counted,
//! because that is what the dynamic table is measured by, and the table must be the client's own at every moment.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, BytesMut};

/// What the server takes, as it announces it: the sum of names and values and 32 per field.
pub(in crate::server) const MAX_LIST: usize = 16 * 1024;

/// We announce no SETTINGS_HEADER_TABLE_SIZE, so this is the most a client may use (RFC 9113, 6.5.2).
const MAX_TABLE: usize = 4096;

/// What a field counts beyond its name and value, in a list as in the table.
const FIELD_OVERHEAD: usize = 32;

/// `:authority` in the static table; the entry's own value is empty.
const AUTHORITY: usize = 1;

/// `:authority` as a string of its own, plain and in Huffman code.
const AUTHORITY_NAMES: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];

/// `localhost` as a string.
const LOCALHOST: &[u8] = b"\x09localhost";

/// How long the names of the static table are.
const STATIC_NAMES: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13, 12, 6, 4,
    4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8, 12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];

/// How many symbols of the Huffman code have this many bits. The code is canonical, so this is all there is to know of it.
const HUFFMAN: [u32; 31] =
    [0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29, 0, 4];

/// A string as it was sent, with its prefix, and how long it is once decoded.
#[derive(Clone)]
struct Text {
    sent: Box<[u8]>,
    length: usize,
}

#[derive(Clone)]
enum Name {
    Static(usize),
    Text(Text),
}

impl Name {
    fn length(&self) -> usize {
        match self {
            Self::Static(index) => usize::from(STATIC_NAMES[index - 1]),
            Self::Text(text) => text.length,
        }
    }

    fn is_authority(&self) -> bool {
        match self {
            Self::Static(index) => *index == AUTHORITY,
            Self::Text(text) => AUTHORITY_NAMES.contains(&&*text.sent),
        }
    }
}

struct Field {
    name: Name,
    value: Text,
}

impl Field {
    fn size(&self) -> usize {
        self.name.length() + self.value.length + FIELD_OVERHEAD
    }
}

/// A block that makes no use of the dynamic table.
struct Rewritten {
    block: BytesMut,
    list: usize,
}

impl Rewritten {
    /// One byte of a block can stand for 4 KiB, so writing ends once the server will refuse the list anyway.
    fn is_full(&self) -> bool {
        self.list >= MAX_LIST
    }

    /// A field of the static table (6.1). Its value is not counted: rather write a little more than too little.
    fn indexed(&mut self, index: usize) {
        if index == AUTHORITY {
            self.authority();
        } else if !self.is_full() {
            self.list += Name::Static(index).length() + FIELD_OVERHEAD;
            self.block.put_u8(0x80 | index as u8);
        }
    }

    /// A literal that is not indexed (6.2.2).
    fn literal(&mut self, field: &Field) {
        if field.name.is_authority() {
            return self.authority();
        }
        if self.is_full() {
            return;
        }
        self.list += field.size();
        match &field.name {
            Name::Static(index @ ..0xf) => self.block.put_u8(*index as u8),
            Name::Static(index) => self.block.put_slice(&[0xf, (index - 0xf) as u8]),
            Name::Text(text) => {
                self.block.put_u8(0);
                self.block.put_slice(&text.sent);
            }
        }
        self.block.put_slice(&field.value.sent);
    }

    fn authority(&mut self) {
        if !self.is_full() {
            self.list += Name::Static(AUTHORITY).length() + LOCALHOST.len() - 1 + FIELD_OVERHEAD;
            self.block.put_u8(AUTHORITY as u8);
            self.block.put_slice(LOCALHOST);
        }
    }
}

/// The client's dynamic table, newest first.
pub(super) struct Table {
    fields: VecDeque<Field>,
    size: usize,
    limit: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { fields: VecDeque::new(), size: 0, limit: MAX_TABLE }
    }

    /// The same block without use of the table, and with our authority; `None` if it cannot be read. It is read to its end
    /// in any case, because later blocks build on the table.
    pub(super) fn rewrite(&mut self, mut block: &[u8]) -> Option<BytesMut> {
        let mut out = Rewritten { block: BytesMut::with_capacity(block.len()), list: 0 };
        let mut begun = false;
        while let Some(first) = block.first().copied() {
            match first {
                // 6.1: a field of the table
                0x80.. => match read_integer(&mut block, 7)? {
                    0 => return None,
                    index @ 1..=61 => out.indexed(index),
                    index => out.literal(self.fields.get(index - 62)?),
                },
                // 6.2.1: a field for the table
                0x40.. => {
                    let field = self.read_field(&mut block, 6)?;
                    out.literal(&field);
                    self.insert(field);
                }
                // 6.3: a new limit, only at the head of a block (4.2)
                0x20.. => {
                    let limit = read_integer(&mut block, 5)?;
                    if limit > MAX_TABLE || begun {
                        return None;
                    }
                    self.limit = limit;
                    self.evict(0);
                    continue;
                }
                // 6.2.2 and 6.2.3: a field that leaves the table alone
                _ => out.literal(&self.read_field(&mut block, 4)?),
            }
            begun = true;
        }
        Some(out.block)
    }

    fn read_field(&self, block: &mut &[u8], prefix: u32) -> Option<Field> {
        let name = match read_integer(block, prefix)? {
            0 => Name::Text(read_text(block)?),
            index @ 1..=61 => Name::Static(index),
            index => self.fields.get(index - 62)?.name.clone(),
        };
        Some(Field { name, value: read_text(block)? })
    }

    /// A field that is larger than the table empties it and is not kept (4.4).
    fn insert(&mut self, field: Field) {
        let size = field.size();
        self.evict(size);
        if size <= self.limit {
            self.size += size;
            self.fields.push_front(field);
        }
    }

    fn evict(&mut self, needed: usize) {
        while self.size + needed > self.limit
            && let Some(oldest) = self.fields.pop_back()
        {
            self.size -= oldest.size();
        }
    }
}

/// 5.1, with as many octets as h2 takes: more than that is no length or index of ours.
fn read_integer(block: &mut &[u8], prefix: u32) -> Option<usize> {
    const MAX_OCTETS: u32 = 4;
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(block.try_get_u8().ok()? & mask as u8);
    if value < mask {
        return Some(value);
    }
    for octet in 0..MAX_OCTETS {
        let next = block.try_get_u8().ok()?;
        value += usize::from(next & 0x7f) << (7 * octet);
        if next & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// 5.2
fn read_text(block: &mut &[u8]) -> Option<Text> {
    let start = *block;
    let huffman = start.first()? & 0x80 != 0;
    let length = read_integer(block, 7)?;
    let octets = block.get(..length)?;
    block.advance(length);
    let sent = start[..start.len() - block.len()].into();
    Some(Text { sent, length: if huffman { count_symbols(octets) } else { length } })
}

/// How many symbols these octets code. Whether the last bits are proper padding is for h2 to say.
pub(super) fn count_symbols(octets: &[u8]) -> usize {
    let mut symbols = 0;
    // Of the code read so far, and of the first code that is as long.
    let (mut code, mut first, mut bits) = (0, 0, 0);
    for octet in octets {
        for shift in (0..8).rev() {
            code = (code << 1) | u32::from((octet >> shift) & 1);
            bits += 1;
            first = (first + HUFFMAN[bits - 1]) << 1;
            if code - first < HUFFMAN[bits] {
                symbols += 1;
                (code, first, bits) = (0, 0, 0);
            }
        }
    }
    symbols
}
