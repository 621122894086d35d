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
//! #[path = "support/scripted_server/mod.rs"]
//! mod scripted_server;
//!
//! let server = ScriptedServer::start();                 // answers "ok" to everything, on a Unix socket
//! server.push(Script::say("Hello!"));                   // what the next completion brings …
//! server.push(Script::new().progress().text("Hel").cut());          // … and the one after
//! server.set(|b| b.health = Health::Loading);           // from now on
//! let client = Server::new(server.url(), None, 0, Duration::from_secs(5));
//! assert_eq!(server.prompts(), [[1, 2, 3]]);            // what it was asked
//! ```

mod answer;
mod completion;
mod script;
mod vocabulary;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use boxmaker::config::ModelUrl;
use serde_json::Value;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

use answer::serve;
pub use script::Script;
#[allow(unused_imports, reason = "not every test has tools called")]
pub use script::{find_call, installed_call, tool_call};
use vocabulary::ids_in;
#[allow(unused_imports, reason = "not every test reads ids")]
pub use vocabulary::{EOG, text_of, tokens_of};

const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";

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

    /// Forgets what it was asked and what it generated: for runs so long that they would fill the memory.
    pub fn forget(&self) {
        let mut state = lock(&self.state);
        state.requests.clear();
        state.generated.clear();
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

    /// How many requests for this path came.
    pub fn asked(&self, path: &str) -> usize {
        lock(&self.state).requests.iter().filter(|request| request.path == path).count()
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
