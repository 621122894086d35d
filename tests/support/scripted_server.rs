//! A scripted llama-server, for faults that a real one does not give on demand.
//!
//! It runs on a thread of its own, so it serves any runtime, and child processes too. It keeps a slot's
//! cache as the real one does (what `prompt_progress.cache` says is true unless a script lies), loses ids
//! inside characters of several bytes as the real one does, and records all requests.
//!
//! Its tokenizer: each byte `b` is the token `3 + b`; `<|im_start|>` is 1 and `<|im_end|>`, the
//! end of generation, is 2. Its chat template is ChatML without tools.
//!
//! ```ignore
//! #[path = "support/scripted_server.rs"]
//! mod scripted_server;
//!
//! let server = ScriptedServer::start();                 // answers "ok" to everything, on a Unix socket
//! server.push(Script::say("Hello!"));                   // what the next completion brings …
//! server.push(Script::new().progress().text("Hel").cut());          // … and the one after
//! server.set(|b| b.health = Health::Loading);           // from now on
//! let client = Server::new(server.url(), None, 0, Duration::from_secs(5));
//! assert_eq!(server.prompts(), [[1, 2, 3]]);            // what it was asked
//! ```

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use boxmaker::config::ModelUrl;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
    BufReader,
};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

/// The token that ends a generation.
pub const EOG: u32 = 2;

const SPECIAL: [(&str, u32); 2] = [("<|im_start|>", 1), ("<|im_end|>", EOG)];
const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

/// The ids of a text.
pub fn tokens_of(text: &str, parse_special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, next)) = rest.split_first() {
        let special = SPECIAL.iter().filter(|_| parse_special);
        match special.filter_map(|(word, id)| Some((rest.strip_prefix(word.as_bytes())?, *id))).next() {
            Some((after, id)) => {
                ids.push(id);
                rest = after;
            }
            None => {
                ids.push(3 + u32::from(*byte));
                rest = next;
            }
        }
    }
    ids
}

