//! The same over a socket, with a server behind it: bytes in, answers out.

use std::time::Duration;

use tokio::{io::AsyncWriteExt, net::UnixStream, time::timeout};
use tonic::{Request, Response, Status, service::Routes};

use super::*;
use crate::{
    server::{Socket, SocketMode},
    v1::{
        ProbeRequest, ProbeResponse,
        identity_server::{Identity, IdentityServer},
    },
};

const RST_STREAM: u8 = 3;

/// Against hanging only.
const LONG: Duration = Duration::from_secs(60);

struct Ready;

#[tonic::async_trait]
impl Identity for Ready {
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

/// What the server answered, up to the end of all streams asked for or of the connection.
#[derive(Default)]
struct Answers {
    /// Fields of headers and trailers by stream.
    fields: Vec<(u32, Fields)>,
    frames: Vec<(u8, Vec<u8>)>,
}

impl Answers {
    fn field(&self, stream: u32, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter().filter(|(at, _)| *at == stream).flat_map(|(_, fields)| fields);
        fields.find(|(at, _)| at == name).map(|(_, value)| value.as_str())
    }

    fn frame(&self, kind: u8) -> Option<&[u8]> {
        self.frames.iter().find(|(at, _)| *at == kind).map(|(_, payload)| payload.as_slice())
    }
}

/// Writes the parts and reads until this many streams are done, or the server has hung up.
async fn ask(parts: impl IntoIterator<Item = Vec<u8>>, streams: usize) -> Answers {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    let socket = Socket::bind(&path, SocketMode::default()).unwrap();
    let server = socket.serve(Routes::new(IdentityServer::new(Ready)), std::future::pending());
    let client = async {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        for part in parts {
            if stream.write_all(&part).await.is_err() {
                break;
            }
        }
        answers(&mut stream, streams).await
    };
    tokio::select! {
        served = server => panic!("serving ended: {served:?}"),
        answers = timeout(LONG, client) => answers.expect("an answer"),
    }
}

async fn answers(stream: &mut UnixStream, mut open: usize) -> Answers {
    let mut answers = Answers::default();
    let mut decoder = Decoder::new();
    while open > 0 {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            break;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        let (kind, flags) = (head[3], head[4]);
        let id = u32::from_be_bytes(head[5..].try_into().unwrap());
        if kind == HEADERS {
            answers.fields.push((id, decode(&mut decoder, &payload)));
        }
        let ends = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
        if ends || kind == RST_STREAM {
            open -= 1;
        }
        answers.frames.push((kind, payload));
    }
    answers
}

fn probe(stream: u32, authority: &[u8]) -> Vec<u8> {
    let message = frame(DATA, END_STREAM, stream, &[0; 5]);
    [frame(HEADERS, END_HEADERS, stream, &request(authority)), message].concat()
}

#[tokio::test]
async fn a_client_is_answered_whatever_it_calls_us() {
    for (name, field) in authorities().into_iter().chain([("missing", Vec::new())]) {
        let answers = ask([hello(), probe(1, &field)], 1).await;
        assert_eq!(answers.field(1, "grpc-status"), Some("0"), "{name}: {:?}", answers.frames);
    }
}

#[tokio::test]
async fn fragments_padding_priority_trailers_and_indexes_are_answered_byte_by_byte() {
    let answers = ask(conversation().into_iter().map(|byte| vec![byte]), 4).await;
    for stream in [1, 3, 5, 7] {
        // Trailers of ours are more than a unary call wants; it is answered all the same.
        assert_eq!(answers.field(stream, ":status"), Some("200"), "{stream}: {:?}", answers.frames);
    }
}

/// The table that is kept in step is as large as the server says; it says nothing, so it is the default.
#[tokio::test]
async fn the_server_announces_the_limits_that_are_kept() {
    const HEADER_TABLE_SIZE: u16 = 1;
    const MAX_FRAME_SIZE: u16 = 5;
    const MAX_HEADER_LIST_SIZE: u16 = 6;

    let answers = ask([hello(), probe(1, &[])], 1).await;
    let payload = answers.frame(SETTINGS).expect("settings");
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap()) as usize;
    let setting =
        |id: u16| payload.chunks(6).find(|entry| entry[..2] == id.to_be_bytes()).map(|entry| number(&entry[2..]));
    assert_eq!(setting(HEADER_TABLE_SIZE), None);
    assert_eq!(setting(MAX_FRAME_SIZE).unwrap_or(16_384), MAX_FRAME);
    assert_eq!(setting(MAX_HEADER_LIST_SIZE), Some(MAX_LIST));
}

#[tokio::test]
async fn a_list_that_is_too_long_is_told_so_and_the_next_request_is_answered() {
    let cases =
        [("many fields", literal("x", &"v".repeat(100)).repeat(150)), ("one", literal("x", &"v".repeat(20_000)))];
    for (name, long) in cases {
        let (front, back) = long.split_at(10_000);
        let first = frame(HEADERS, END_STREAM, 1, &[request(&[0x81]), front.to_vec()].concat());
        let rest = frame(CONTINUATION, END_HEADERS, 1, back);
        let answers = ask([hello(), first, rest, probe(3, &[0x81])], 2).await;
        assert_eq!(answers.field(1, ":status"), Some("431"), "{name}: {:?}", answers.frames);
        assert_eq!(answers.field(3, "grpc-status"), Some("0"), "{name}: {:?}", answers.frames);
    }
}

#[tokio::test]
async fn an_authority_longer_than_a_list_may_be_is_no_longer_than_localhost() {
    let path = [vec![0x01], string(&"/csi".repeat(5000))].concat();
    let block = request(&path);
    let (front, back) = block.split_at(10_000);
    let sent = [
        hello(),
        frame(HEADERS, 0, 1, front),
        frame(CONTINUATION, END_HEADERS, 1, back),
        frame(DATA, END_STREAM, 1, &[0; 5]),
    ];
    let answers = ask(sent, 1).await;
    assert_eq!(answers.field(1, "grpc-status"), Some("0"), "{:?}", answers.frames);
}

#[tokio::test]
async fn a_refused_client_is_told_goodbye() {
    const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

    let cases = [
        ("index 0", vec![0x80]),
        // Not ours to decode, so it is h2 that finds it.
        ("a value with padding of zeros", [request(&[0x81]), literal("x", "")[..3].to_vec(), vec![0x81, 0]].concat()),
    ];
    for (name, block) in cases {
        let answers = ask([hello(), frame(HEADERS, END_HEADERS, 3, &block)], 1).await;
        let goaway = answers.frame(GOAWAY).expect(name);
        assert_eq!(goaway[4..8], PROTOCOL_ERROR, "{name}");
    }
}

#[tokio::test]
async fn two_authorities_are_still_one_too_many() {
    let both = [vec![0x81], literal(":authority", "/csi/csi.sock")].concat();
    let answers = ask([hello(), probe(1, &both)], 1).await;
    assert!(answers.frame(RST_STREAM).is_some(), "{:?}", answers.frames);
}
