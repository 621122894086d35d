//! `loopd serve`: from the configuration to ready, and from a signal to a clean end.

use std::cell::RefCell;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::agent::{Agent, Conversation, Events, StopReason};
use crate::channel::{self, ChannelError, ChannelLimits, HomeLock, Hub, Listener, SlotsLock};
use crate::config::{self, Config, Environment, KvAtShutdown, Limits};
use crate::model::Server;
use crate::proto::{EventKind, SessionId, TurnId};
use crate::store::{self, Catalog, OpenOptions, SlotFiles, StoreLimits, TornTail};

use super::args::Common;
use super::pin::{self, PinError};
use super::service::{About, Daemon, settings};
use super::sessions::Sessions;
use super::{EXIT_CONFIG, fail, footprint, journal};

/// What only another configuration mends: a restart does not.
#[derive(Debug)]
struct Unusable(String);

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

struct ToHub(Rc<Hub>);

impl Events for ToHub {
    fn publish(&self, session: &SessionId, turn: Option<TurnId>, kind: EventKind) {
        self.0.publish(session, turn, kind);
    }

    fn approvers(&self, session: &SessionId) -> usize {
        self.0.approvers(session)
    }
}

/// Runs the daemon until it is told to end. Exit status: 0 after an orderly end, 1 when it cannot run, 78
/// when it never can as it is configured here.
pub(super) fn serve(common: &Common) -> ExitCode {
    let config = match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(config) => config,
        Err(e) => return fail(EXIT_CONFIG, &e),
    };
    if let Err(e) = journal::init(config.daemon.log_level.into()) {
        return fail(1, &e);
    }
    if let Err(e) = store::ignore_sigxfsz() {
        return fail(1, &e);
    }
    let runtime = match store::Uring::runtime() {
        Ok(runtime) => runtime,
        Err(e) => {
            log::error!(EVENT = "io_uring_refused"; "{e}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    match runtime.block_on(run(config, common)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            log::error!("{e}");
            ExitCode::from(e.downcast_ref().map_or(1, PinError::status))
        }
    }
}

async fn run(config: Config, common: &Common) -> Result<(), Box<dyn std::error::Error>> {
    make_home(&config.daemon.home)?;
    let lock = HomeLock::take(&config.daemon.home)?;
    pin::check(&config.daemon, &lock)?;
    let slots = lock_slots(&config)?;
    let catalog = catalog(&config);
    catalog.sweep().await?;
    // who sees the socket may tell it to end: from here on that is received, and waits
    let signals = signals().map_err(|e| format!("signals cannot be received: {e}"))?;
    let listener = match Listener::from_systemd()? {
        Some(listener) => listener,
        None => Listener::bind(&config.daemon.socket, &lock)?,
    };
    let socket =
        listener.path().map_or_else(|| "a socket of systemd".to_owned(), |path| path.display().to_string());
    let limits = channel_limits(&config.limits);
    let run = SessionId::from_random(random()?).to_string();
    let hub = Hub::new(limits.clone());
    let home = config.daemon.home.display().to_string();
    let daemon = Rc::new(wire(config, catalog, Rc::clone(&hub)).map_err(|e| Unusable(e.to_string()))?);

    log::info!(EVENT = "ready"; "{} serves {home} on {socket}, slot {} of {}", super::status::DAEMON, daemon.about.slot, daemon.about.url);
    notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status("serving")]);
    let watchdog = tokio::task::spawn_local(watchdog());
    let stalls = tokio::task::spawn_local(watch_disk());
    let saver = Rc::clone(&daemon);
    let saving = tokio::task::spawn_local(async move { saver.agent.save_when_quiet().await });
    let holder = Rc::clone(&daemon);
    let idle = Duration::from_secs(holder.config.borrow().limits.idle_session_seconds);
    let closing = tokio::task::spawn_local(async move { holder.sessions.close_idle(idle).await });
    let reaping = tokio::task::spawn_local(crate::tool::reap_for_ever());
    let shrinking = tokio::task::spawn_local(footprint::shrink_when_quiet());
    let stop = until_told(Rc::clone(&daemon), common, signals);
    channel::serve(listener, Rc::clone(&daemon), hub, limits, run, async {
        stop.await;
        notify(&[sd_notify::NotifyState::Stopping]);
        // it may have been reloaded
        let seconds = daemon.config.borrow().limits.shutdown_seconds;
        end_turns(&daemon, Duration::from_secs(seconds)).await;
        daemon.tools.close().await;
    })
    .await?;
    // it waits for one that is being closed, too
    daemon.sessions.close_all().await;
    watchdog.abort();
    stalls.abort();
    saving.abort();
    closing.abort();
    reaping.abort();
    shrinking.abort();
    drop((lock, slots));
    log::info!(EVENT = "ended"; "loopd has ended in order");
    Ok(())
}

