//! A scripted model server, a real daemon and a home. When a bench goes, its sessions are looked at: `checks`.

use std::fs;
use std::path::{Path, PathBuf};

use boxmaker::proto::{BaselineContent, LogRecord, SessionId, ToolOutcome};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::daemon::{Daemon, Ran, bxctl, loopd, socket_in};
use super::mounted;
use super::scripted_server::{ScriptedServer, text_of, tokens_of};
use super::talk::Talk;

/// The system prompt.
pub const SYSTEM: &str = "Be brief.";
/// What stands where the assistant said nothing.
pub const STAND_IN: &str = "(no answer)";
/// What a request for a summary has in its prompt.
pub const SUMMARISE: &str = "Summarise our conversation so far";
/// `n_predict` when nothing limits it further.
pub const COMPLETION_TOKENS: u64 = 4096;

/// Everything that a test runs, in a folder of its own that goes with it.
pub struct Bench {
    /// The running daemon, if any.
    pub daemon: Option<Daemon>,
    /// The model server.
    pub server: ScriptedServer,
    /// The test makes the cache fall short, so that tokens are evaluated again.
    pub loses_cache: bool,
    /// The test makes ids be replaced, so that the recorded ones are not the sampled ones.
    pub replaces_ids: bool,
    /// The test makes an answer of two requests fail in the second, whose prompt holds what is then not
    /// recorded.
    pub drops_half: bool,
    /// The home is gone already, and was checked before.
    pub gone: bool,
    home: PathBuf,
    dir: TempDir,
}

impl Bench {
    /// A model server and a daemon, both ready. `limits` are lines for `[limits]`.
    pub fn start(limits: &str) -> Self {
        Self::start_with(limits, |_| String::new())
    }

    /// The same, with tables that depend on the folder.
    pub fn start_with(limits: &str, tables: impl FnOnce(&Path) -> String) -> Self {
        let mut bench = Self::prepare(limits, tables);
        bench.start_daemon();
        bench
    }

    /// The same, with the daemon not yet started.
    pub fn prepare(limits: &str, tables: impl FnOnce(&Path) -> String) -> Self {
        let dir = tempfile::Builder::new().prefix("bx-").tempdir().expect("make a folder");
        let server = ScriptedServer::start();
        let slots = dir.path().join("slots");
        fs::create_dir(&slots).expect("make the folder for slots");
        server.set(|behaviour| behaviour.slot_dir = Some(slots.clone()));
        let home = dir.path().join("home");
        let config = format!(
            "[daemon]\nhome = {home:?}\nsocket = {socket:?}\n\n\
             [model]\nurl = {url:?}\nslot_dir = {slots:?}\nsystem_prompt = {SYSTEM:?}\n\n[limits]\n{limits}\n\n{tables}",
            socket = socket_in(dir.path()),
            url = server.url().to_string(),
            tables = tables(dir.path()),
        );
        fs::write(dir.path().join("loopd.toml"), config).expect("write the configuration");
        Self {
            daemon: None,
            server,
            loses_cache: false,
            replaces_ids: false,
            drops_half: false,
            gone: false,
            home,
            dir,
        }
    }

