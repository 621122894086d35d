//! The programs as people get them, in front of a scripted model server: whole processes.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::memory::memory;
use crate::scripted_server::ScriptedServer;
use crate::talk::Talk;

/// How long a daemon may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program that was built with this one.
pub fn program(name: &str) -> PathBuf {
    let here = std::env::current_exe().expect("its own path");
    let path = here.with_file_name(name);
    assert!(path.exists(), "{} is not there; build it with: cargo build --release --bins", path.display());
    path
}

/// A folder with a home, a configuration and a model server.
pub struct Place {
    pub server: ScriptedServer,
    dir: TempDir,
}

impl Place {
    /// Nothing runs yet but the model server. `limits` are lines for `[limits]`.
    pub fn new(limits: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("bench-").tempdir().expect("make a folder");
        let server = ScriptedServer::start();
        let config = format!(
            "[daemon]\nhome = {:?}\nsocket = {:?}\n\n[model]\nurl = {:?}\nsystem_prompt = \"Be brief.\"\n\n[limits]\n{limits}\n",
            dir.path().join("home"),
            dir.path().join("loopd.sock"),
            server.url().to_string(),
        );
        fs::write(dir.path().join("loopd.toml"), config).expect("write the configuration");
        Self { server, dir }
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("loopd.sock")
    }

    /// Starts the daemon; gives it and how long it took to say that it is ready.
    pub fn start(&self) -> (Daemon, Duration) {
        let path = self.dir.path().join("notify.sock");
        let _ = fs::remove_file(&path);
        let notify = UnixDatagram::bind(&path).expect("make a socket");
        notify.set_read_timeout(Some(PATIENCE)).expect("set its patience");
        let log = fs::File::create(self.dir.path().join("loopd.log")).expect("make its log");
        let mut command = Command::new(program("loopd"));
        command.arg("serve").arg("--config").arg(self.dir.path().join("loopd.toml"));
        for variable in ["STATE_DIRECTORY", "RUNTIME_DIRECTORY", "LISTEN_FDS", "RUST_LOG", "WATCHDOG_USEC"] {
            command.env_remove(variable);
        }
        command.env("NOTIFY_SOCKET", &path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let began = Instant::now();
        let daemon = Daemon(command.spawn().expect("start loopd"));
        let mut told = [0; 512];
        let length =
            notify.recv(&mut told).unwrap_or_else(|e| panic!("loopd is not ready: {e}\n{}", self.log()));
        let took = began.elapsed();
        assert!(told[..length].starts_with(b"READY=1"), "{:?}", String::from_utf8_lossy(&told[..length]));
        (daemon, took)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("loopd.log")).unwrap_or_default()
    }

    pub fn talk(&self) -> Talk {
        Talk::connect(&self.socket())
    }

    /// `bxctl` for this daemon, not yet run.
    pub fn bxctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program("bxctl"));
        command.arg("--socket").arg(self.socket()).args(arguments).env_remove("BXCTL_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        command
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon(Child);

impl Daemon {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Its memory in use (`VmRSS`) and the part of it that is its own, in bytes.
    pub fn memory(&self) -> (u64, u64) {
        let pid = self.pid().to_string();
        (memory(&pid, "VmRSS"), memory(&pid, "RssAnon"))
    }

    /// The processor time that it has used.
    pub fn cpu(&self) -> Duration {
        cpu(self.pid())
    }

    /// Ends it in order.
    pub fn end(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a process id"));
        kill(pid, Signal::SIGTERM).expect("tell loopd to end");
        self.0.wait().expect("wait for loopd");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processor time that a process has used, all its threads together, those that have ended too.
fn cpu(pid: u32) -> Duration {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a process id"));
    let clock = clock_getcpuclockid(pid).expect("it runs");
    clock_gettime(clock).expect("read its clock").into()
}

/// Writes the files of `dir` to the disk, so that what was made for a measurement is not written during the next.
pub fn settle(dir: &Path) {
    nix::unistd::syncfs(fs::File::open(dir).expect("open the folder")).expect("sync");
}