/// Takes the folder of saved slots, if it is configured and there. One that is missing is no reason not to
/// serve: it costs time, and `loopd check` tells.
fn lock_slots(config: &Config) -> Result<Option<SlotsLock>, ChannelError> {
    let Some(folder) = &config.model.slot_dir else { return Ok(None) };
    match SlotsLock::take(folder) {
        Ok(lock) => Ok(Some(lock)),
        Err(e @ ChannelError::SlotsHeld { .. }) => Err(e),
        Err(e) => {
            log::warn!(EVENT = "slot_unreadable"; "[model] slot_dir: {e}; nothing can be saved there");
            Ok(None)
        }
    }
}

/// Makes the home if it is not there, for its owner alone.
fn make_home(home: &Path) -> Result<(), Box<dyn std::error::Error>> {
    DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(|e| {
        format!(
            "the home {} cannot be made: {e}; set [daemon] home, or --home, to a folder that can",
            home.display()
        )
    })?;
    Ok(())
}

/// The sessions of the configured home.
pub(super) fn catalog(config: &Config) -> Catalog {
    let limits =
        StoreLimits { record_bytes: config.limits.record_bytes, session_bytes: config.limits.session_bytes };
    let torn_tail = match config.daemon.torn_tail {
        config::TornTail::Refuse => TornTail::Refuse,
        config::TornTail::Quarantine => TornTail::Quarantine,
    };
    Catalog::new(config.daemon.home.clone(), OpenOptions { limits, torn_tail })
}

/// A limit as a count of things in memory.
fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn channel_limits(limits: &Limits) -> ChannelLimits {
    ChannelLimits {
        message_bytes: size(limits.message_bytes),
        clients: size(limits.clients),
        queued_events: size(limits.queued_events),
        hello: Duration::from_secs(limits.hello_seconds),
        ..ChannelLimits::default()
    }
}

/// Connects the parts.
fn wire(config: Config, catalog: Catalog, hub: Rc<Hub>) -> Result<Daemon, Box<dyn std::error::Error>> {
    let key = config.model.read_api_key(&Environment::of_process())?.map(|key| {
        key.warning.iter().for_each(|warning| log::warn!("{warning}"));
        key.key.expose().to_owned()
    });
    let silence = Duration::from_secs(config.limits.server_silence_seconds);
    let server = Server::new(config.model.url.clone(), key, config.daemon.slot, silence);
    let tools = Rc::new(super::tools::registry(&config)?);
    let about = About {
        home: config.daemon.home.display().to_string(),
        slot: config.daemon.slot,
        url: config.model.url.to_string(),
        // a page of records must fit into a message, with room for its envelope
        export_bytes: config.limits.message_bytes / 2,
        name_bytes: 200,
        began: Instant::now(),
    };
    let slot_files = config.model.slot_dir.clone().map(SlotFiles::new);
    let most = size(config.limits.open_sessions);
    let events: Rc<dyn Events> = Rc::new(ToHub(Rc::clone(&hub)));
    let sessions = Sessions::new(catalog, most, Rc::clone(&events));
    let configured = (config.limits.clone(), settings(&config), config.tools.unattended);
    let agent = Agent::new(Rc::clone(&server), Rc::clone(&tools), slot_files, configured, events);
    Ok(Daemon {
        agent,
        tools,
        server,
        sessions,
        hub,
        config: RefCell::new(config),
        about,
        stop: tokio::sync::Notify::new(),
    })
}

