//! Accepts clients, and ends in order.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use nix::errno::Errno;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::connection::Connection;
use super::hub::Place;
use super::{ChannelError, ChannelLimits, Hub, Listener};
use crate::proto::{ErrorBody, ErrorCode, Outgoing, Reply, Request, SessionId};

/// How long accepting rests when there is no descriptor or memory for one more client.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// What closing the clients may take beyond [`ChannelLimits::flush`].
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The client's number: 1, 2, 3, … in this run of the daemon.
    pub client: u64,
    /// Its user, as the kernel says.
    pub uid: u32,
    /// Its process, as the kernel says.
    pub pid: Option<i32>,
    /// Its name and version, as it says itself.
    pub name: String,
}

/// What answers the requests. `hello`, `attach` and `detach` are the channel's own and never arrive in
/// [`Service::request`].
pub trait Service: 'static {
    /// Answers a request. Runs to its end even when the client goes away meanwhile; requests of one
    /// client run side by side.
    fn request(
        self: Rc<Self>,
        peer: Peer,
        request: Request,
    ) -> impl Future<Output = Result<Reply, ErrorBody>>;

    /// Whether a process of user `uid` may be a client at all; asked once, when it connects.
    ///
    /// # Errors
    /// What it is told instead.
    fn admit(&self, _pid: i32, _uid: u32) -> Result<(), ErrorBody> {
        Ok(())
    }

    /// Whether a session may be attached to, and whether a turn of it runs or waits.
    fn attach(&self, session: &SessionId) -> impl Future<Output = Result<bool, ErrorBody>>;
}

/// What all connections of a server share.
pub(super) struct Shared<S> {
    pub(super) service: Rc<S>,
    pub(super) hub: Rc<Hub>,
    pub(super) limits: ChannelLimits,
    pub(super) run: String,
    /// True from when the server stops.
    pub(super) stopping: watch::Receiver<bool>,
}

/// Accepts clients until `stop` is ready; then removes the socket, gives unfinished requests and unread
/// answers [`ChannelLimits::flush`] to get through, and closes all clients.
///
/// `run` names this run of the daemon: the numbers of events begin anew with each. Must run in a tokio
/// `LocalSet`, with the clients' tasks. Errors of `accept` end nothing: it rests and goes on.
///
/// # Errors
/// Only where the socket cannot be registered with the runtime.
pub async fn serve<S: Service>(
    listener: Listener,
    service: Rc<S>,
    hub: Rc<Hub>,
    limits: ChannelLimits,
    run: String,
    stop: impl Future,
) -> Result<(), ChannelError> {
    let path = listener.path().map(ToOwned::to_owned).unwrap_or_default();
    let (socket, file) =
        listener.into_tokio().map_err(|source| ChannelError::Bind { path, step: "register", source })?;
    let (stopping_now, stopping) = watch::channel(false);
    let shared = Rc::new(Shared { service, hub, limits, run, stopping });
    let mut connections = JoinSet::new();
    let mut accepted: u64 = 0;
    let short = Cell::new(false);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            biased;
            _ = &mut stop => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => report(ended),
            stream = accept(&socket, &short) => {
                accepted = accepted.saturating_add(1);
                match place(&shared, &stream) {
                    Ok(place) => {
                        let connection = Connection::new(Rc::clone(&shared), accepted);
                        connections.spawn_local(connection.run(stream, place));
                    }
                    Err(error) => turn_away(&stream, accepted, error),
                }
            }
        }
    }
    drop((socket, file));
    stopping_now.send_replace(true);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    if tokio::time::timeout(shared.limits.flush.saturating_add(CLOSE_GRACE), all_ended).await.is_err() {
        let still = connections.len();
        log::warn!(connections = still; "requests that did not end are left behind");
        connections.abort_all();
    }
    Ok(())
}

fn report(ended: Result<(), JoinError>) {
    if let Err(e) = ended
        && e.is_panic()
    {
        log::error!("a connection failed, a defect: {e}");
    }
}

/// The next client, however long the descriptors are used up.
async fn accept(socket: &UnixListener, short: &Cell<bool>) -> UnixStream {
    loop {
        match socket.accept().await {
            Ok((stream, _)) => {
                if short.replace(false) {
                    log::info!("clients are accepted again");
                }
                return stream;
            }
            Err(e) if is_the_clients(&e) => {}
            Err(e) => {
                if !short.replace(true) {
                    log::error!("no client can be accepted: {e}; trying on");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether only that one client is affected, which has gone already.
fn is_the_clients(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ECONNABORTED | Errno::EINTR | Errno::EPROTO))
}

/// A place for a client, if it may have one.
fn place<S: Service>(shared: &Shared<S>, stream: &UnixStream) -> Result<Place, ErrorBody> {
    if let Ok(peer) = stream.peer_cred()
        && let Some(pid) = peer.pid()
    {
        shared.service.admit(pid, peer.uid())?;
    }
    let most = shared.limits.clients;
    shared.hub.enter(most).ok_or_else(|| {
        let why = format!(
            "the daemon already has {most} clients, its limit (limits.clients); close one, or raise the limit"
        );
        ErrorBody::new(ErrorCode::Limit, why)
    })
}

/// Tells a client why it is none. Its queue is empty, so the line fits without waiting.
fn turn_away(stream: &UnixStream, client: u64, error: ErrorBody) {
    let uid = stream.peer_cred().map(|peer| peer.uid()).ok();
    log::warn!(client, uid; "a client is turned away: {}", error.message);
    if let Ok(line) = Outgoing::Error(None, error).to_line()
        && let Err(e) = stream.try_write(&line)
    {
        log::debug!(client; "it could not be told: {e}");
    }
}
