//! A real llama-server with a real, small model, on a socket of its own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::parts::part;
use super::wait_until;

/// What a server is started with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Kind {
    /// The variable that names its model; SmolLM2 by default.
    pub model: Option<&'static str>,
    /// A chat template of llama.cpp's, for a model without one.
    pub template: Option<&'static str>,
    /// Flags beside those that keep the promise.
    pub flags: &'static [&'static str],
}

/// The program, the model and the further flags.
struct Parts {
    program: PathBuf,
    model: PathBuf,
    flags: Vec<String>,
}

impl Parts {
    fn find(kind: Kind) -> Option<Self> {
        let mut flags: Vec<_> = kind.flags.iter().map(|flag| (*flag).to_owned()).collect();
        if let Some(template) = kind.template {
            let file = part("BOXMAKER_TEMPLATES")?.join(template);
            flags.extend(["--chat-template-file".to_owned(), file.to_str()?.to_owned()]);
        }
        let model = part(kind.model.unwrap_or("BOXMAKER_MODEL"))?;
        Some(Self { program: part("BOXMAKER_LLAMA_SERVER")?, model, flags })
    }
}

/// A running server. It is killed when dropped.
pub struct ModelServer {
    parts: Parts,
    context: u32,
    dir: PathBuf,
    child: Option<Child>,
}

impl ModelServer {
    /// Starts one with a context of `context` tokens, whose socket, log and slot files are in `dir`, and
    /// waits until its model is loaded. Without server or model the test is skipped: `None`.
    pub fn start(dir: &Path, context: u32) -> Option<Self> {
        Self::start_kind(dir, context, Kind::default())
    }

    /// The same with another model, or other flags.
    pub fn start_kind(dir: &Path, context: u32, kind: Kind) -> Option<Self> {
        let parts = Parts::find(kind)?;
        fs::create_dir_all(dir.join("slots")).expect("make the folder for slots");
        let mut server = Self { parts, context, dir: dir.to_owned(), child: None };
        server.run();
        Some(server)
    }

    /// Starts it again after [`kill`](Self::kill), and waits until its model is loaded.
    pub fn run(&mut self) {
        self.spawn();
        wait_until(Duration::from_secs(60), "llama-server loads its model", || {
            let ended = self.child.as_mut().expect("it was started").try_wait().expect("ask for its end");
            assert!(ended.is_none(), "llama-server ended with {ended:?}:\n{}", self.log());
            self.request("GET", "/health", None).is_some_and(|(status, _)| status == 200)
        });
    }

    /// Starts it and does not wait.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "it already runs");
        // a socket that a killed server left behind would keep the next one from binding
        let _ = fs::remove_file(self.socket());
        let log = File::options().create(true).append(true).open(self.dir.join("llama-server.log"));
        let log = log.expect("open the log of llama-server");
        let child = Command::new(&self.parts.program)
            .arg("-m")
            .arg(&self.parts.model)
            .arg("--host")
            .arg(self.socket())
            .arg("--slot-save-path")
            .arg(self.slots())
            .args(["-c", &self.context.to_string(), "-t", "1", "-np", "1"])
            .args(["--no-kv-unified", "--cache-ram", "0", "--no-context-shift", "--cache-reuse", "0"])
            .args(["--no-prefill-assistant", "--slots", "--metrics", "--no-ui"])
            // small batches, so that a request that is closed stops soon
            .args(["-b", "64", "-ub", "64"])
            .args(&self.parts.flags)
            .env("GGML_NO_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle of the log"))
            .stderr(log)
            .spawn()
            .expect("start llama-server");
        self.child = Some(child);
    }

    /// Further flags from the next start on.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.parts.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// What another client, or a person, does: empties the slot.
    pub fn erase_slot(&self) {
        self.post("/slots/0?action=erase", &json!({}));
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill llama-server");
            child.wait().expect("wait for llama-server");
        }
    }

    /// Lets it stand still for so long.
    pub fn pause(&self, how_long: Duration) {
        let pid = self.child.as_ref().expect("it runs").id();
        let signal = |signal| kill(Pid::from_raw(i32::try_from(pid).expect("a process id")), signal);
        signal(Signal::SIGSTOP).expect("stop llama-server");
        std::thread::sleep(how_long);
        signal(Signal::SIGCONT).expect("let llama-server go on");
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("llama.sock")
    }

    /// Its address, as `[model] url` takes it.
    pub fn url(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Where it saves slots.
    pub fn slots(&self) -> PathBuf {
        self.dir.join("slots")
    }

    /// What it printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("llama-server.log")).unwrap_or_default()
    }

    /// The ids of a text's tokens; `special` tells whether `<|im_end|>` and the like are one token.
    pub fn tokenize(&self, text: &str, special: bool) -> Vec<u32> {
        let body = json!({"content": text, "add_special": false, "parse_special": special});
        let answer = self.post("/tokenize", &body);
        serde_json::from_value(answer["tokens"].clone()).expect("a list of ids")
    }

    /// The text of ids, special tokens shown as text.
    pub fn detokenize(&self, ids: &[u32]) -> String {
        let answer = self.post("/detokenize", &json!({"tokens": ids}));
        answer["content"].as_str().expect("a text").to_owned()
    }

    /// What another client does: a completion of these tokens on the slot.
    pub fn complete(&self, prompt: &[u32], n_predict: u32) {
        let body = json!({"prompt": prompt, "n_predict": n_predict, "id_slot": 0, "cache_prompt": true});
        self.post("/completion", &body);
    }

    /// Tokens evaluated since it started, those from the cache excluded.
    pub fn prompt_tokens_total(&self) -> u64 {
        let (status, body) = self.request("GET", "/metrics", None).expect("llama-server answers");
        assert_eq!(status, 200, "{body}");
        let line = body.lines().find_map(|line| line.strip_prefix("llamacpp:prompt_tokens_total "));
        line.expect("the counter is there").trim().parse().expect("a whole number")
    }

    /// The answer to a request that must go well.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.request("POST", path, Some(body)).expect("llama-server answers");
        assert_eq!(status, 200, "{path}: {answer}");
        serde_json::from_str(&answer).expect("JSON from llama-server")
    }

    /// One request on a connection of its own; `None` when nobody answers.
    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.0\r\nHost: test\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.kill();
    }
}