/// The text of ids.
pub fn text_of(ids: &[u32]) -> String {
    let mut bytes = Vec::new();
    for id in ids {
        match SPECIAL.iter().find(|(_, special)| special == id) {
            Some((word, _)) => bytes.extend(word.bytes()),
            None => bytes.push(u8::try_from(id - 3).unwrap()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// How the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It answers.
    Ready,
    /// Every request gets 503.
    Loading,
    /// Every request gets this status and message.
    Error(u16, String),
    /// Connections are closed without an answer.
    Hangup,
    /// Connections are taken, and nothing is ever answered.
    Mute,
    /// Every request gets these bytes instead of HTTP.
    Garbage(Vec<u8>),
}

/// What the server tells about itself; change it with [`ScriptedServer::set`].
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub health: Health,
    pub n_ctx: u64,
    pub total_slots: u64,
    /// Needed as bearer key, when there is one; not for `/health`.
    pub api_key: Option<String>,
    /// Whether `/slots` is there.
    pub slots: bool,
    /// Where slots are saved; without it, saving gives 501.
    pub slot_dir: Option<PathBuf>,
    pub is_sleeping: bool,
    /// The template's text, as `/props` tells it; only read for what it says about tools and reasoning.
    pub template: String,
    /// What `/apply-template` ends with.
    pub generation_prompt: String,
    /// Messages of this role are refused by `/apply-template`.
    pub refused_role: Option<String>,
    pub model_path: String,
    /// Requests to this path are taken and never answered.
    pub mute: Option<String>,
}

/// A completion that was generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// From what.
    pub prompt: Vec<u32>,
    /// All ids that were sampled, those that no event told of included.
    pub sampled: Vec<u32>,
}

/// What one completion does, step by step.
#[derive(Debug, Clone, Default)]
pub struct Script {
    steps: Vec<Step>,
    claimed_cache: Option<u64>,
}

#[derive(Debug, Clone)]
enum Step {
    Progress,
    Text(String),
    Id(String, u32),
    Lose(u64),
    Raw(String),
    Stall(Duration),
    /// Waits until the gate of this name is opened.
    Gate(&'static str),
    Status(u16, Value),
    /// The connection closes before an answer begins.
    Hangup,
    Final(&'static str),
    /// The connection closes in the middle of the body.
    Cut,
    /// The body ends as it should, whatever came before.
    EndBody,
}

impl Script {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole answer, ended by the model.
    pub fn say(text: &str) -> Self {
        Self::new().progress().text(text).eog()
    }

    /// An HTTP error instead of a stream.
    pub fn status(code: u16, kind: &str, message: &str) -> Self {
        let body = json!({"error": {"code": code, "message": message, "type": kind}});
        Self::new().step(Step::Status(code, body))
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Says that the prompt is evaluated.
    pub fn progress(self) -> Self {
        self.step(Step::Progress)
    }

    /// Claims so many cached tokens, whatever the cache really holds.
    pub fn cache(mut self, tokens: u64) -> Self {
        self.claimed_cache = Some(tokens);
        self
    }

    /// Generates a text, an event for each character; of a character of several tokens only the last id
    /// is sent.
    pub fn text(self, text: &str) -> Self {
        self.step(Step::Text(text.to_owned()))
    }

    /// Generates one token with this text and id.
    pub fn token(self, text: &str, id: u32) -> Self {
        self.step(Step::Id(text.to_owned(), id))
    }

    /// Generates tokens of which no event tells.
    pub fn lose(self, tokens: u64) -> Self {
        self.step(Step::Lose(tokens))
    }

    /// The model ends its turn.
    pub fn eog(self) -> Self {
        self.step(Step::Id(String::new(), EOG)).step(Step::Final("eos"))
    }

    /// The last event, with another reason: `limit`, `word`, `none`.
    pub fn stop(self, kind: &'static str) -> Self {
        self.step(Step::Final(kind))
    }

    /// A sign of life without meaning.
    pub fn comment(self) -> Self {
        self.raw(":\n\n")
    }

    /// An error inside the stream.
    pub fn error(self, code: u16, message: &str) -> Self {
        let error = json!({"error": {"code": code, "message": message, "type": "server_error"}});
        self.raw(&format!("data: {error}\n\n")).step(Step::EndBody)
    }

    /// Bytes of the body, as they are.
    pub fn raw(self, bytes: &str) -> Self {
        self.step(Step::Raw(bytes.to_owned()))
    }

    /// Sends nothing for a while.
    pub fn stall(self, time: Duration) -> Self {
        self.step(Step::Stall(time))
    }

    /// Sends nothing until [`ScriptedServer::open`] opens this gate, or the client goes.
    pub fn gate(self, name: &'static str) -> Self {
        self.step(Step::Gate(name))
    }

    /// Closes the connection before an answer begins; only as the first step.
    pub fn hang_up() -> Self {
        Self::new().step(Step::Hangup)
    }

    /// Closes the connection.
    pub fn cut(self) -> Self {
        self.step(Step::Cut)
    }

    /// Ends the body in order, without a last event.
    pub fn end_body(self) -> Self {
        self.step(Step::EndBody)
    }
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub method: String,
    pub path: String,
    /// Name (lower case) and value.
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

#[derive(Debug)]
struct Shared {
    behaviour: Behaviour,
    scripts: VecDeque<Script>,
    requests: Vec<Recorded>,
    generated: Vec<Generated>,
    opened: Vec<&'static str>,
    at_a_gate: bool,
    cache: Vec<u32>,
    touched: bool,
    processing: bool,
    hangups: usize,
}

type State = Arc<Mutex<Shared>>;

fn lock(state: &State) -> MutexGuard<'_, Shared> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The running server; ends with the value.
pub struct ScriptedServer {
    state: State,
    url: ModelUrl,
    dir: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ScriptedServer {
    /// On a Unix socket in a folder of its own.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("llama.sock");
        Self::run(dir, ModelUrl::Unix(path))
    }

    /// On a free TCP port.
    pub fn start_tcp() -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let url = ModelUrl::Http { host: "127.0.0.1".to_owned(), port: free, path: String::new() };
        Self::run(tempfile::tempdir().unwrap(), url)
    }

    fn run(dir: tempfile::TempDir, url: ModelUrl) -> Self {
        let behaviour = Behaviour {
            health: Health::Ready,
            n_ctx: 65_536,
            total_slots: 1,
            api_key: None,
            slots: true,
            slot_dir: None,
            is_sleeping: false,
            template: CHATML.to_owned(),
            generation_prompt: "<|im_start|>assistant\n".to_owned(),
            refused_role: None,
            model_path: "/models/scripted.gguf".to_owned(),
            mute: None,
        };
        let state = Arc::new(Mutex::new(Shared {
            behaviour,
            scripts: VecDeque::new(),
            requests: Vec::new(),
            generated: Vec::new(),
            opened: Vec::new(),
            at_a_gate: false,
            cache: Vec::new(),
            touched: false,
            processing: false,
            hangups: 0,
        }));
        let mut server = Self { state, url, dir, stop: None, thread: None };
        server.listen();
        server
    }

    fn listen(&mut self) {
        let (stop, stopped) = oneshot::channel();
        let (ready, listening) = std::sync::mpsc::channel();
        let (shared, address) = (Arc::clone(&self.state), self.url.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let serving = async {
                    match &address {
                        ModelUrl::Unix(path) => {
                            let listener = UnixListener::bind(path).unwrap();
                            ready.send(()).unwrap();
                            while let Ok((stream, _)) = listener.accept().await {
                                tokio::spawn(serve(stream, Arc::clone(&shared)));
                            }
                        }
                        ModelUrl::Http { host, port, .. } => {
                            let listener = TcpListener::bind((host.as_str(), *port)).await.unwrap();
                            ready.send(()).unwrap();
                            while let Ok((stream, _)) = listener.accept().await {
                                tokio::spawn(serve(stream, Arc::clone(&shared)));
                            }
                        }
                    }
                };
                tokio::select! { () = serving => {}, _ = stopped => {} }
            });
        });
        listening.recv().unwrap();
        (self.stop, self.thread) = (Some(stop), Some(thread));
    }

    /// Goes down, as by SIGKILL: connections are cut, and new ones are refused.
    pub fn go_down(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Comes back after [`go_down`](Self::go_down), with an empty cache.
    pub fn come_back(&mut self) {
        if let ModelUrl::Unix(path) = &self.url {
            std::fs::remove_file(path).unwrap();
        }
        self.lose_cache();
        lock(&self.state).processing = false;
        self.listen();
    }

    /// Whether a completion waits at a gate.
    pub fn at_a_gate(&self) -> bool {
        lock(&self.state).at_a_gate
    }

    /// Opens a gate, for good.
    pub fn open(&self, gate: &'static str) {
        lock(&self.state).opened.push(gate);
    }

    /// All completions, in order, those that were cut off included.
    pub fn generated(&self) -> Vec<Generated> {
        lock(&self.state).generated.clone()
    }

    /// Its address.
    pub fn url(&self) -> ModelUrl {
        self.url.clone()
    }

    /// A folder that lives as long as the server.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Changes what it tells about itself.
    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut lock(&self.state).behaviour);
    }

    /// Adds a script for one more completion; without one, a completion says "ok".
    pub fn push(&self, script: Script) {
        lock(&self.state).scripts.push_back(script);
    }

    /// Forgets the scripts that were not played.
    pub fn clear(&self) {
        lock(&self.state).scripts.clear();
    }

    /// Forgets what the slot's cache holds, as after a restart.
    pub fn lose_cache(&self) {
        let mut state = lock(&self.state);
        state.cache.clear();
        state.touched = false;
    }

    /// The ids in the slot's cache.
    pub fn cache(&self) -> Vec<u32> {
        lock(&self.state).cache.clone()
    }

    /// All requests that came, health checks included.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.state).requests.clone()
    }

    /// The bodies of all completion requests.
    pub fn completions(&self) -> Vec<Value> {
        let requests = self.requests();
        requests.into_iter().filter(|r| r.path == "/completion").map(|r| r.body).collect()
    }

    /// The prompts of all completion requests.
    pub fn prompts(&self) -> Vec<Vec<u32>> {
        self.completions().iter().map(|body| ids_in(&body["prompt"])).collect()
    }

    /// How many completions ended because the client closed the connection.
    pub fn hangups(&self) -> usize {
        lock(&self.state).hangups
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.go_down();
    }
}

