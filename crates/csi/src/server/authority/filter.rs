//! Follows the frames of one connection and stops at header blocks. No I/O: bytes in, bytes out.

use std::mem;

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::ReadBuf;

use super::block::{Block, CONTINUATION, HEADERS};
use super::hpack::Table;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of a frame: length, kind, flags, stream.
pub(super) const HEAD: usize = 9;

/// The longest payload of a frame that the server takes: the least that HTTP/2 allows it to announce.
pub(in crate::server) const MAX_FRAME: usize = 16 * 1024;

#[derive(Clone, Copy)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    /// `None` until all of it is there.
    fn read(mut input: &[u8]) -> Option<Self> {
        if input.len() < HEAD {
            return None;
        }
        let length = input.get_uint(3) as usize;
        Some(Self { length, kind: input.get_u8(), flags: input.get_u8(), stream: input.get_u32() & 0x7fff_ffff })
    }

    pub(super) fn write(self, out: &mut BytesMut) {
        out.put_uint(self.length as u64, 3);
        out.put_u8(self.kind);
        out.put_u8(self.flags);
        out.put_u32(self.stream);
    }
}

/// Where in the client's bytes we are.
enum State {
    Preface { seen: usize },
    Frame,
    Payload { left: usize },
    Block(Block),
    Opaque,
    Refused,
}

impl State {
    /// How much of this the server may have as it is.
    fn pass(&mut self, input: &[u8]) -> usize {
        let mut passed = 0;
        loop {
            let rest = &input[passed..];
            match self {
                Self::Preface { seen } => {
                    let expected = &PREFACE[*seen..];
                    let length = rest.len().min(expected.len());
                    if rest[..length] != expected[..length] {
                        *self = Self::Opaque;
                        continue;
                    }
                    passed += length;
                    *seen += length;
                    if length < expected.len() {
                        return passed;
                    }
                    *self = Self::Frame;
                }
                Self::Frame => match Head::read(rest) {
                    None => return passed,
                    Some(head) if head.kind != HEADERS => *self = Self::Payload { left: HEAD + head.length },
                    // The server refuses it by its length, whatever is in it.
                    Some(head) if head.length > MAX_FRAME => *self = Self::Opaque,
                    Some(_) => return passed,
                },
                Self::Payload { left } => {
                    let length = rest.len().min(*left);
                    passed += length;
                    *left -= length;
                    if *left > 0 {
                        return passed;
                    }
                    *self = Self::Frame;
                }
                Self::Block(_) | Self::Refused => return passed,
                Self::Opaque => return input.len(),
            }
        }
    }
}

pub(super) struct Filter {
    state: State,
    table: Table,
    /// Read, but not for the server yet: at most what was fed at once and one frame.
    held: BytesMut,
    /// For the server: at most one header block, or what was held.
    out: BytesMut,
}

impl Filter {
    pub(super) fn new() -> Self {
        let (held, out) = (BytesMut::new(), BytesMut::new());
        Self { state: State::Preface { seen: 0 }, table: Table::new(), held, out }
    }

    /// Takes in what was read, and says how much of its front is for the server as it is.
    pub(super) fn feed(&mut self, read: &[u8]) -> usize {
        let stays = if self.held.is_empty() { self.state.pass(read) } else { 0 };
        self.held.extend_from_slice(&read[stays..]);
        stays
    }

    /// Gives the server what is ready; `false` if more must be read first.
    pub(super) fn drain(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        while self.out.is_empty() {
            let passed = self.state.pass(&self.held);
            if passed > 0 {
                self.out = self.held.split_to(passed);
            } else if !self.read_frame() {
                return false;
            }
        }
        let length = self.out.len().min(buf.remaining());
        buf.put_slice(&self.out.split_to(length));
        true
    }

    /// Nothing more comes: the server has been told why.
    pub(super) fn refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.held.len() + self.out.len()
    }

    /// Reads one frame of a header block; `false` if it is not all there.
    fn read_frame(&mut self) -> bool {
        let Some(head) = Head::read(&self.held) else { return false };
        if let State::Block(block) = &self.state
            && !block.is_continued_by(head)
        {
            self.refuse();
            return true;
        }
        if self.held.len() < HEAD + head.length {
            return false;
        }
        self.held.advance(HEAD);
        let payload = self.held.split_to(head.length).freeze();
        let block = match mem::replace(&mut self.state, State::Frame) {
            State::Block(mut block) => {
                block.add(&payload);
                Some(block)
            }
            _ => Block::begin(head, payload),
        };
        match block {
            Some(block) if !head.ends_headers() => self.state = State::Block(block),
            block => match block.and_then(|block| block.rewrite(&mut self.table)) {
                Some(frames) => self.out = frames,
                None => self.refuse(),
            },
        }
        true
    }

    /// A CONTINUATION of nothing makes the server close the connection as HTTP/2 wants it: GOAWAY, PROTOCOL_ERROR.
    fn refuse(&mut self) {
        tracing::debug!("a client sent a header block that cannot be read");
        self.held = BytesMut::new();
        self.out.clear();
        Head { length: 0, kind: CONTINUATION, flags: 0, stream: 1 }.write(&mut self.out);
        self.state = State::Refused;
    }
}
