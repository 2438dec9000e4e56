//! One header block: collected from its frames, read, and written anew.

use bytes::{BufMut, Bytes, BytesMut};
use loona_hpack::{Decoder, decoder::DecoderError};

use super::filter::{HEAD, Head, MAX_FRAME};

/// What the server takes, as it announces it: the sum of names and values and 32 per field.
pub(in crate::server) const MAX_LIST: usize = 16 * 1024;

/// One block on the wire, heads of frames included, so that empty CONTINUATIONs end too. Twice the list: who obeys the
/// limit on lists never comes near, and who exceeds it a little still hears so from the server.
const MAX_BLOCK: usize = 2 * MAX_LIST;

/// We announce no SETTINGS_HEADER_TABLE_SIZE, so this is the most a client may use (RFC 9113, 6.5.2).
const TABLE: usize = 4096;

/// RFC 9113, 6.5.2: what a field counts beyond its name and value.
const FIELD_OVERHEAD: usize = 32;

const AUTHORITY: &[u8] = b"localhost";

const PRIORITY_LENGTH: usize = 5;

pub(super) const HEADERS: u8 = 1;
pub(super) const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A header block whose frames are coming in.
pub(super) struct Block {
    head: Head,
    priority: Bytes,
    fragments: BytesMut,
    weight: usize,
}

impl Block {
    /// Begins with a HEADERS frame; `None` if its padding and priority are longer than itself.
    pub(super) fn begin(head: Head, mut payload: Bytes) -> Option<Self> {
        let weight = HEAD + payload.len();
        let padding = match head.flags & PADDED {
            0 => 0,
            _ if payload.is_empty() => return None,
            _ => usize::from(payload.split_to(1)[0]),
        };
        let priority = if head.flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
        let length = payload.len().checked_sub(padding)?;
        if length < priority {
            return None;
        }
        payload.truncate(length);
        let priority = payload.split_to(priority);
        Some(Self { head, priority, fragments: BytesMut::from(payload), weight })
    }

    /// Whether a frame that begins like this may come next.
    pub(super) fn is_continued_by(&self, next: Head) -> bool {
        next.kind == CONTINUATION && next.stream == self.head.stream && self.weight + HEAD + next.length <= MAX_BLOCK
    }

    pub(super) fn add(&mut self, payload: &[u8]) {
        self.weight += HEAD + payload.len();
        self.fragments.extend_from_slice(payload);
    }

    /// The same block in as few frames as possible: no padding, no table, and an authority that h2 takes.
    pub(super) fn rewrite(self, table: &mut Table) -> Result<BytesMut, DecoderError> {
        let mut fields = table.read(&self.fragments)?;
        let mut frames = BytesMut::with_capacity(HEAD + self.priority.len() + fields.len());
        let mut kind = HEADERS;
        let mut flags = self.head.flags & (END_STREAM | PRIORITY);
        let mut priority = self.priority;
        loop {
            let part = fields.split_to(fields.len().min(MAX_FRAME - priority.len()));
            if fields.is_empty() {
                flags |= END_HEADERS;
            }
            Head { length: priority.len() + part.len(), kind, flags, stream: self.head.stream }.write(&mut frames);
            frames.extend_from_slice(&priority);
            frames.extend_from_slice(&part);
            if fields.is_empty() {
                return Ok(frames);
            }
            (kind, flags, priority) = (CONTINUATION, 0, Bytes::new());
        }
    }
}

impl Head {
    pub(super) fn ends_headers(self) -> bool {
        self.flags & END_HEADERS != 0
    }
}

/// The client's dynamic table as far as it has told us, in step with it from the first block on.
pub(super) struct Table {
    decoder: Decoder<'static>,
}

impl Table {
    pub(super) fn new() -> Self {
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(TABLE);
        Self { decoder }
    }

    /// The fields as literals. One index can stand for 4 KiB, so writing ends once the server will refuse the list
    /// anyway; reading does not, because later blocks build on the table.
    fn read(&mut self, block: &[u8]) -> Result<BytesMut, DecoderError> {
        let mut fields = BytesMut::new();
        let mut list = 0;
        self.decoder.decode_with_cb(block, |name, value| {
            if list >= MAX_LIST {
                return;
            }
            let value = if *name == *b":authority" { AUTHORITY } else { &*value };
            list += name.len() + value.len() + FIELD_OVERHEAD;
            // RFC 7541, 6.2.2: a literal that is not indexed, with a new name.
            fields.put_u8(0);
            write_string(&mut fields, &name);
            write_string(&mut fields, value);
        })?;
        Ok(fields)
    }
}

/// RFC 7541, 5.1 and 5.2: a length with a prefix of seven bits, then the octets as they are.
fn write_string(out: &mut BytesMut, text: &[u8]) {
    const PREFIX: usize = 0x7f;
    if text.len() < PREFIX {
        out.put_u8(text.len() as u8);
    } else {
        out.put_u8(PREFIX as u8);
        let mut rest = text.len() - PREFIX;
        while rest >= 0x80 {
            out.put_u8((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        out.put_u8(rest as u8);
    }
    out.extend_from_slice(text);
}