fn ids_in(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .map(|ids| ids.iter().filter_map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect())
        .unwrap_or_default()
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, state: State) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = read_request(&mut stream).await {
        lock(&state).requests.push(request.clone());
        if answer(&mut stream, &state, &request).await.is_err() {
            return;
        }
        if request.headers.iter().any(|(name, value)| name == "connection" && value == "close") {
            return;
        }
    }
}

async fn read_request(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Recorded>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, n)| n.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(Recorded { method, path, headers, body }))
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.flush().await
}

fn failure(code: u16, kind: &str, message: &str) -> (u16, Value) {
    (code, json!({"error": {"code": code, "message": message, "type": kind}}))
}

async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
    request: &Recorded,
) -> io::Result<()> {
    let behaviour = lock(state).behaviour.clone();
    match &behaviour.health {
        Health::Ready => {}
        Health::Loading => {
            let (code, body) = failure(503, "unavailable_error", "Loading model");
            return send(stream, code, &body).await;
        }
        Health::Error(code, message) => {
            let (code, body) = failure(*code, "server_error", message);
            return send(stream, code, &body).await;
        }
        Health::Hangup => return Err(io::ErrorKind::ConnectionAborted.into()),
        Health::Mute => {
            let mut byte = [0];
            while stream.read(&mut byte).await? > 0 {}
            return Ok(());
        }
        Health::Garbage(bytes) => {
            stream.write_all(bytes).await?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
    if behaviour.mute.as_ref() == Some(&request.path) {
        let mut byte = [0];
        while stream.read(&mut byte).await? > 0 {}
        return Ok(());
    }
    let key = behaviour.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let sent = request.headers.iter().find(|(name, _)| name == "authorization").map(|(_, value)| value);
    if request.path != "/health" && key.is_some() && key.as_ref() != sent {
        let (code, body) = failure(401, "authentication_error", "Invalid API Key");
        return send(stream, code, &body).await;
    }
    if request.path == "/completion" {
        return complete(stream, state, &behaviour, &request.body).await;
    }
    let (code, body) = plain(state, &behaviour, request);
    send(stream, code, &body).await
}

/// Everything that is not a stream.
fn plain(state: &State, behaviour: &Behaviour, request: &Recorded) -> (u16, Value) {
    let body = &request.body;
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/health") => (200, json!({"status": "ok"})),
        ("GET", "/props") => (
            200,
            json!({
                "default_generation_settings": {"n_ctx": behaviour.n_ctx},
                "total_slots": behaviour.total_slots,
                "model_alias": "scripted",
                "model_path": behaviour.model_path,
                "chat_template": behaviour.template,
                "chat_template_caps": {"supports_tools": false},
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "build_info": "scripted-1",
                "is_sleeping": behaviour.is_sleeping,
            }),
        ),
        ("GET", "/v1/models") => (200, json!({"data": [{"meta": {"n_vocab": 259, "size": 12345}}]})),
        ("GET", "/slots") if behaviour.slots => {
            let state = lock(state);
            let mut slot = json!({"id": 0, "n_ctx": behaviour.n_ctx, "is_processing": state.processing});
            if state.touched {
                slot["n_prompt_tokens"] = json!(state.cache.len());
            }
            (200, json!([slot]))
        }
        ("POST", "/tokenize") => {
            let text = body["content"].as_str().unwrap_or_default();
            (200, json!({"tokens": tokens_of(text, body["parse_special"] == true)}))
        }
        ("POST", "/apply-template") => apply_template(behaviour, body),
        ("POST", "/slots/0?action=save") => save(state, behaviour, body),
        ("POST", "/slots/0?action=restore") => restore(state, behaviour, body),
        ("GET", "/slots") => failure(501, "not_supported_error", "This server does not support slots"),
        _ => failure(404, "not_found_error", "File Not Found"),
    }
}

fn apply_template(behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let mut prompt = String::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        if behaviour.refused_role.as_deref() == Some(role) {
            return failure(400, "invalid_request_error", "Jinja Exception: role not supported");
        }
        let content = message["content"].as_str().unwrap_or_default();
        prompt.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
    }
    prompt.push_str(&behaviour.generation_prompt);
    (200, json!({"prompt": prompt}))
}

