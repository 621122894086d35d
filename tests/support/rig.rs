//! A model server, a daemon and a home, and the questions that every test asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use boxmaker::proto::TokenIds;
use serde_json::Value;
use tempfile::TempDir;

use super::daemon::{Daemon, Ran, Watched, bxctl, socket_in};
use super::real_server::{Kind, ModelServer};

/// The context of the model server, in tokens.
pub const CONTEXT: u32 = 2048;

/// Everything that a test runs, in a folder of its own that goes with it.
pub struct Rig {
    /// The running daemon, if any.
    pub daemon: Option<Daemon>,
    /// The model server.
    pub server: ModelServer,
    program: PathBuf,
    dir: TempDir,
}

impl Rig {
    /// A model server and a daemon, both ready. `limits` are lines for `[limits]`. `None` when the test is
    /// skipped.
    pub fn start(limits: &str) -> Option<Self> {
        Self::start_program(Path::new(env!("CARGO_BIN_EXE_loopd")), limits)
    }

    /// The same with another build of the daemon.
    pub fn start_program(program: &Path, limits: &str) -> Option<Self> {
        Self::start_all(program, limits, (CONTEXT, Kind::default()))
    }

    /// The same with a context of so many tokens.
    pub fn start_small(context: u32, limits: &str) -> Option<Self> {
        let program = Path::new(env!("CARGO_BIN_EXE_loopd"));
        Self::start_all(program, limits, (context, Kind::default()))
    }

    /// The same with another kind of model server.
    pub fn start_kind(limits: &str, kind: Kind) -> Option<Self> {
        Self::start_all(Path::new(env!("CARGO_BIN_EXE_loopd")), limits, (CONTEXT, kind))
    }

    fn start_all(program: &Path, limits: &str, (context, kind): (u32, Kind)) -> Option<Self> {
        let dir = tempfile::Builder::new().prefix("bx-").tempdir().expect("make a folder");
        let server = ModelServer::start_kind(dir.path(), context, kind)?;
        let mut rig = Self { daemon: None, server, program: program.to_owned(), dir };
        // temperature 0 makes a run like the one before, as far as the machine allows
        let config = format!(
            "[daemon]\nhome = {home:?}\nsocket = {socket:?}\n\n[model]\nurl = {url:?}\nslot_dir = {slots:?}\n\n\
             [model.sampling]\ntemperature = 0.0\nseed = 1\n\n[limits]\n{limits}\n",
            home = rig.home(),
            socket = socket_in(rig.dir.path()),
            url = rig.server.url(),
            slots = rig.server.slots(),
        );
        fs::write(rig.dir.path().join("loopd.toml"), config).expect("write the configuration");
        rig.start_daemon();
        Some(rig)
    }

    /// The daemon's home.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// The folder with configuration and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the daemon after it has ended.
    pub fn start_daemon(&mut self) {
        assert!(self.daemon.is_none(), "it already runs");
        self.daemon = Some(Daemon::start(&self.program, self.dir.path()));
    }

    /// SIGKILL for the daemon.
    pub fn kill_daemon(&mut self) {
        self.daemon.take().expect("it runs").kill();
    }

    /// SIGKILL for the daemon, and a new one.
    pub fn replace_daemon(&mut self) {
        self.kill_daemon();
        self.start_daemon();
    }

    /// SIGKILL for the model server, and a new one.
    pub fn replace_server(&mut self) {
        self.server.kill();
        self.server.run();
    }

    /// Runs `bxctl`.
    pub fn ctl(&self, arguments: &[&str]) -> Ran {
        Ran::new(bxctl(&socket_in(self.dir.path()), arguments), None)
    }

