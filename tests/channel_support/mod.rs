//! A daemon with a toy service, and a client that can misbehave.
#![allow(dead_code, reason = "each test file uses its part")]

#[path = "../support/memory.rs"]
pub mod memory;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use boxmaker::channel::{ChannelLimits, Client, HomeLock, Hub, Listener, Peer, Service, serve};
use boxmaker::proto::{
    Certainty, ErrorBody, ErrorCode, EventKind, PROTOCOL_VERSION, Reply, Request, SessionId, TurnId,
    TurnOutcome,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::{JoinHandle, LocalSet};

/// Longer than anything here takes; what is still missing then never comes.
pub const LONG: Duration = Duration::from_secs(20);
/// Long enough for what would come if it came.
pub const SOON: Duration = Duration::from_millis(150);

pub fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async { tokio::time::timeout(LONG * 3, test).await.unwrap() })
}

/// Waits until something is so.
pub async fn until(is_so: impl Fn() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, waiting).await.expect("it never came");
}

pub fn id(text: &str) -> SessionId {
    text.parse().unwrap()
}

/// `metrics` answers at once, `cancel` when released, `latest` panics, `resolve` tells the peer,
/// `usage` takes 50 ms, `export` answers a megabyte. A session named `missing` is not there.
#[derive(Default)]
pub struct Toy {
    pub release: Notify,
    pub begun: Cell<u32>,
    pub ended: Cell<u32>,
    pub attach_delay: Cell<Duration>,
    pub peers: RefCell<Vec<Peer>>,
}

impl Service for Toy {
    async fn request(self: Rc<Self>, peer: Peer, request: Request) -> Result<Reply, ErrorBody> {
        self.begun.set(self.begun.get() + 1);
        match request {
            Request::Metrics {} => Ok(Reply::Metrics { text: "fine".to_owned() }),
            Request::Cancel { .. } => {
                self.release.notified().await;
                self.ended.set(self.ended.get() + 1);
                Ok(Reply::Done {})
            }
            Request::Latest {} => panic!("the toy breaks, as it should"),
            Request::Resolve { .. } => {
                self.peers.borrow_mut().push(peer);
                Ok(Reply::Done {})
            }
            Request::Usage { .. } => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                self.ended.set(self.ended.get() + 1);
                Ok(Reply::Usage { turns: Vec::new() })
            }
            Request::Export { .. } => Ok(Reply::Metrics { text: "x".repeat(1 << 20) }),
            other => Err(ErrorBody::new(ErrorCode::Nothing, format!("the toy does not know {other:?}"))),
        }
    }

    async fn attach(&self, session: &SessionId) -> Result<bool, ErrorBody> {
        tokio::time::sleep(self.attach_delay.get()).await;
        if session.as_str() == "missing" {
            return Err(ErrorBody::new(ErrorCode::NotFound, "no session missing"));
        }
        Ok(true)
    }
}

pub struct Daemon {
    pub dir: tempfile::TempDir,
    pub lock: HomeLock,
    pub path: PathBuf,
    pub hub: Rc<Hub>,
    pub toy: Rc<Toy>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Daemon {
    pub fn start(limits: ChannelLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lock = HomeLock::take(dir.path()).unwrap();
        let path = dir.path().join("loopd.sock");
        let listener = Listener::bind(&path, &lock).unwrap();
        let (hub, toy) = (Hub::new(limits.clone()), Rc::new(Toy::default()));
        let (stop, stopped) = oneshot::channel();
        let (service, served) = (Rc::clone(&toy), Rc::clone(&hub));
        let task = tokio::task::spawn_local(async move {
            serve(listener, service, served, limits, "run1".to_owned(), stopped).await.unwrap();
        });
        Self { dir, lock, path, hub, toy, stop, task }
    }

    pub async fn client(&self) -> Client {
        Client::connect(&self.path).await.unwrap()
    }

    pub async fn raw(&self) -> Raw {
        Raw::connect(&self.path).await
    }

    /// A raw client past its hello.
    pub async fn greeted(&self) -> Raw {
        let mut raw = self.raw().await;
        let hello = raw.ask(HELLO).await;
        assert_eq!(hello["ok"]["reply"], "hello", "{hello}");
        raw
    }

    pub fn begin(&self, session: &str) {
        let kind = EventKind::TurnStart { text: "hi".to_owned(), retry: false };
        self.hub.publish(&id(session), Some(TurnId(1)), kind);
    }

    pub fn say(&self, session: &str, text: &str) {
        self.hub.publish(&id(session), Some(TurnId(1)), EventKind::Text { text: text.to_owned() });
    }

    pub fn end(&self, session: &str) {
        let (outcome, certainty) = (TurnOutcome::Done, Certainty::Durable);
        self.hub.publish(
            &id(session),
            Some(TurnId(1)),
            EventKind::TurnEnd { outcome, detail: None, certainty },
        );
    }

    /// Asks it to stop; gives what waits for the end, and its home.
    pub fn stop(self) -> (JoinHandle<()>, tempfile::TempDir) {
        self.stop.send(()).unwrap();
        (self.task, self.dir)
    }
}

pub const HELLO: &str = r#"{"id":1,"request":"hello","version":1,"client":"test 1"}"#;
const _: () = assert!(PROTOCOL_VERSION == 1, "the hello above says 1");

/// Says and reads lines, whatever they are.
pub struct Raw {
    pub read: BufReader<OwnedReadHalf>,
    pub write: OwnedWriteHalf,
}

impl Raw {
    /// Attaches to the session `s` with request `n`.
    pub async fn attach(&mut self, n: u64) {
        let answer = self.ask(format!(r#"{{"id":{n},"request":"attach","session":"s"}}"#)).await;
        assert_eq!((&answer["id"], &answer["ok"]["reply"]), (&n.into(), &"attached".into()), "{answer}");
    }

    pub async fn connect(path: &Path) -> Self {
        let (read, write) = UnixStream::connect(path).await.unwrap().into_split();
        Self { read: BufReader::new(read), write }
    }

    pub async fn say(&mut self, line: impl AsRef<[u8]>) {
        self.write.write_all(line.as_ref()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    pub async fn ask(&mut self, line: impl AsRef<[u8]>) -> Value {
        self.say(line).await;
        self.hear().await.expect("an answer")
    }

    /// The next line; nothing at the end.
    pub async fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        match tokio::time::timeout(LONG, self.read.read_line(&mut line)).await.expect("a line in time") {
            Ok(0) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("{e}"),
        }
    }

    /// That nothing comes for a while.
    pub async fn hear_nothing(&mut self) {
        let mut line = String::new();
        let heard = tokio::time::timeout(SOON, self.read.read_line(&mut line)).await;
        assert!(heard.is_err(), "heard {line:?}");
    }

    /// That it still answers.
    pub async fn check_alive(&mut self) {
        let answer = self.ask(r#"{"id":77,"request":"metrics"}"#).await;
        assert_eq!((&answer["id"], &answer["ok"]["text"]), (&77.into(), &"fine".into()), "{answer}");
    }
}