fn save(state: &State, behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let Some(dir) = &behaviour.slot_dir else {
        return failure(501, "not_supported_error", "This server does not support slots action");
    };
    let name = body["filename"].as_str().unwrap_or_default();
    if name.is_empty() || name.contains('/') {
        return failure(400, "invalid_request_error", "Invalid filename");
    }
    let ids = lock(state).cache.clone();
    let mut bytes = Vec::new();
    for word in [0x6767_7371, 4, 0, u32::MAX, 1, u32::try_from(ids.len()).unwrap()].iter().chain(&ids) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 64]);
    std::fs::write(dir.join(name), &bytes).unwrap();
    (200, json!({"id_slot": 0, "filename": name, "n_saved": ids.len(), "n_written": bytes.len()}))
}

fn restore(state: &State, behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let name = body["filename"].as_str().unwrap_or_default();
    let file = behaviour.slot_dir.as_ref().map(|dir| std::fs::read(dir.join(name)));
    let Some(Ok(bytes)) = file else {
        return failure(400, "invalid_request_error", "Unable to restore slot");
    };
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let count = usize::try_from(words[5]).unwrap();
    let mut state = lock(state);
    (state.cache, state.touched) = (words[6..6 + count].to_vec(), true);
    (200, json!({"id_slot": 0, "filename": name, "n_restored": count, "n_read": bytes.len()}))
}

