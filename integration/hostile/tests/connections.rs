//! Clients that open, send and do not read: one of them must not keep the others out, nor fill the memory.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::process::Command;
use std::time::Duration;

use futures::future::join_all;
use hostile_suite::{PATIENCE, Sent, Server, Windows, code, full, maps, named, unfinished};
use http::header::RETRY_AFTER;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

#[tokio::test]
async fn bodies_that_never_end_keep_nobody_out() {
    // None of them may be given up before the end of this test.
    let server = Server::start(&["--request-timeout=1h"]).await;
    let tenant = server.editor("tenant", "editor").await;
    let other = server.editor("other", "editor").await;
    let flood = server.http2(&tenant, Windows::Usual).await;
    let begun: Vec<Sent> = (0..400).map(|_| flood.send("POST", &maps("tenant"), unfinished(1))).collect();
    // An answer on the same connection: the server has seen what was sent before it.
    assert_eq!(code(flood.send("GET", &maps("tenant"), full(&Value::Null))).await, 200);
    let beside = server.http2(&other, Windows::Usual).await;
    assert_eq!(code(beside.send("POST", &maps("other"), full(&named("a")))).await, 201);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/other/leases";
    assert_eq!(code(beside.send("POST", leases, full(&named("leader")))).await, 201);
    assert_eq!(code(flood.send("POST", &maps("tenant"), full(&named("a")))).await, 201);
    assert_eq!(server.call("POST", &maps("default"), named("a")).await.code, 201);
    assert!(begun.iter().all(|sent| !sent.is_finished()), "all of them still wait");
}

#[tokio::test]
async fn a_body_that_never_ends_is_given_up() {
    let server = Server::start(&["--request-timeout=1s"]).await;
    let client = server.http2(&server.token(), Windows::Usual).await;
    let begun: Vec<Sent> = (0..50).map(|_| client.send("POST", &maps("default"), unfinished(1))).collect();
    for sent in begun {
        assert_eq!(code(sent).await, 504);
    }
}

#[tokio::test]
async fn one_who_floods_is_told_to_come_back_and_others_go_on() {
    let server = Server::start(&["--max-mutating-requests-inflight=8"]).await;
    let tenant = server.editor("tenant", "editor").await;
    let other = server.editor("other", "editor").await;
    let flood = server.http2(&tenant, Windows::Usual).await;
    let beside = server.http2(&other, Windows::Usual).await;
    let mut refused = 0;
    for round in 0..10 {
        let name = |number: usize| named(&format!("m{round}-{number}"));
        let sent: Vec<Sent> = (0..200).map(|number| flood.send("POST", &maps("tenant"), full(&name(number)))).collect();
        assert_eq!(code(beside.send("POST", &maps("other"), full(&name(0)))).await, 201, "{round}");
        for answer in join_all(sent).await {
            let answer = answer.unwrap().unwrap();
            match answer.status().as_u16() {
                201 => {}
                429 => {
                    assert_eq!(answer.headers()[RETRY_AFTER], "1");
                    refused += 1;
                }
                code => panic!("{code}"),
            }
        }
    }
    assert!(refused > 0, "places are limited");
}

/// Lets the process have so many descriptors; false where that cannot be said.
fn limit_descriptors(server: &mut Server, count: u32) -> bool {
    let id = server.process().id().to_string();
    match Command::new("prlimit").args(["--pid", &id, &format!("--nofile={count}:{count}")]).status() {
        Ok(set) => {
            assert!(set.success());
            true
        }
        Err(error) => {
            eprintln!("skipped: the descriptors of a process are limited by prlimit: {error}");
            false
        }
    }
}

/// Whether somebody with a token is answered over a connection of their own.
async fn comes_in(server: &Server) -> io::Result<bool> {
    let mut stream = server.connect("http/1.1").await?;
    let path = maps("default");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\r\n",
        server.token()
    );
    stream.write_all(head.as_bytes()).await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    Ok(&answer == b"HTTP/1.1 200")
}

/// Tries until somebody comes in: a connection may be among those that are sent away.
async fn comes_in_at_last(server: &Server) {
    let try_again = async {
        while !comes_in(server).await.unwrap_or(false) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, try_again).await.expect("somebody with a token comes in");
}

#[tokio::test]
async fn half_headers_and_silence_keep_nobody_out_even_without_descriptors() {
    let mut server = Server::start(&[]).await;
    if !limit_descriptors(&mut server, 60) {
        return;
    }
    // More than the process can have at a time; who is not let in waits in the kernel's queue.
    let mut half = Vec::new();
    let mut silent = Vec::new();
    for _ in 0..80 {
        match timeout(Duration::from_secs(5), server.connect("http/1.1")).await {
            Ok(Ok(mut stream)) => {
                stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: loc").await.unwrap();
                half.push(stream);
            }
            Ok(Err(_sent_away)) => {}
            Err(_full) => break,
        }
    }
    for _ in 0..20 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    comes_in_at_last(&server).await;
    let said = server.process().said().unwrap();
    assert!(said.matches("cannot accept").count() < 1000, "it waits between two tries");
    drop((silent, half));
    comes_in_at_last(&server).await;
}

