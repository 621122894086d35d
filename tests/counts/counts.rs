//! Runs one of boxmaker's hot paths a number of times: `counts PATH TIMES`. `tests/counts/check` has callgrind count the
//! instructions; what a path takes is the difference between two numbers of times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod memory;
#[path = "../bench/sessions.rs"]
#[allow(dead_code, reason = "the measurements use more of it")]
mod sessions;

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use boxmaker::agent::Heard;
use boxmaker::channel::{ChannelLimits, HomeLock, Hub, Listener, Peer, Service, serve};
use boxmaker::config::ModelUrl;
use boxmaker::model::{Chunk, CompletionRequest, Server};
use boxmaker::proto::{ErrorBody, EventKind, Line, Reply, Request, Sampling, SessionId, TurnId};
use boxmaker::store::{Catalog, OpenOptions};
use memory::Memory;
use sessions::{Dice, Shape, baseline, named, turn};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, times] = words.as_slice() else { panic!("usage: counts PATH TIMES") };
    let times: usize = times.parse().expect("a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match path.as_str() {
            "append" => append(times).await,
            "open" => open(times).await,
            "line" => line(times),
            "chunk" => chunk(times).await,
            "event" => event(times).await,
            "prompt" => prompt(times),
            "next" => next(times),
            other => panic!("there is no path {other:?}"),
        }
    });
}

/// Appends a record of 300 bytes, on a disk that takes no time.
async fn append(times: usize) {
    let catalog = Catalog::on(Memory::default(), "/home".into(), OpenOptions::default());
    let id = "a".parse().unwrap();
    let mut session = catalog.create(Some(id), baseline(), 0, None).await.unwrap();
    let record = named(&"x".repeat(120));
    for _ in 0..times {
        session.append(record.clone()).await.unwrap();
    }
}

/// Opens a session of 25 turns and 200 records, 220 kB, verified whole.
async fn open(times: usize) {
    let disk = Memory::default();
    let (files, _) = sessions::files("a", Shape { epochs: 1, turns: 25, bytes: 1210 });
    for (name, bytes) in files {
        disk.put(&Path::new("/home/sessions/a").join(name), bytes);
    }
    let catalog = Catalog::on(disk, "/home".into(), OpenOptions::default());
    for _ in 0..times {
        let (session, _) = catalog.open(&"a".parse().unwrap()).await.unwrap();
        assert_eq!(session.records().len(), 201);
    }
}

/// Reads the lines of such a session, without their digests: valgrind knows no processor's own way to compute those, so
/// in the counts of `append` and `open` they are much more than they are in time.
fn line(times: usize) {
    let (files, _) = sessions::files("a", Shape { epochs: 1, turns: 25, bytes: 1210 });
    let (_, log) = files.iter().find(|(name, _)| name == "0.jsonl").unwrap();
    for _ in 0..times {
        for line in log.split_inclusive(|byte| *byte == b'\n') {
            assert!(Line::decode(line).is_ok());
        }
    }
}

/// What a server sends for so many tokens.
fn stream(tokens: usize) -> Vec<u8> {
    let event = |text: &str, more: &str| {
        let json = format!(
            "data: {{\"index\":0,\"content\":\"{text}\",\"tokens\":[1234],\"stop\":false,\"id_slot\":-1,\
             \"tokens_predicted\":7,\"tokens_evaluated\":1200{more}}}\n\n"
        );
        format!("{:x}\r\n{json}\r\n", json.len())
    };
    let progress = ",\"prompt_progress\":{\"total\":1200,\"cache\":1190,\"processed\":1200,\"time_ms\":1}";
    let last = event("", "").replace("\"stop\":false", "\"stop\":true").replace(
        "\"tokens_predicted\":7",
        "\"stop_type\":\"eos\",\"truncated\":false,\"tokens_cached\":1207,\
         \"timings\":{\"cache_n\":1190,\"prompt_n\":10,\"predicted_n\":7},\"tokens_predicted\":7",
    );
    // its length is another one now
    let last = last.split_once("\r\n").unwrap().1.trim_end_matches("\r\n").to_owned();
    let last = format!("{:x}\r\n{last}\n\n\r\n0\r\n\r\n", last.trim_end().len() + 2);
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    [
        head.as_bytes(),
        event("", progress).as_bytes(),
        event(" word", "").repeat(tokens).as_bytes(),
        last.as_bytes(),
    ]
    .concat()
}

