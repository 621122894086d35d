//! One client: reads its requests, runs them side by side, writes what its outbox holds.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::frame::{Lines, Next};
use super::hub::{Place, Seen};
use super::outbox::Outbox;
use super::server::{Peer, Service, Shared};
use crate::proto::{
    ErrorBody, ErrorCode, Outgoing, PROTOCOL_VERSION, Position, Reply, Request, RequestFrame, SessionId,
    is_unseen,
};

/// The name and version of this daemon, as clients are told.
const DAEMON: &str = concat!("loopd ", env!("CARGO_PKG_VERSION"));
/// Characters of a client's own name that are kept.
const NAME_CHARS: usize = 64;
/// Bytes of an error about bad input, which may quote that input.
const COMPLAINT_BYTES: usize = 1000;

/// Why reading ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The client closed its side.
    Closed,
    /// The client can be neither read nor written.
    Gone,
    /// It sent a line that is too long.
    TooLong,
    /// It said no hello in time.
    Silent,
    /// The daemon ends.
    Stopping,
}

pub(super) struct Connection<S> {
    shared: Rc<Shared<S>>,
    number: u64,
    outbox: Rc<Outbox>,
    /// One for each request without a written answer.
    permits: Arc<Semaphore>,
    in_flight: u32,
    /// The requests that run, by a number of our own: a client may use an id twice.
    open: RefCell<BTreeMap<u64, (u64, OwnedSemaphorePermit)>>,
    opened: Cell<u64>,
    /// Known once hello was said.
    peer: OnceCell<Peer>,
    attached: RefCell<HashSet<SessionId>>,
    /// Attaching and detaching take effect in the order in which they were asked.
    attaching: Mutex<()>,
    /// The client gets no more events.
    left: Cell<bool>,
}

impl<S: Service> Connection<S> {
    pub(super) fn new(shared: Rc<Shared<S>>, number: u64) -> Rc<Self> {
        let in_flight = u32::try_from(shared.limits.in_flight).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(in_flight).unwrap_or(1).min(Semaphore::MAX_PERMITS);
        Rc::new(Self {
            outbox: Rc::new(Outbox::new(&shared.limits)),
            shared,
            number,
            permits: Arc::new(Semaphore::new(permits)),
            in_flight,
            open: RefCell::default(),
            opened: Cell::new(0),
            peer: OnceCell::new(),
            attached: RefCell::default(),
            attaching: Mutex::new(()),
            left: Cell::new(false),
        })
    }

    /// Serves the client to its end. The place is kept until the last of its requests has ended, so that
    /// coming back again and again does not get around the limits.
    pub(super) async fn run(self: Rc<Self>, stream: UnixStream, place: Place) {
        let credentials = match stream.peer_cred() {
            Ok(credentials) => credentials,
            Err(e) => {
                log::warn!(client = self.number; "closed: the kernel does not tell its user: {e}");
                return;
            }
        };
        let who = (credentials.uid(), credentials.pid());
        let (incoming, outgoing) = stream.into_split();
        let end = self.serve(incoming, outgoing, who).await;
        self.leave();
        log::debug!(client = self.number, uid = who.0, end:? = end; "client left");
        self.all_answered().await;
        drop(place);
    }

    async fn serve(
        self: &Rc<Self>,
        incoming: OwnedReadHalf,
        outgoing: OwnedWriteHalf,
        who: (u32, Option<i32>),
    ) -> End {
        let flush = self.shared.limits.flush / 2;
        let mut stopping = self.shared.stopping.clone();
        let mut writing = std::pin::pin!(self.write(outgoing));
        let end = tokio::select! {
            end = self.read(incoming, who) => end,
            _ = &mut writing => return End::Gone,
            _ = stopping.wait_for(|now| *now) => End::Stopping,
            () = self.no_hello() => End::Silent,
        };
        match end {
            End::Gone => return end,
            End::Silent => self.dismiss(),
            End::Closed | End::TooLong | End::Stopping => {}
        }
        let too_late = async {
            // an error would mean that the server is gone
            let _ = stopping.wait_for(|now| *now).await;
            tokio::time::sleep(flush).await;
        };
        tokio::select! {
            () = self.all_answered() => {}
            _ = &mut writing => return End::Gone,
            () = too_late => self.answer_open(),
        }
        self.outbox.finish();
        if timeout(flush, writing).await.is_err() {
            log::debug!(client = self.number; "it does not read its last answers");
        }
        end
    }

    /// Returns when the client has said no hello for too long.
    async fn no_hello(&self) {
        tokio::time::sleep(self.shared.limits.hello).await;
        if self.peer.get().is_some() {
            std::future::pending().await
        }
    }

