mod fields;
mod hostile;
mod socket;

use std::collections::VecDeque;

use futures::FutureExt;
use loona_hpack::Decoder;
use tokio::io::AsyncReadExt;

use super::*;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// `/var/lib/kubelet/plugins_registry/x-reg.sock` in the Huffman code of RFC 7541.
const HUFFMAN_PATH: [u8; 32] = [
    0x63, 0xb8, 0xec, 0x62, 0x83, 0x46, 0xc7, 0x5b, 0x63, 0x2d, 0x05, 0x4b, 0x15, 0xd1, 0x6c, 0xc6, 0xa9, 0x11, 0x58,
    0x59, 0x8c, 0x84, 0xd9, 0xe9, 0x8f, 0x2b, 0x58, 0x59, 0x97, 0x41, 0xc9, 0xd7,
];

/// `:authority` in the same code.
const HUFFMAN_NAME: [u8; 8] = [0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn string(text: &str) -> Vec<u8> {
    let length = match text.len() {
        short @ 0..0x7f => vec![short as u8],
        long => vec![0x7f, (long - 0x7f) as u8 | 0x80, ((long - 0x7f) >> 7) as u8 | 0x80, ((long - 0x7f) >> 14) as u8],
    };
    [&length, text.as_bytes()].concat()
}

/// Not indexed, with a new name.
fn literal(name: &str, value: &str) -> Vec<u8> {
    [vec![0], string(name), string(value)].concat()
}

/// The method, scheme and path of a probe.
fn target() -> Vec<u8> {
    [vec![0x83, 0x86, 0x04], string("/csi.v1.Identity/Probe")].concat()
}

fn grpc() -> Vec<u8> {
    [literal("content-type", "application/grpc"), literal("te", "trailers")].concat()
}

fn request(authority: &[u8]) -> Vec<u8> {
    [target(), authority.to_vec(), grpc()].concat()
}

fn hello() -> Vec<u8> {
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[])].concat()
}

/// Gives its parts one by one, then nothing.
struct Parts(VecDeque<Vec<u8>>);

