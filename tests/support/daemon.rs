//! A real `loopd`, and `bxctl` in front of it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::memory::memory;
use super::wait_until;

/// How long a daemon may take to start or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running daemon. It is killed when dropped.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
}

impl Daemon {
    /// Starts `program` with the configuration `loopd.toml` in `dir`, where its socket and log are too, and
    /// waits until it takes connections.
    pub fn start(program: &Path, dir: &Path) -> Self {
        let log = File::options().create(true).append(true).open(dir.join("loopd.log"));
        let log = log.expect("open the log of loopd");
        let child = Self::command(program, dir).stderr(log).spawn().expect("start loopd");
        let mut daemon = Self { child, dir: dir.to_owned() };
        wait_until(PATIENCE, "loopd takes connections", || {
            let ended = daemon.child.try_wait().expect("ask for its end");
            assert!(ended.is_none(), "loopd ended with {ended:?}:\n{}", daemon.log());
            UnixStream::connect(daemon.socket()).is_ok()
        });
        daemon
    }

    /// How it is started.
    pub fn command(program: &Path, dir: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg("serve").arg("--config").arg(dir.join("loopd.toml"));
        // what the machine around the test has set must not change it
        for variable in ["STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "LISTEN_FDS", "RUST_LOG"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        socket_in(&self.dir)
    }

    /// What it logged, earlier daemons of the same folder included.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("loopd.log")).unwrap_or_default()
    }

    /// Its memory in use, in kilobytes (`VmRSS`).
    pub fn rss_kb(&self) -> u64 {
        memory(&self.pid().to_string(), "VmRSS") / 1024
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("kill loopd");
        self.child.wait().expect("wait for loopd");
    }

    /// Asks it to end, as systemd does, and waits for that.
    pub fn terminate(mut self) -> ExitStatus {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a process id"));
        kill(pid, Signal::SIGTERM).expect("send SIGTERM to loopd");
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("ask for its end") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "loopd did not end after SIGTERM:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The socket of the daemon whose configuration is in `dir`.
pub fn socket_in(dir: &Path) -> PathBuf {
    dir.join("loopd.sock")
}

/// `bxctl` for the daemon at `socket`, not yet run.
pub fn bxctl(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bxctl"));
    command.arg("--socket").arg(socket).args(arguments).env_remove("BXCTL_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A command of `loopd` other than `serve`, with the configuration `loopd.toml` in `dir`.
pub fn loopd(dir: &Path, command: &str, arguments: &[&str]) -> Command {
    let mut loopd = Command::new(env!("CARGO_BIN_EXE_loopd"));
    loopd.arg(command).arg("--config").arg(dir.join("loopd.toml")).args(arguments);
    loopd.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    loopd
}

/// What a run of `bxctl` left.
#[derive(Debug)]
pub struct Ran {
    /// Its exit status.
    pub code: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Ran {
    /// Runs a command to its end, with `input` as its standard input.
    pub fn new(mut command: Command, input: Option<&[u8]>) -> Self {
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().expect("start the program");
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // it may end without reading all of it
            let _ = stdin.write_all(input);
        }
        let output = child.wait_with_output().expect("wait for the program");
        Self {
            code: output.status.code().expect("ended by itself"),
            out: String::from_utf8(output.stdout).expect("UTF-8 on the standard output"),
            err: String::from_utf8(output.stderr).expect("UTF-8 on the standard error"),
        }
    }

    /// Its standard output as one JSON value; it must have gone well.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// Its standard output as one event a line.
    pub fn events(&self) -> Vec<Value> {
        self.out.lines().map(event).collect()
    }
}

fn event(line: &str) -> Value {
    let event: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert!(event["event"].is_string(), "no event: {line}");
    event
}

/// A turn that is being followed by `bxctl send --json` or `retry --json`. The client is killed when dropped,
/// which ends no turn.
pub struct Watched {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Watched {
    /// Starts the client.
    pub fn new(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::null()).spawn().expect("start bxctl");
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        Self { child, lines }
    }

    /// Reads on until `count` events of this kind came, and gives back all that were read.
    pub fn until(&mut self, kind: &str, count: usize) -> Vec<Value> {
        let mut seen = Vec::new();
        let mut found = 0;
        while found < count {
            let Some(line) = self.lines.next() else { panic!("no {kind} came, only {seen:#?}") };
            let event = event(&line.expect("UTF-8 from bxctl"));
            found += usize::from(event["event"] == kind);
            seen.push(event);
        }
        seen
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