    /// Tells a client that said no hello why it is closed.
    fn dismiss(&self) {
        log::info!(client = self.number; "closed: it said no hello in time");
        // one with as many unread answers as it may have is not told
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return };
        let why = format!(
            "no hello for {} s (limits.hello_seconds); the connection is closed, since others may need its place",
            self.shared.limits.hello.as_secs()
        );
        self.refuse(None, ErrorBody::new(ErrorCode::HelloFirst, why), permit);
    }

    async fn write(&self, mut outgoing: OwnedWriteHalf) -> io::Result<()> {
        while let Some(batch) = self.outbox.next(|session| self.shared.hub.snapshot_line(session)).await {
            outgoing.write_all(&batch.bytes).await?;
            drop(batch.permits);
        }
        Ok(())
    }

    async fn read(self: &Rc<Self>, incoming: OwnedReadHalf, who: (u32, Option<i32>)) -> End {
        let limit = self.shared.limits.message_bytes;
        let mut lines = Lines::new(incoming, limit);
        loop {
            let Ok(permit) = Arc::clone(&self.permits).acquire_owned().await else { return End::Gone };
            let bad = |code, why| ErrorBody::new(code, why);
            match lines.next().await {
                Ok(Next::Line(line)) => self.take(&line, permit, who),
                Ok(Next::End(0)) => return End::Closed,
                Ok(Next::End(bytes)) => {
                    let why = format!("the input ended after {bytes} bytes of a line that has no newline");
                    self.refuse(None, bad(ErrorCode::BadRequest, why), permit);
                    return End::Closed;
                }
                Ok(Next::TooLong) => {
                    let why = format!(
                        "a line of more than {limit} bytes (limits.message_bytes); the connection is closed"
                    );
                    self.refuse(None, bad(ErrorCode::TooLong, why), permit);
                    return End::TooLong;
                }
                Err(e) => {
                    log::debug!(client = self.number; "cannot be read: {e}");
                    return End::Gone;
                }
            }
        }
    }

    /// Takes one line.
    fn take(self: &Rc<Self>, line: &[u8], permit: OwnedSemaphorePermit, who: (u32, Option<i32>)) {
        let (id, request) = match RequestFrame::from_json(line) {
            Ok(frame) => (frame.id, frame.request),
            Err((id, error)) => {
                let error = foreign_version(line).map_or(error, wrong_version);
                return self.refuse(id, error, permit);
            }
        };
        let bad = |code, why: &str| ErrorBody::new(code, why);
        match (request, self.peer.get()) {
            (Request::Hello { version, .. }, _) if version != PROTOCOL_VERSION => {
                self.refuse(Some(id), wrong_version(version), permit);
            }
            (Request::Hello { .. }, Some(_)) => {
                self.refuse(Some(id), bad(ErrorCode::BadRequest, "hello was said already"), permit);
            }
            (Request::Hello { client, .. }, None) => {
                let reply = self.welcome(&client, who);
                self.send(&Outgoing::Ok(id, Box::new(reply)), permit);
            }
            (_, None) => {
                let why = format!(
                    "say hello first: {{\"id\":1,\"request\":\"hello\",\"version\":{PROTOCOL_VERSION},\"client\":\"…\"}}"
                );
                self.refuse(Some(id), bad(ErrorCode::HelloFirst, &why), permit);
            }
            (request, Some(peer)) => {
                let open = Open::begin(Rc::clone(self), id, permit);
                tokio::task::spawn_local(open.run(peer.clone(), request));
            }
        }
    }

    fn welcome(&self, name: &str, (uid, pid): (u32, Option<i32>)) -> Reply {
        let name: String = name.chars().filter(|c| !is_unseen(*c)).take(NAME_CHARS).collect();
        log::info!(client = self.number, uid, pid, name = name.as_str(); "client connected");
        let _: &Peer = self.peer.get_or_init(|| Peer { client: self.number, uid, pid, name });
        Reply::Hello { version: PROTOCOL_VERSION, daemon: DAEMON.to_owned(), run: self.shared.run.clone() }
    }

    /// Whether the limit allows one more session.
    fn may_attach(&self, session: &SessionId) -> Result<(), ErrorBody> {
        let limit = self.shared.limits.attached;
        let mut attached = self.attached.borrow_mut();
        if attached.len() >= limit {
            // some may have been deleted
            attached.retain(|session| self.shared.hub.watches(session, self.number));
        }
        if attached.len() >= limit && !attached.contains(session) {
            let why = format!("already attached to {limit} sessions, the limit of a client; detach one");
            return Err(ErrorBody::new(ErrorCode::Limit, why));
        }
        Ok(())
    }

    fn seen(&self, after: Option<Position>) -> Seen {
        match after {
            None => Seen::Unsaid,
            Some(position) if position.run == self.shared.run => Seen::Upto(position.seq),
            Some(_) => Seen::OtherRun,
        }
    }

    /// No more events for this client, and nobody keeps any.
    fn leave(&self) {
        self.left.set(true);
        for session in self.attached.take() {
            self.shared.hub.detach(&session, self.number);
        }
        self.outbox.close();
    }

    /// Waits until no request is without a written answer.
    async fn all_answered(&self) {
        // an error would mean that the semaphore is closed, which never happens
        let _ = self.permits.acquire_many(self.in_flight).await;
    }

    /// The daemon ends: every request that still runs is answered now.
    fn answer_open(&self) {
        let open = self.open.take();
        for (id, permit) in open.into_values() {
            let why = "the daemon ends before the request has; whether it took effect is to be seen after its \
                       next start";
            self.send(&Outgoing::Error(Some(id), ErrorBody::new(ErrorCode::ShuttingDown, why)), permit);
        }
    }

    fn refuse(&self, id: Option<u64>, mut error: ErrorBody, permit: OwnedSemaphorePermit) {
        if error.message.len() > COMPLAINT_BYTES {
            error.message.truncate(error.message.floor_char_boundary(COMPLAINT_BYTES));
            error.message.push('…');
        }
        log::debug!(client = self.number, code:? = error.code; "refused: {}", error.message);
        self.send(&Outgoing::Error(id, error), permit);
    }

    fn send(&self, message: &Outgoing, permit: OwnedSemaphorePermit) {
        match message.to_line() {
            Ok(line) => self.outbox.answer(line, permit),
            Err(e) => log::error!(client = self.number; "an answer cannot be written: {e}"),
        }
    }
}