/// A completion on its way.
struct Generation<'a> {
    state: &'a State,
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    cached: u64,
    limit: u64,
    left: bool,
    /// Its place in the server's list.
    number: usize,
}

impl Generation<'_> {
    fn count(n: usize) -> u64 {
        u64::try_from(n).unwrap()
    }

    /// Leaves the slot to others, once. The token sampled last is not in the cache.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        let mut state = lock(self.state);
        let decoded = self.sampled.len().saturating_sub(1);
        state.cache = [&self.prompt[..], &self.sampled[..decoded]].concat();
        state.touched = true;
        state.processing = false;
        if let Some(generated) = state.generated.get_mut(self.number) {
            generated.sampled.clone_from(&self.sampled);
        }
    }

    fn delta(&self, text: &str, ids: &[u32]) -> Value {
        json!({
            "index": 0, "content": text, "tokens": ids, "stop": false, "id_slot": -1,
            "tokens_predicted": self.sampled.len(), "tokens_evaluated": self.prompt.len(),
        })
    }

    fn progress(&self) -> Value {
        let total = self.prompt.len();
        let mut event = self.delta("", &[0]);
        event["prompt_progress"] =
            json!({"total": total, "cache": self.cached, "processed": total, "time_ms": 0});
        event
    }

    fn last(&self, stop: &str) -> Value {
        let (prompt, sampled) = (Self::count(self.prompt.len()), Self::count(self.sampled.len()));
        json!({
            "index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": true, "stop_type": stop,
            "truncated": false, "tokens_predicted": sampled, "tokens_evaluated": prompt,
            "tokens_cached": (prompt + sampled).saturating_sub(1),
            "timings": {
                "cache_n": self.cached, "prompt_n": prompt.saturating_sub(self.cached), "predicted_n": sampled,
            },
        })
    }
}