#[tokio::test]
async fn strangers_do_not_take_the_places_of_those_who_are_known() {
    let server = Server::start(&["--max-connections=32"]).await;
    let known = server.http2(&server.token(), Windows::Usual).await;
    assert_eq!(code(known.send("GET", &maps("default"), full(&Value::Null))).await, 200);
    let mut strangers = Vec::new();
    for _ in 0..200 {
        strangers.push(TcpStream::connect(server.address).await.unwrap());
    }
    comes_in_at_last(&server).await;
    assert_eq!(code(known.send("GET", &maps("default"), full(&Value::Null))).await, 200);
    assert!(!known.ended.is_finished());
}

/// Fills a namespace with about this many MiB.
async fn fill(server: &Server, namespace: &str, mebibytes: usize) {
    for number in 0..mebibytes {
        let body = json!({"metadata": {"name": format!("m{number}")}, "data": {"x": "x".repeat(1 << 20)}});
        let made = server.call("POST", &maps(namespace), body).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
}

#[tokio::test]
async fn lists_and_watches_that_nobody_reads_are_bounded_and_cut_off() {
    let server = Server::start(&["--request-timeout=5s", "--max-unsent-bytes=67108864"]).await;
    let tenant = server.editor("tenant", "editor").await;
    fill(&server, "tenant", 6).await;
    let before = server.peak_memory();
    for query in ["", "?watch=1"] {
        let reader = server.http2(&tenant, Windows::Closed).await;
        let path = format!("{}{query}", maps("tenant"));
        let sent: Vec<Sent> = (0..200).map(|_| reader.send("GET", &path, full(&Value::Null))).collect();
        // Others are answered meanwhile, with the same list.
        let list = server.call("GET", &maps("tenant"), Value::Null).await;
        assert_eq!(list.body["items"].as_array().map(Vec::len), Some(6));
        let mut reader = reader;
        let _cut = timeout(PATIENCE, &mut reader.ended).await.expect("who does not read is cut off").unwrap();
        join_all(sent).await;
    }
    let after = server.peak_memory();
    assert!(after < before + 300, "{before} MiB became {after} MiB");
    let reader = server.http2(&tenant, Windows::Usual).await;
    assert_eq!(code(reader.send("GET", &maps("tenant"), full(&Value::Null))).await, 200, "and may come again");
}

/// A file system of a few MiB, taken away at the end.
struct SmallDisk {
    target: std::path::PathBuf,
}

impl SmallDisk {
    /// Nothing where this process may not mount.
    fn mount(target: &std::path::Path) -> Option<Self> {
        std::fs::create_dir(target).unwrap();
        match mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::empty(), Some("size=16m")) {
            Ok(()) => Some(Self { target: target.to_owned() }),
            Err(Errno::EPERM) => {
                eprintln!("skipped: a small disk is mounted, which needs root");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Leaves no space.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.target.join("filler")).unwrap();
        let block = vec![0; 4096];
        while io::Write::write_all(&mut file, &block).is_ok() {}
    }

    fn free(&self) {
        std::fs::remove_file(self.target.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(&self.target, MntFlags::MNT_DETACH).unwrap();
    }
}

#[tokio::test]
async fn a_full_disk_fails_every_writer_without_waiting_for_another() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(&home.path().join("data")) else { return };
    let server = Server::start_in(home, &[]).await;
    let client = &server.http2(&server.token(), Windows::Usual).await;
    let large = &"x".repeat(200_000);
    let mut failed = 0;
    for round in 0..4 {
        disk.fill();
        // A try that succeeds takes back the failure that others have not yet seen: many of both, then nobody comes.
        let writer = |number: usize| async move {
            let mut failed = 0;
            for write in 0..10 {
                let name = format!("m{round}-{number}-{write}");
                let body = json!({"metadata": {"name": name}, "data": {"x": large}});
                failed += usize::from(code(client.send("POST", &maps("default"), full(&body))).await == 500);
            }
            failed
        };
        failed += join_all((0..16).map(writer)).await.into_iter().sum::<usize>();
        disk.free();
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
        let emptied = server.call("DELETE", &maps("default"), options).await;
        assert_eq!(emptied.code, 200, "{}", emptied.body);
    }
    assert!(failed > 0, "the disk was full");
}
