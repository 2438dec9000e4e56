//! One header block: collected from its frames, and written to new ones.

use bytes::{Bytes, BytesMut};

use super::filter::{HEAD, Head, MAX_FRAME};
use super::hpack::{MAX_LIST, Table};

/// One block on the wire, heads of frames included, so that empty CONTINUATIONs end too. Twice the list: who obeys the
/// limit on lists never comes near, and who exceeds it a little still hears so from the server.
const MAX_BLOCK: usize = 2 * MAX_LIST;

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
        next.kind == CONTINUATION
            && next.stream == self.head.stream
            && next.length <= MAX_FRAME
            && self.weight + HEAD + next.length <= MAX_BLOCK
    }

    pub(super) fn add(&mut self, payload: &[u8]) {
        self.weight += HEAD + payload.len();
        self.fragments.extend_from_slice(payload);
    }

    /// The same block in as few frames as possible, with an authority that h2 takes; `None` if it cannot be read.
    pub(super) fn rewrite(self, table: &mut Table) -> Option<BytesMut> {
        let mut fields = table.rewrite(&self.fragments)?;
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
                return Some(frames);
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