    /// The daemon's home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The folder with configuration and logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The daemon's process.
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it runs")
    }

    /// Starts the daemon after it has ended.
    pub fn start_daemon(&mut self) {
        assert!(self.daemon.is_none(), "it already runs");
        self.daemon = Some(Daemon::start(Path::new(env!("CARGO_BIN_EXE_loopd")), self.dir.path()));
    }

    /// SIGKILL for the daemon.
    pub fn kill_daemon(&mut self) {
        self.daemon.take().expect("it runs").kill();
    }

    /// A client.
    pub fn talk(&self) -> Talk {
        Talk::connect(&socket_in(self.dir.path()))
    }

    /// Runs `bxctl`.
    pub fn ctl(&self, arguments: &[&str]) -> Ran {
        Ran::new(bxctl(&socket_in(self.dir.path()), arguments), None)
    }

    /// Runs `loopd repair --yes`, which must go well; gives what it said.
    pub fn repair(&self, session: &SessionId) -> String {
        mounted::run(&mut loopd(self.dir(), "repair", &[session.as_str(), "--yes"]))
            .expect("the session is repaired")
    }

    /// The session's records over all epochs, read from the disk.
    pub fn records(&self, session: &SessionId) -> Vec<LogRecord> {
        (0..self.epochs(session)).flat_map(|epoch| self.epoch_records(session, epoch)).collect()
    }

    /// How many epochs the session has.
    pub fn epochs(&self, session: &SessionId) -> u32 {
        let dir = self.home.join("sessions").join(session.as_str());
        let epochs = (0..).take_while(|epoch: &u32| dir.join(format!("{epoch}.jsonl")).exists());
        u32::try_from(epochs.count()).expect("a number").max(1)
    }

    /// The records of one epoch.
    pub fn epoch_records(&self, session: &SessionId, epoch: u32) -> Vec<LogRecord> {
        records_in(&self.home, session.as_str(), epoch)
    }

    /// The session's log in short words, one a record.
    pub fn log(&self, session: &SessionId) -> Vec<String> {
        self.records(session).iter().map(in_words).collect()
    }

    /// The log of the session's first epoch.
    pub fn log_path(&self, session: &SessionId) -> PathBuf {
        self.home.join("sessions").join(session.as_str()).join("0.jsonl")
    }

    /// The bytes of the log of the session's first epoch.
    pub fn log_bytes(&self, session: &SessionId) -> Vec<u8> {
        fs::read(self.log_path(session)).expect("read the log")
    }

    /// The kinds of the session's records, an append each.
    pub fn appends(&self, session: &SessionId) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.log_path(session)).expect("read the log");
        let (mut appends, mut kinds) = (Vec::new(), Vec::new());
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).expect("each line is JSON");
            kinds.push(line["type"].as_str().expect("a kind").to_owned());
            if line["more"].is_null() {
                appends.push(std::mem::take(&mut kinds));
            }
        }
        appends
    }

    /// The baseline of the session's first epoch.
    pub fn baseline(&self, session: &SessionId) -> BaselineContent {
        self.epoch_baseline(session, 0)
    }

    /// The baseline of one epoch.
    pub fn epoch_baseline(&self, session: &SessionId, epoch: u32) -> BaselineContent {
        let path = self.home.join("sessions").join(session.as_str()).join(format!("{epoch}.baseline.json"));
        serde_json::from_slice(&fs::read(path).expect("read the baseline")).expect("a baseline")
    }

    /// The results that the session's tools gave, in order.
    pub fn results(&self, session: &SessionId) -> Vec<(ToolOutcome, String)> {
        let records = self.records(session).into_iter();
        let results = records.filter_map(|record| match record {
            LogRecord::ToolResult(result) => Some((result.outcome, result.content)),
            _ => None,
        });
        results.collect()
    }

    /// The detail of the session's last `turn_end`.
    pub fn last_end(&self, session: &SessionId) -> String {
        let records = self.records(session);
        let last = records.iter().rev().find_map(|record| match record {
            LogRecord::TurnEnd(end) => Some(end.detail.clone().unwrap_or_default()),
            _ => None,
        });
        last.expect("a turn_end")
    }

    /// The prompts that the server was sent for this session, as text, without the head.
    pub fn prompts(&self, session: &SessionId) -> Vec<String> {
        let head = self.baseline(session).framing.head.len();
        self.prompt_ids(session).iter().map(|prompt| text_of(&prompt[head..])).collect()
    }

    /// The prompts that the server was sent for this session, over all epochs. Sessions are told apart by their
    /// first message, which must be another in each.
    pub fn prompt_ids(&self, session: &SessionId) -> Vec<Vec<u32>> {
        (0..self.epochs(session)).flat_map(|epoch| self.epoch_prompts(session, epoch)).collect()
    }

    /// The prompts of one epoch; among them those that asked for a summary of it.
    pub fn epoch_prompts(&self, session: &SessionId, epoch: u32) -> Vec<Vec<u32>> {
        let begins = |prompt: &Vec<u32>, epoch| {
            self.beginning(session, epoch).is_some_and(|begin| prompt.starts_with(&begin))
        };
        // one that took everything over word for word begins as the one before
        let later = |prompt: &Vec<u32>| (epoch + 1..self.epochs(session)).any(|later| begins(prompt, later));
        let prompts = self.server.prompts().into_iter();
        prompts.filter(|prompt| begins(prompt, epoch) && !later(prompt)).collect()
    }

    fn beginning(&self, session: &SessionId, epoch: u32) -> Option<Vec<u32>> {
        let framing = self.epoch_baseline(session, epoch).framing;
        let first = self.epoch_records(session, epoch).into_iter().find_map(|record| match record {
            LogRecord::Carried(carried) => Some(carried.prompt_ids.0),
            LogRecord::UserMessage(message) => {
                Some([&tokens_of(&message.text, false)[..], &framing.user_close.0].concat())
            }
            _ => None,
        })?;
        Some([framing.head.0, first].concat())
    }

    /// What must be in the body of a completion request with this prompt (text after the head).
    pub fn body(&self, session: &SessionId, prompt: &str, n_predict: u64) -> Value {
        let ids = [&self.baseline(session).framing.head.0[..], &tokens_of(prompt, true)].concat();
        let mut body = json!({
            "prompt": ids, "id_slot": 0, "cache_prompt": true, "return_tokens": true, "stream": true,
            "return_progress": true, "n_predict": n_predict, "preserved_tokens": preserved(&self.server),
        });
        // what keeps a call well formed; that it is there, and when, is checked for every request
        let sent = self.server.completions();
        let sent = sent.first().and_then(Value::as_object).into_iter().flatten();
        for (key, value) in sent.filter(|(key, _)| key.starts_with("grammar")) {
            body[key] = value.clone();
        }
        body
    }

    /// All sessions on the disk.
    pub fn sessions(&self) -> Vec<SessionId> {
        let Ok(entries) = fs::read_dir(self.home.join("sessions")) else { return Vec::new() };
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"));
        // what was moved away, or is half done, has a name with a point in front
        let names = names.filter(|name| !name.starts_with('.'));
        names.map(|name| name.parse().expect("a session's id")).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() && !self.gone {
            self.check();
        }
    }
}