/// Takes the chunks of a completion from the model server.
async fn chunk(times: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = stream(times);
    let server = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 65_536]).unwrap();
        socket.write_all(&answer).unwrap();
    });
    let model = Server::new(ModelUrl::Unix(path), None, 0, Duration::from_secs(60));
    let request = CompletionRequest {
        prompt: &[1, 2, 3],
        max_tokens: 4096,
        sampling: &Sampling::default(),
        thinking: None,
        calls: None,
    };
    let mut completion = model.go_on(&request).await.unwrap();
    let mut deltas = 0;
    while let Some(chunk) = completion.next().await.unwrap() {
        deltas += usize::from(matches!(&chunk, Chunk::Delta { text, .. } if text == " word"));
    }
    assert_eq!(deltas, times);
    server.join().unwrap();
}

struct Nothing;

impl Service for Nothing {
    async fn request(self: Rc<Self>, _peer: Peer, _request: Request) -> Result<Reply, ErrorBody> {
        Ok(Reply::Done {})
    }

    async fn attach(&self, _session: &SessionId) -> Result<bool, ErrorBody> {
        Ok(true)
    }
}

/// Publishes texts, of which each goes to one client.
async fn event(times: usize) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let lock = HomeLock::take(dir.path()).unwrap();
    let listener = Listener::bind(&path, &lock).unwrap();
    let limits = ChannelLimits::default();
    let hub = Hub::new(limits.clone());
    let (over, stop) = tokio::sync::oneshot::channel::<()>();
    let serving = serve(listener, Rc::new(Nothing), Rc::clone(&hub), limits, "run".to_owned(), stop);
    let serving = tokio::task::spawn_local(serving);
    let client = std::thread::spawn(move || {
        let mut socket = UnixStream::connect(path).unwrap();
        let hello = "{\"id\":1,\"request\":\"hello\",\"version\":1,\"client\":\"counts\"}\n";
        let attach = "{\"id\":2,\"request\":\"attach\",\"session\":\"a\"}\n";
        socket.write_all(hello.as_bytes()).unwrap();
        socket.write_all(attach.as_bytes()).unwrap();
        let (mut buffer, mut all) = (vec![0; 65_536], 0);
        while let Ok(n @ 1..) = socket.read(&mut buffer) {
            all += n;
        }
        all
    });
    let session: SessionId = "a".parse().unwrap();
    while hub.attached(&session) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for _ in 0..times {
        hub.publish(&session, Some(TurnId(1)), EventKind::Text { text: " word".to_owned() });
        // its connection writes it
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
    }
    drop(over);
    serving.await.unwrap().unwrap();
    let bytes = client.join().unwrap();
    assert!(bytes > times * 50, "the client got {bytes} bytes");
}

/// Makes the prompt of a conversation of 100 turns.
fn prompt(times: usize) {
    let mut dice = Dice(3);
    let records: Vec<_> = (1..=100).flat_map(|n| turn(&mut dice, n, 600)).collect();
    let framing = baseline().content().framing.clone();
    for _ in 0..times {
        assert!(Heard::new(&framing).prompt(&framing, &records).list.len() > 1000);
    }
}

/// Makes the prompt of each turn of a conversation, one after the other.
fn next(times: usize) {
    let mut dice = Dice(3);
    let records: Vec<_> = (1..=100).flat_map(|n| turn(&mut dice, n, 600)).collect();
    let framing = baseline().content().framing.clone();
    let each = records.len() / 100;
    for _ in 0..times {
        let mut heard = Heard::new(&framing);
        for turns in 1..=100 {
            assert!(!heard.prompt(&framing, &records[..turns * each]).list.is_empty());
        }
    }
}