/// A request that runs. However it ends, even in a panic, it is answered exactly once.
struct Open<S: Service> {
    connection: Rc<Connection<S>>,
    key: u64,
}

impl<S: Service> Open<S> {
    fn begin(connection: Rc<Connection<S>>, id: u64, permit: OwnedSemaphorePermit) -> Self {
        let key = connection.opened.get();
        connection.opened.set(key.wrapping_add(1));
        connection.open.borrow_mut().insert(key, (id, permit));
        Self { connection, key }
    }

    async fn run(self, peer: Peer, request: Request) {
        match request {
            Request::Attach { session, after, approves } => self.attach(&session, after, approves).await,
            Request::Detach { session } => {
                let _in_order = self.connection.attaching.lock().await;
                self.connection.shared.hub.detach(&session, peer.client);
                self.connection.attached.borrow_mut().remove(&session);
                self.answer(Ok(Reply::Done {}));
            }
            request => {
                let service = Rc::clone(&self.connection.shared.service);
                let result = service.request(peer, request).await;
                self.answer(result);
            }
        }
    }

    async fn attach(&self, session: &SessionId, after: Option<Position>, approves: bool) {
        let connection = &self.connection;
        let _in_order = connection.attaching.lock().await;
        if let Err(error) = connection.may_attach(session) {
            return self.answer(Err(error));
        }
        match connection.shared.service.attach(session).await {
            // the client has left meanwhile: nobody would read its events
            Ok(_) if connection.left.get() => {}
            Ok(running) => {
                connection.attached.borrow_mut().insert(session.clone());
                let hub = &connection.shared.hub;
                let (number, outbox) = (connection.number, &connection.outbox);
                hub.attach(session, number, outbox, connection.seen(after), approves, |seq| {
                    self.answer(Ok(Reply::Attached { seq, running }));
                });
            }
            Err(error) => self.answer(Err(error)),
        }
    }

    fn answer(&self, result: Result<Reply, ErrorBody>) {
        // not there: it was answered already, or told that the daemon ends
        let Some((id, permit)) = self.connection.open.borrow_mut().remove(&self.key) else { return };
        let message = match result {
            Ok(reply) => Outgoing::Ok(id, Box::new(reply)),
            Err(error) => Outgoing::Error(Some(id), error),
        };
        self.connection.send(&message, permit);
    }
}

impl<S: Service> Drop for Open<S> {
    fn drop(&mut self) {
        let why = "the daemon failed while it worked on this request; its journal says where";
        self.answer(Err(ErrorBody::new(ErrorCode::Internal, why)));
    }
}

/// The version in a hello that has fields which this version does not know.
fn foreign_version(line: &[u8]) -> Option<u32> {
    let hello: serde_json::Value = serde_json::from_slice(line).ok()?;
    let version = hello.get("version")?.as_u64()?;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    (hello.get("request")? == "hello" && version != PROTOCOL_VERSION).then_some(version)
}

fn wrong_version(theirs: u32) -> ErrorBody {
    let why = format!(
        "this daemon ({DAEMON}) speaks version {PROTOCOL_VERSION} of the protocol, the client version {theirs}; \
         use a client and a daemon of the same release"
    );
    ErrorBody::new(ErrorCode::Version, why)
}