/// Twelve bytes from the kernel.
fn random() -> Result<[u8; 12], getrandom::Error> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(states) {
        log::warn!("systemd could not be told the state: {e}");
    }
}

/// Pings systemd's watchdog from the thread that does all the work: when that hangs, so do the pings.
async fn watchdog() {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut every = tokio::time::interval((limit / 2).max(Duration::from_millis(10)));
    loop {
        every.tick().await;
        notify(&[sd_notify::NotifyState::Watchdog]);
    }
}

/// Says so in the journal when the disk holds up a write or a sync.
async fn watch_disk() {
    const SLOW: Duration = Duration::from_secs(5);
    let mut every = tokio::time::interval(SLOW);
    loop {
        every.tick().await;
        if let Some(age) = store::oldest_sync_age().filter(|age| *age >= SLOW) {
            let seconds = age.as_secs();
            log::warn!(EVENT = "disk_stalled", SECONDS = seconds; "the disk has not finished a write or sync for {seconds} s; its record is not acknowledged until it has");
        }
    }
}

/// The signals that loopd answers, received from now on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

fn signals() -> io::Result<Signals> {
    Ok(Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hangup: signal(SignalKind::hangup())?,
    })
}

/// Returns when a signal or a client says so; reloads what can be reloaded on SIGHUP.
async fn until_told(daemon: Rc<Daemon>, common: &Common, mut signals: Signals) {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return log::info!(EVENT = "stopping"; "told to end by SIGTERM"),
            _ = signals.interrupt.recv() => return log::info!(EVENT = "stopping"; "told to end by SIGINT"),
            () = daemon.stop.notified() => return,
            _ = signals.hangup.recv() => reload(&daemon, common),
        }
    }
}

fn reload(daemon: &Daemon, common: &Common) {
    notify(&[sd_notify::NotifyState::Reloading]);
    match Config::load(common.config.as_deref(), &common.overrides()) {
        Ok(new) => {
            let old = daemon.config.borrow().clone();
            let (applied, restart) = Config::reloadable_diff(&old, &new);
            let config = old.reloaded(&new);
            log::set_max_level(config.daemon.log_level.into());
            daemon.agent.configure(config.limits.clone(), settings(&config), config.tools.unattended);
            daemon.config.replace(config);
            let list = |keys: &[String]| if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
            let (applied, restart) = (list(&applied), list(&restart));
            log::info!(EVENT = "reloaded"; "the configuration was read anew; changed: {applied}; changed, but needs a restart: {restart}");
        }
        Err(e) => {
            log::error!(EVENT = "reload_failed"; "the configuration was not read anew, the old one stays: {e}")
        }
    }
    notify(&[sd_notify::NotifyState::Ready]);
}

/// Ends every turn durably, and saves the slot's cache, within the time that systemd gives.
async fn end_turns(daemon: &Daemon, grace: Duration) {
    let began = Instant::now();
    daemon.agent.stop_accepting();
    let stop = |conversation: Rc<Conversation>| {
        // an error says that it has ended by itself meanwhile
        tokio::task::spawn_local(async move { conversation.stop(StopReason::Shutdown).await })
    };
    let stopping: Vec<_> = daemon.sessions.running().into_iter().map(stop).collect();
    let ended = async {
        for stopped in stopping {
            let _ = stopped.await;
        }
    };
    let seconds = grace.as_secs();
    if tokio::time::timeout(grace, ended).await.is_err() {
        log::error!(EVENT = "stop_timed_out"; "a turn did not end within {seconds} s; it is closed when its session is used next");
        return;
    }
    if daemon.config.borrow().model.at_shutdown == KvAtShutdown::Save {
        // some of the time stays for the clients' last answers
        let left = grace.saturating_sub(began.elapsed()).mul_f32(0.75);
        if tokio::time::timeout(left, daemon.agent.save_slot()).await.is_err() {
            log::warn!(EVENT = "slot_not_saved"; "the slot's cache was not saved within [limits] shutdown_seconds ({seconds} s)");
        }
    }
}
