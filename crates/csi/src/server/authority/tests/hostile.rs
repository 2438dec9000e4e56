//! What a client sends that is wrong, or more than it may.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::server::authority::filter::HEAD;

/// What is given to the server in place of what it must not read.
fn refusal() -> Vec<u8> {
    frame(CONTINUATION, 0, 1, &[])
}

fn is_refused(sent: Vec<u8>) -> bool {
    let read = through([hello(), sent, frame(PING, 0, 0, &[0; 8])]);
    read == [hello(), refusal()].concat()
}

#[test]
fn a_block_that_cannot_be_read_is_refused() {
    let whole = |flags, payload: &[u8]| frame(HEADERS, END_HEADERS | flags, 1, payload);
    let good = request(&[0x81]);
    let cases = [
        ("index 0", whole(0, &[0x80])),
        ("an index nobody put there", whole(0, &[0xbe])),
        ("a name nobody put there", whole(0, &[0x7e, 1, b'v'])),
        ("a string longer than the block", whole(0, &[0x00, 5, b'a'])),
        ("a name without a value", whole(0, &[0x00, 1, b'a'])),
        ("a length that does not end", whole(0, &[0x00, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])),
        ("a new limit after a field", whole(0, &[&good[..], &[0x20]].concat())),
        ("a table larger than allowed", whole(0, &[&[0x3f, 0xe2, 0x1f][..], &good].concat())),
        ("padding without a length", whole(PADDED, &[])),
        ("padding longer than the frame", whole(PADDED, &[&[200][..], &good[..20]].concat())),
        ("padding over the priority", whole(PADDED | PRIORITY, &[1, 0, 0, 0, 0, 0])),
        ("half a priority", whole(PRIORITY, &[0, 0, 0])),
    ];
    for (name, sent) in cases {
        assert!(is_refused(sent), "{name}");
    }
}

#[test]
fn a_block_is_followed_by_its_own_continuation_or_refused() {
    let open = frame(HEADERS, 0, 1, &request(&[0x81]));
    let cases = [
        ("data", frame(DATA, 0, 1, &[0; 5])),
        ("another request", frame(HEADERS, END_HEADERS, 3, &request(&[0x81]))),
        ("a continuation of another stream", frame(CONTINUATION, END_HEADERS, 3, &[])),
        ("an unknown frame", frame(0xee, 0, 1, &[])),
        (
            "a continuation longer than announced",
            frame(CONTINUATION, END_HEADERS, 1, &[0; MAX_FRAME + 1])[..HEAD].to_vec(),
        ),
    ];
    for (name, next) in cases {
        assert!(is_refused([open.clone(), next].concat()), "{name}");
    }
}

#[test]
fn a_continuation_of_nothing_is_for_the_server_to_refuse() {
    let sent = [hello(), frame(CONTINUATION, END_HEADERS, 1, &request(&[0x81]))].concat();
    assert_eq!(through([sent.clone()]), sent);
}

#[test]
fn a_headers_frame_longer_than_announced_is_for_the_server_to_refuse() {
    let sent = [hello(), frame(HEADERS, END_HEADERS, 1, &vec![0x82; MAX_FRAME + 1])].concat();
    assert!(through([sent.clone()]) == sent, "the bytes differ");
}

#[test]
fn a_flood_of_continuations_ends() {
    for payload in [0, 1, 1000, MAX_FRAME] {
        let mut filter = Filter::new();
        let mut room = [0; 64];
        let mut read = |filter: &mut Filter| while filter.drain(&mut ReadBuf::new(&mut room)) {};
        filter.feed(&[hello(), frame(HEADERS, 0, 1, &[])].concat());
        let mut sent = 0;
        while !filter.refused() {
            let next = frame(CONTINUATION, 0, 1, &vec![0x82; payload]);
            sent += next.len();
            assert!(sent < 100_000, "{payload}: still listening");
            filter.feed(&next);
            read(&mut filter);
        }
    }
}

/// One byte to name, nearly 4 KiB to write out.
fn large_entry() -> Vec<u8> {
    [vec![0x40], string("x"), string(&"v".repeat(4000))].concat()
}

#[test]
fn a_block_of_indexes_does_not_swell_beyond_what_the_server_refuses() {
    let first = frame(HEADERS, END_HEADERS, 1, &[request(&[0x81]), large_entry()].concat());
    let bomb = frame(HEADERS, END_HEADERS, 3, &[request(&[0x81]), vec![0xbe; 16_000]].concat());
    let after = frame(HEADERS, END_HEADERS, 5, &[request(&[0x81]), vec![0xbe]].concat());
    let read = through([[hello(), first, bomb, after].concat()]);
    assert!(read.len() < 2 * MAX_LIST + 10_000, "{} bytes", read.len());
}

#[test]
fn many_small_bombs_are_written_out_one_by_one() {
    let mut sent = [hello(), frame(HEADERS, END_HEADERS, 1, &large_entry())].concat();
    for stream in 1..1000 {
        sent.extend(frame(HEADERS, END_HEADERS, stream * 2 + 1, &[0xbe; 4]));
    }
    let mut filter = Filter::new();
    filter.feed(&sent);
    let mut room = [0; 1000];
    while filter.drain(&mut ReadBuf::new(&mut room)) {
        assert!(filter.waiting() <= sent.len() + 2 * MAX_LIST, "{} bytes wait", filter.waiting());
    }
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(HEADERS), 4 => Just(CONTINUATION), 1 => Just(DATA), 1 => any::<u8>()];
    let good = Just(request(&[0x41, 1, b'/']));
    let payload = prop_oneof![2 => vec(any::<u8>(), 0..40), 1 => good, 1 => vec(0x80..0xc8u8, 0..40)];
    (kind, any::<u8>(), 0..4u32, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload))
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_never_pile_up(bytes in vec(any::<u8>(), 0..4000), part in 1..100usize) {
        follow(&bytes, part);
    }

    #[test]
    fn random_frames_never_panic_and_never_pile_up(frames in vec(any_frame(), 0..60), part in 1..100usize) {
        follow(&frames.concat(), part);
    }
}

fn follow(bytes: &[u8], part: usize) {
    let mut filter = Filter::new();
    let mut room = [0; 50];
    assert_eq!(filter.feed(PREFACE), PREFACE.len());
    for part in bytes.chunks(part) {
        if filter.refused() {
            return;
        }
        filter.feed(part);
        while filter.drain(&mut ReadBuf::new(&mut room)) {}
        assert!(filter.waiting() <= HEAD + MAX_FRAME, "{} bytes wait", filter.waiting());
    }
}
