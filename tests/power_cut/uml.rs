//! A user-mode Linux: a whole kernel as a process, whose power can be cut with a signal.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// The disk's size. A small one has a small journal, which wraps often.
const DISK: u64 = 24 << 20;
/// The log of what reaches the disk; the file is sparse.
const RECORD: u64 = 1 << 30;

/// Why there is none here, if so.
pub fn missing() -> Option<String> {
    missing_of(&[
        ("linux.uml", "user-mode-linux"),
        ("mkfs.ext4", "e2fsprogs"),
        ("dmsetup", "dmsetup"),
        ("unshare", "util-linux"),
        ("losetup", "mount"),
        ("insmod", "kmod"),
    ])
}

/// Why nothing can be made and mounted with these programs, each with its Debian package, if so.
pub fn missing_of(programs: &[(&str, &str)]) -> Option<String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    for (program, package) in programs {
        if !std::env::split_paths(&path).any(|dir| dir.join(program).is_file()) {
            return Some(format!("{program} is not installed (Debian: apt-get install {package})"));
        }
    }
    if !nix::unistd::geteuid().is_root() {
        return Some("a file system can be mounted by root only".to_owned());
    }
    None
}

/// The guest's disks, in a folder that goes with them.
pub struct Disks {
    dir: tempfile::TempDir,
}

impl Disks {
    /// An empty ext4 with a journal.
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("cut-").tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let disks = Self { dir: dir.expect("make a folder") };
        File::create(disks.disk()).and_then(|file| file.set_len(DISK)).expect("make the disk");
        File::create(disks.record()).and_then(|file| file.set_len(RECORD)).expect("make the record");
        let made = Command::new("mkfs.ext4")
            .args([
                "-q",
                "-F",
                "-O",
                "has_journal,^fast_commit",
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
            ])
            .arg(disks.disk())
            .status();
        assert!(made.expect("run mkfs.ext4").success());
        disks
    }

    pub fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub fn record(&self) -> PathBuf {
        self.dir.path().join("record")
    }

    /// Where the guest finds what was told so far.
    pub fn ledger(&self) -> PathBuf {
        self.dir.path().join("ledger")
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A running guest. Its power is cut when it is dropped.
pub struct Guest {
    child: Child,
    lines: Receiver<String>,
    /// What it said so far.
    pub said: Vec<String>,
}

impl Guest {
    /// Boots; `test` of this program runs in it, and finds `settings` in its environment.
    pub fn boot(disks: &Disks, test: &str, settings: &[(&str, &str)]) -> Self {
        let exe = std::env::current_exe().expect("this program");
        let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power_cut/guest-init");
        // a process namespace of its own, so that one signal takes all its processes
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child=KILL", "linux.uml", "mem=256M"]);
        command.args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "con=null"]);
        command.args(["con0=fd:0,fd:1", &format!("init={}", init.display())]);
        command.arg(format!("ubdb={}", disks.disk().display()));
        command.arg(format!("ubdc={}", disks.record().display()));
        command.arg(format!("BX_EXE={}", exe.display())).arg(format!("BX_TEST={test}"));
        command.arg(format!("BX_LEDGER={}", disks.ledger().display()));
        command.args(settings.iter().map(|(name, value)| format!("{name}={value}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().expect("start linux.uml");
        let (send, lines) = channel();
        let mut console = BufReader::new(child.stdout.take().expect("its console is a pipe"));
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while console.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if send.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    break;
                }
                line.clear();
            }
        });
        Self { child, lines, said: Vec::new() }
    }

    /// Reads on until a line begins with `begin`; tells whether one came within `limit`.
    pub fn until(&mut self, begin: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = line.starts_with(begin);
                    self.said.push(line);
                    if found {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    /// The power goes now. What the guest said before is still read.
    pub fn cut(&mut self) {
        let _ = killpg(Pid::from_raw(i32::try_from(self.child.id()).expect("a process id")), Signal::SIGKILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
        while self.until("\0", Duration::from_secs(2)) {}
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.cut();
    }
}