async fn complete(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
    behaviour: &Behaviour,
    body: &Value,
) -> io::Result<()> {
    let prompt = ids_in(&body["prompt"]);
    if Generation::count(prompt.len()) >= behaviour.n_ctx {
        let (code, mut body) = failure(400, "exceed_context_size_error", "the request exceeds the context");
        body["error"]["n_prompt_tokens"] = json!(prompt.len());
        body["error"]["n_ctx"] = json!(behaviour.n_ctx);
        return send(stream, code, &body).await;
    }
    // One request at a time: others wait for the slot.
    while lock(state).processing {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (script, common, number) = {
        let mut state = lock(state);
        state.processing = true;
        let number = state.generated.len();
        state.generated.push(Generated { prompt: prompt.clone(), sampled: Vec::new() });
        let common = state.cache.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        (state.scripts.pop_front().unwrap_or_else(|| Script::say("ok")), common, number)
    };
    // At least one token is always evaluated.
    let common = common.min(prompt.len().saturating_sub(1));
    let cached = script.claimed_cache.unwrap_or(Generation::count(common));
    let limit = body["n_predict"].as_u64().unwrap_or(u64::MAX);
    let mut generation =
        Generation { state, prompt, sampled: Vec::new(), cached, limit, left: false, number };
    let result = play(stream, script, &mut generation).await;
    let over = generation.left;
    generation.leave();
    if !over && result.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::ConnectionAborted) {
        lock(state).hangups += 1;
    }
    result
}

async fn play(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    script: Script,
    generation: &mut Generation<'_>,
) -> io::Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if let Some(Step::Status(code, body)) = script.steps.first() {
        return send(stream, *code, body).await;
    }
    if let Some(Step::Hangup) = script.steps.first() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    stream.write_all(head).await?;
    for step in script.steps {
        match step {
            Step::Progress => event(stream, &generation.progress()).await?,
            Step::Text(text) => {
                for character in text.chars() {
                    let ids = tokens_of(&character.to_string(), false);
                    generation.sampled.extend(&ids);
                    let shown = generation.delta(&character.to_string(), &ids[ids.len() - 1..]);
                    event(stream, &shown).await?;
                    if Generation::count(generation.sampled.len()) >= generation.limit {
                        generation.leave();
                        event(stream, &generation.last("limit")).await?;
                        return chunk(stream, "").await;
                    }
                }
            }
            Step::Id(text, id) => {
                generation.sampled.push(id);
                let shown = generation.delta(&text, &[id]);
                event(stream, &shown).await?;
            }
            Step::Lose(tokens) => generation.sampled.extend((0..tokens).map(|_| 3 + 0xf0)),
            Step::Raw(bytes) => chunk(stream, &bytes).await?,
            Step::Stall(time) => stall(stream, time).await?,
            Step::Gate(name) => {
                lock(generation.state).at_a_gate = true;
                let waited = gate(stream, generation.state, name).await;
                lock(generation.state).at_a_gate = false;
                waited?;
            }
            Step::Final(stop) => {
                // Before the client hears of the end: its next question must find the slot at rest.
                generation.leave();
                event(stream, &generation.last(stop)).await?;
                return chunk(stream, "").await;
            }
            Step::Cut | Step::Hangup | Step::Status(..) => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Step::EndBody => return chunk(stream, "").await,
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

async fn gate(stream: &mut (impl AsyncRead + Unpin), state: &State, name: &'static str) -> io::Result<()> {
    while !lock(state).opened.contains(&name) {
        stall(stream, Duration::from_millis(2)).await?;
    }
    Ok(())
}

/// Waits, and notices when the client goes.
async fn stall(stream: &mut (impl AsyncRead + Unpin), time: Duration) -> io::Result<()> {
    let mut byte = [0];
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        read = stream.read(&mut byte) => match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        },
    }
}

async fn event(stream: &mut (impl AsyncWrite + Unpin), data: &Value) -> io::Result<()> {
    chunk(stream, &format!("data: {data}\n\n")).await
}

async fn chunk(stream: &mut (impl AsyncWrite + Unpin), text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}
