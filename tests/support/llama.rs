//! A real llama-server with a small model, for tests that want the real thing.

#[path = "parts.rs"]
pub mod parts;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use boxmaker::config::ModelUrl;
use boxmaker::model::Server;

/// The flags under which the server keeps its promise (`docs/model-server.md`).
pub const FLAGS: &[&str] = &[
    "-t",
    "1",
    "-c",
    "2048",
    "-np",
    "1",
    "--no-kv-unified",
    "--cache-ram",
    "0",
    "--no-context-shift",
    "--cache-reuse",
    "0",
    "--no-prefill-assistant",
    "--slots",
    "--no-ui",
];

/// A running server; ends with the value.
pub struct Llama {
    child: Child,
    dir: tempfile::TempDir,
}

impl Llama {
    /// Starts one with [`FLAGS`] and these; `None`, and a line that says why, where there is none.
    pub fn start(more: &[&str]) -> Option<Self> {
        Self::start_with(FLAGS, more)
    }

    /// Starts one with exactly these flags.
    pub fn start_with(flags: &[&str], more: &[&str]) -> Option<Self> {
        Self::start_model("BOXMAKER_MODEL", flags, more)
    }

    /// The same with the model that a variable names.
    pub fn start_model(variable: &str, flags: &[&str], more: &[&str]) -> Option<Self> {
        let (binary, model) = (parts::part("BOXMAKER_LLAMA_SERVER")?, parts::part(variable)?);
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("slots")).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let child = Command::new(binary)
            .arg("-m")
            .arg(model)
            .arg("--host")
            .arg(dir.path().join("llama.sock"))
            .args(flags)
            .args(more.iter().map(|arg| arg.replace("SLOTS", &dir.path().join("slots").to_string_lossy())))
            .env("GGML_NO_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Some(Self { child, dir })
    }

    /// Its folder; holds `slots`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its address.
    pub fn url(&self) -> ModelUrl {
        ModelUrl::Unix(self.dir.path().join("llama.sock"))
    }

    /// A client of it, when it is ready.
    pub async fn ready(&self) -> Rc<Server> {
        let server = Server::new(self.url(), None, 0, Duration::from_secs(60));
        let waiting = server.wait_ready(|_| {});
        tokio::time::timeout(Duration::from_secs(120), waiting)
            .await
            .unwrap_or_else(|_| panic!("not ready in time:\n{}", self.log()))
            .unwrap();
        server
    }

    /// What it wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Llama {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