impl AsyncRead for Parts {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let parts = &mut self.get_mut().0;
        if let Some(mut part) = parts.pop_front() {
            let rest = part.split_off(part.len().min(buf.remaining()));
            buf.put_slice(&part);
            if !rest.is_empty() {
                parts.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// What the server reads when a client sends this.
fn through(parts: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let parts = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let mut stream = AnyAuthority::new(Parts(parts));
    let mut read = Vec::new();
    stream.read_to_end(&mut read).now_or_never().unwrap().unwrap();
    read
}

type Fields = Vec<(String, String)>;

#[derive(Debug, PartialEq)]
enum Seen {
    Request { stream: u32, ends: bool, fields: Fields },
    Other(u8, Vec<u8>),
}

/// The frames after the preface. Each block is read with an empty table: the server is never given an index of ours.
fn seen(mut bytes: &[u8]) -> Vec<Seen> {
    bytes = bytes.strip_prefix(PREFACE).expect("a preface");
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (frame, rest) = split_frame(bytes);
        let (kind, flags, payload) = (frame[3], frame[4], &frame[9..]);
        let stream = u32::from_be_bytes(frame[5..9].try_into().unwrap());
        bytes = rest;
        all.push(if kind == HEADERS {
            assert_eq!(flags & (END_HEADERS | PADDED), END_HEADERS, "short blocks come in one frame, without padding");
            let block = if flags & PRIORITY == 0 { payload } else { &payload[5..] };
            Seen::Request { stream, ends: flags & END_STREAM != 0, fields: decode(&mut Decoder::new(), block) }
        } else {
            Seen::Other(kind, payload.to_vec())
        });
    }
    all
}

fn split_frame(bytes: &[u8]) -> (&[u8], &[u8]) {
    let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
    bytes.split_at(9 + length)
}

fn decode(decoder: &mut Decoder<'_>, block: &[u8]) -> Fields {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    decoder.decode(block).unwrap().into_iter().map(|(name, value)| (text(name), text(value))).collect()
}

/// The authority of the n-th request.
fn authority(sent: &[u8], n: usize) -> Option<String> {
    let mut requests = seen(&through([sent.to_vec()])).into_iter().filter_map(|seen| match seen {
        Seen::Request { fields, .. } => Some(fields),
        Seen::Other(..) => None,
    });
    let fields = requests.nth(n).unwrap();
    assert_eq!(fields.iter().filter(|(name, _)| name == ":path").count(), 1, "{fields:?}");
    fields.into_iter().find(|(name, _)| name == ":authority").map(|(_, value)| value)
}

/// Every way to say an authority, and how it is called in a message.
fn authorities() -> Vec<(&'static str, Vec<u8>)> {
    let named = |value| [vec![0x01], string(value)].concat();
    vec![
        ("an absolute path", named("/var/lib/kubelet/plugins_registry/x-reg.sock")),
        ("a percent-encoded path", named("%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock")),
        ("a relative path", named("csi.sock")),
        ("a url", named("unix:///csi/csi.sock")),
        ("nothing, literally", named("")),
        ("nothing, from the static table", vec![0x81]),
        ("localhost", named("localhost")),
        ("a host and port", named("driver.example:50051")),
        ("bytes that are no text", [&[0x01, 3][..], &[0xff, 0x00, 0x20]].concat()),
        ("a literal name", literal(":authority", "/csi/csi.sock")),
        ("an indexed literal", [vec![0x41], string("/csi/csi.sock")].concat()),
        ("a literal never to be indexed", [vec![0x11], string("/csi/csi.sock")].concat()),
        ("huffman", [&[0x41, 0x80 | 32][..], &HUFFMAN_PATH].concat()),
        ("huffman, also of the name", [&[0x40, 0x80 | 8][..], &HUFFMAN_NAME, &[0x80 | 32], &HUFFMAN_PATH].concat()),
    ]
}

#[test]
fn whatever_a_client_calls_us_the_server_reads_localhost() {
    for (name, field) in authorities() {
        let sent = [hello(), frame(HEADERS, END_HEADERS, 1, &request(&field))].concat();
        assert_eq!(authority(&sent, 0).as_deref(), Some("localhost"), "{name}");
    }
}

#[test]
fn a_missing_authority_stays_missing() {
    let sent = [hello(), frame(HEADERS, END_HEADERS, 1, &request(&[]))].concat();
    assert_eq!(authority(&sent, 0), None);
}

#[test]
fn fields_other_than_the_authority_stay_in_their_order() {
    let long = "v".repeat(300);
    let block = [request(&[0x81]), literal("x", &long), literal("x", "again")].concat();
    let sent = [hello(), frame(HEADERS, END_HEADERS | END_STREAM, 7, &block)].concat();
    let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let fields = vec![
        field(":method", "POST"),
        field(":scheme", "http"),
        field(":path", "/csi.v1.Identity/Probe"),
        field(":authority", "localhost"),
        field("content-type", "application/grpc"),
        field("te", "trailers"),
        field("x", &long),
        field("x", "again"),
    ];
    assert_eq!(seen(&through([sent]))[1], Seen::Request { stream: 7, ends: true, fields });
}

#[test]
fn later_requests_may_use_what_earlier_ones_put_into_the_table() {
    let path = [vec![0x41], string("/csi/csi.sock")].concat();
    let first = frame(HEADERS, END_HEADERS, 1, &request(&path));
    // The whole field by its index, then only its name with another value.
    let second = frame(HEADERS, END_HEADERS, 3, &request(&[0xbe]));
    let third = frame(HEADERS, END_HEADERS, 5, &request(&[vec![0x7e], string("/other.sock")].concat()));
    let fourth = frame(HEADERS, END_HEADERS, 7, &request(&[0xbf]));
    let sent = [hello(), first, second, third, fourth].concat();
    for n in 0..4 {
        assert_eq!(authority(&sent, n).as_deref(), Some("localhost"), "request {n}");
    }
}

#[test]
fn a_client_may_shrink_its_table_and_let_it_grow_again() {
    let entry = |name: &str| [vec![0x40], string(name), string("v")].concat();
    let first = frame(HEADERS, END_HEADERS, 1, &[request(&[0x81]), entry("old")].concat());
    // To 0 and back to 4096 at the head of one block: the old entry is gone, the new one is the first.
    let sizes = vec![0x20, 0x3f, 0xe1, 0x1f];
    let second = frame(HEADERS, END_HEADERS, 3, &[sizes, request(&[0x81]), entry("new")].concat());
    let third = frame(HEADERS, END_HEADERS, 5, &[request(&[0x81]), vec![0xbe]].concat());
    let all = seen(&through([[hello(), first, second, third].concat()]));
    let Some(Seen::Request { fields, .. }) = all.last() else { panic!("{all:?}") };
    assert_eq!(fields.last().unwrap().0, "new");
}

#[test]
fn padding_goes_and_priority_stays() {
    let priority = [0x80, 0, 0, 3, 200];
    let block = request(&[0x81]);
    let payload = [&[4][..], &priority, &block, &[0; 4]].concat();
    let flags = END_HEADERS | END_STREAM | PADDED | PRIORITY;
    let read = through([[hello(), frame(HEADERS, flags, 1, &payload)].concat()]);
    let (_, rest) = split_frame(&read[PREFACE.len()..]);
    assert_eq!((rest[3], rest[4]), (HEADERS, END_HEADERS | END_STREAM | PRIORITY));
    assert_eq!(rest[9..14], priority);
    assert_eq!(
        decode(&mut Decoder::new(), &rest[14..]),
        decode(&mut Decoder::new(), &request(&literal(":authority", "localhost")))
    );
}

#[test]
fn everything_but_header_blocks_passes_byte_for_byte() {
    let sent = [
        hello(),
        frame(PING, 0, 0, &[7; 8]),
        frame(DATA, PADDED, 1, &[3; 16_384]),
        frame(0xee, 0xff, 0xffff_ffff, &[1, 2, 3]),
        frame(DATA, END_STREAM, 1, &[]),
        frame(SETTINGS, 1, 0, &[]),
        // Refused by the server for its length alone, whatever its kind.
        frame(DATA, 0, 1, &vec![5; 100_000]),
    ]
    .concat();
    assert!(through([sent.clone()]) == sent, "the bytes differ");
}

/// A conversation with all that a header block can have.
fn conversation() -> Vec<u8> {
    let [(_, path), .., (_, huffman)] = &authorities()[..] else { unreachable!() };
    let indexed = [vec![0x41], string("/csi/csi.sock")].concat();
    let (first, fragmented, third) = (request(path), request(huffman), request(&indexed));
    let padded = [&[2, 0, 0, 0, 0, 9][..], &fragmented[..10], &[0, 0]].concat();
    [
        hello(),
        frame(HEADERS, END_HEADERS, 1, &first),
        frame(DATA, END_STREAM, 1, &[0; 5]),
        frame(HEADERS, PADDED | PRIORITY, 3, &padded),
        frame(CONTINUATION, 0, 3, &fragmented[10..30]),
        frame(CONTINUATION, 0, 3, &[]),
        frame(CONTINUATION, END_HEADERS, 3, &fragmented[30..]),
        frame(PING, 0, 0, &[9; 8]),
        frame(DATA, 0, 3, &[0; 5]),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &literal("trailer", "yes")),
        frame(HEADERS, END_HEADERS, 5, &third),
        frame(HEADERS, END_HEADERS, 7, &request(&[0xbe])),
        frame(DATA, END_STREAM, 7, &[0; 5]),
        frame(DATA, END_STREAM, 5, &[0; 5]),
    ]
    .concat()
}

#[test]
fn it_does_not_matter_where_the_stream_is_cut() {
    let sent = conversation();
    let whole = through([sent.clone()]);
    let all = seen(&whole);
    assert_eq!(all.iter().filter(|seen| matches!(seen, Seen::Request { .. })).count(), 5);
    for cut in 1..sent.len() {
        let (front, back) = sent.split_at(cut);
        assert!(through([front.to_vec(), back.to_vec()]) == whole, "cut at {cut}");
    }
    assert!(through(sent.iter().map(|byte| vec![*byte])) == whole, "byte by byte");
}

#[test]
fn a_reader_with_little_room_reads_the_same() {
    let sent = conversation();
    let mut stream = AnyAuthority::new(Parts([sent.clone()].into()));
    let mut read = Vec::new();
    let mut room = [0; 3];
    loop {
        match stream.read(&mut room).now_or_never().unwrap().unwrap() {
            0 => break,
            length => read.extend_from_slice(&room[..length]),
        }
    }
    assert!(read == through([sent]), "the bytes differ");
}

#[test]
fn trailers_keep_their_fields() {
    let all = seen(&through([conversation()]));
    let fields = vec![("trailer".to_owned(), "yes".to_owned())];
    assert!(all.contains(&Seen::Request { stream: 3, ends: true, fields }), "{all:?}");
}

#[test]
fn what_is_not_http2_passes_untouched() {
    for text in ["GET / HTTP/1.1\r\nhost: /csi.sock\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", "P", "Q"] {
        let sent = [text.as_bytes(), &frame(HEADERS, END_HEADERS, 1, &request(&[0x81]))].concat();
        assert_eq!(through([sent.clone()]), sent, "{text:?}");
        assert_eq!(through(sent.iter().map(|byte| vec![*byte])), sent, "{text:?}, byte by byte");
    }
}