fn preserved(server: &ScriptedServer) -> Value {
    server.completions().first().map(|body| body["preserved_tokens"].clone()).unwrap_or_default()
}

/// A record in short words.
pub fn in_words(record: &LogRecord) -> String {
    let word = |value: Value| value.as_str().expect("a word").to_owned();
    match record {
        LogRecord::SessionStart(_) => "session_start".to_owned(),
        LogRecord::UserMessage(m) => format!("user {}: {}", m.turn, m.text),
        LogRecord::AssistantMessage(m) => {
            let calls = m.tool_calls.iter().map(|c| format!(" + {} {} {}", c.call, c.name, c.arguments));
            let finish = word(json!(m.finish));
            format!("assistant {} {finish}: {}{}", m.turn, m.text, calls.collect::<String>())
        }
        LogRecord::ToolStart(r) => format!("tool_start {} {}", r.call, r.name),
        LogRecord::ToolResult(r) => format!("tool_result {} {} {}", r.call, r.name, word(json!(r.outcome))),
        LogRecord::Usage(r) => format!("usage {}", r.turn),
        LogRecord::TurnEnd(r) => format!("turn_end {} {}", r.turn, word(json!(r.outcome))),
        other => other.kind().to_owned(),
    }
}

/// A bench, a client and a session without a turn.
pub fn begun(limits: &str) -> (Bench, Talk, SessionId) {
    begun_with(limits, |_| String::new())
}

/// The same, with tables that depend on the folder.
pub fn begun_with(limits: &str, tables: impl FnOnce(&Path) -> String) -> (Bench, Talk, SessionId) {
    let bench = Bench::start_with(limits, tables);
    let mut talk = bench.talk();
    let id = talk.create();
    (bench, talk, id)
}

/// The records of a session's epoch, as they are on the disk.
pub fn records_in(home: &Path, session: &str, epoch: u32) -> Vec<LogRecord> {
    let path = home.join("sessions").join(session).join(format!("{epoch}.jsonl"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let read = |line: &str| {
        let mut value: Value = serde_json::from_str(line).expect("each line is JSON");
        let map = value.as_object_mut().expect("each line is an object");
        // what belongs to the line, not to the record
        map.retain(|key, _| !["prev", "back", "more", "crc"].contains(&key.as_str()));
        serde_json::from_value(value).unwrap_or_else(|e| panic!("{e}: {line}"))
    };
    text.lines().map(read).collect()
}

/// The first message "Hello", and the question to the assistant, as they follow the head.
pub const HELLO: &str = "Hello<|im_end|>\n<|im_start|>assistant\n";

/// The prompt after what was said, with one more message.
pub fn next(before: &str, said: &str, message: &str) -> String {
    format!("{before}{said}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n")
}