    /// Runs `bxctl` with `input` as its standard input.
    pub fn ctl_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        Ran::new(bxctl(&socket_in(self.dir.path()), arguments), Some(input))
    }

    /// Runs `bxctl` and follows what it prints.
    pub fn watch(&self, arguments: &[&str]) -> Watched {
        Watched::new(bxctl(&socket_in(self.dir.path()), arguments))
    }

    /// The first turn of a new session, to its end: the session's id, and the turn's answer.
    pub fn first_turn(&self, text: &str) -> (String, String) {
        let events = finished(&self.ctl(&["send", "--new", "--json", text]));
        let id = events[0]["session"].as_str().expect("events name their session").to_owned();
        (id, answer(&events))
    }

    /// A further turn, to its end: its answer.
    pub fn turn(&self, session: &str, text: &str) -> String {
        answer(&finished(&self.ctl(&["send", "--session", session, "--json", text])))
    }

    /// The rows of `bxctl usage`.
    pub fn usage(&self, session: &str) -> Vec<Value> {
        array(self.ctl(&["usage", session, "--json"]).json())
    }

    /// The session's entry in `bxctl sessions`.
    pub fn session(&self, session: &str) -> Value {
        let all = array(self.ctl(&["sessions", "--json"]).json());
        all.into_iter().find(|info| info["id"] == session).expect("the session is listed")
    }

    /// All records, as the daemon tells them.
    pub fn records(&self, session: &str) -> Vec<Value> {
        array(self.ctl(&["show", session, "--json"]).json())
    }

    /// The bytes of the log of the session's first epoch.
    pub fn log_bytes(&self, session: &str) -> Vec<u8> {
        fs::read(self.home().join("sessions").join(session).join("0.jsonl")).expect("read the log")
    }

    /// How many epochs the session has.
    pub fn epochs(&self, session: &str) -> u32 {
        let dir = self.home().join("sessions").join(session);
        let epochs = (0..).take_while(|n: &u32| dir.join(format!("{n}.jsonl")).exists());
        u32::try_from(epochs.count()).expect("a number")
    }

    /// The kept slots of a session: the server's files that have a manifest.
    pub fn kept_slots(&self, session: &str) -> Vec<PathBuf> {
        let names = fs::read_dir(self.server.slots()).expect("the folder of slots");
        let paths = names.map(|entry| entry.expect("an entry").path());
        let mut kept: Vec<_> = paths
            .filter(|path| {
                path.extension().is_some_and(|e| e == "kv") && path.with_extension("json").exists()
            })
            .filter(|path| {
                path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{session}.")))
            })
            .collect();
        kept.sort();
        kept
    }

    /// How many tokens the session's kept slot holds.
    pub fn saved_tokens(&self, session: &str) -> u64 {
        let tokens = |path: &PathBuf| {
            let json = fs::read_to_string(path.with_extension("json")).unwrap_or_default();
            serde_json::from_str::<Value>(&json).ok().and_then(|m| m["tokens"].as_u64())
        };
        self.kept_slots(session).iter().filter_map(tokens).max().unwrap_or(0)
    }

    /// Waits until a kept slot holds what the session has in its context.
    pub fn wait_until_saved(&self, session: &str) {
        let context = self.session(session)["context_n"].as_u64().expect("a number");
        let saved = || self.saved_tokens(session) + 1 >= context;
        super::wait_until(Duration::from_secs(20), "the slot is saved", saved);
    }

    /// Changes a line of the configuration, from the next start or reload of the daemon on.
    pub fn reconfigure(&self, from: &str, to: &str) {
        let path = self.dir.path().join("loopd.toml");
        let text = fs::read_to_string(&path).expect("read the configuration");
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replacen(from, to, 1)).expect("write the configuration");
    }

    /// All records, as they are on the disk.
    pub fn log(&self, session: &str) -> Vec<Value> {
        let text = String::from_utf8(self.log_bytes(session)).expect("a log is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
    }

    /// The baseline, as it is on the disk.
    pub fn baseline(&self, session: &str) -> Value {
        let path = self.home().join("sessions").join(session).join("0.baseline.json");
        serde_json::from_slice(&fs::read(path).expect("read the baseline")).expect("a baseline is JSON")
    }

    /// The promise: in no turn was a token evaluated that had been evaluated before. `turns` is how many rows
    /// there must be, so that an empty table shows nothing.
    pub fn assert_nothing_evaluated_twice(&self, session: &str, turns: usize) {
        let rows = self.usage(session);
        assert_eq!(rows.len(), turns, "{rows:#?}");
        nothing_evaluated_twice(session, &rows);
    }

    /// What was acknowledged before is still there, byte for byte, and at the same place.
    pub fn assert_log_begins_with(&self, session: &str, before: &[u8]) {
        let now = self.log_bytes(session);
        assert!(now.starts_with(before), "the log of {session} lost or changed acknowledged records");
    }
}

/// The events of a turn that ended as it should: done, or at the limit of tokens that the test set.
pub fn finished(ran: &Ran) -> Vec<Value> {
    let events = ran.events();
    let end = events.last().unwrap_or_else(|| panic!("no events: {ran:?}"));
    assert_eq!(end["event"], "turn_end", "{ran:?}");
    assert_eq!(end["certainty"], "durable", "{ran:?}");
    let code = if end["outcome"] == "done" { 0 } else { 1 };
    assert!(end["outcome"] == "done" || end["outcome"] == "limit", "{ran:?}");
    assert_eq!(ran.code, code, "{ran:?}");
    events
}

/// The promise, in these rows of a session's usage.
pub fn nothing_evaluated_twice(session: &str, rows: &[Value]) {
    for row in rows {
        let n = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {row:#?}"));
        assert_eq!(n("lost_n"), 0, "tokens were evaluated again in {session}: {rows:#?}");
        // the token sampled last before was never evaluated; of each completion that is one at most
        let spare = n("completions").max(1);
        assert!(n("prompt_n") <= n("new_n") + spare, "more than what is new in {session}: {rows:#?}");
        assert!(row["seconds"].as_f64().is_some_and(|s| s >= 0.0), "{row:#?}");
    }
}

/// The answer's text in a turn's events.
pub fn answer(events: &[Value]) -> String {
    events.iter().filter(|e| e["event"] == "text").filter_map(|e| e["text"].as_str()).collect()
}

/// The records of one kind.
pub fn of_kind<'a>(records: &'a [Value], kind: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["type"] == kind).collect()
}

/// Token ids in their compact form, read.
pub fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value::<TokenIds>(value.clone()).expect("token ids").0
}

fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        other => panic!("an array was expected: {other:#}"),
    }
}
