//! One child process of a tool, from its start to the end of all that it left behind.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::adopted;
use super::confine::{Reach, Walls};
use super::sweep::{self, Known, Mark};

/// The name of the variable by which a tool's processes are found again.
const MARK: &str = "BOXMAKER_CALL";
/// Where programs that a tool starts are looked for.
const PATH: &str = "/run/current-system/sw/bin:/usr/local/bin:/usr/bin:/bin";
/// How often what is left running is looked for and killed, and the pause between.
const SWEEPS: u32 = 50;
const SWEEP_PAUSE: Duration = Duration::from_millis(4);
/// How much likelier than the daemon a tool is to be killed when memory runs out (0 to 1000).
const OOM_SCORE: &[u8] = b"500";

/// Limits that the kernel keeps for each process of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimits {
    /// Open files a process.
    pub open_files: u64,
    /// Bytes in any file that is written.
    pub file_bytes: u64,
    /// Processes and threads of the daemon's user, the daemon's own included; no limit when absent.
    pub processes: Option<u64>,
    /// Address space a process, in bytes; no limit when absent.
    pub memory_bytes: Option<u64>,
}

impl Default for Rlimits {
    fn default() -> Self {
        Self { open_files: 1024, file_bytes: 1 << 30, processes: None, memory_bytes: None }
    }
}

/// What to start.
pub struct Start<'a> {
    /// The program, an absolute path.
    pub program: &'a Path,
    /// Its arguments.
    pub args: &'a [String],
    /// Where it runs; its `HOME` too.
    pub directory: &'a Path,
    /// Names of the daemon's environment variables that it gets.
    pub environment: &'a [String],
    /// The kernel's limits.
    pub rlimits: Rlimits,
    /// What it can reach.
    pub reach: &'a Reach,
}

impl Start<'_> {
    /// Starts it; its directory is made (mode 0700) when only it itself is missing.
    ///
    /// # Errors
    /// Why it could not be started, in words; nothing runs then.
    pub fn start(&self) -> Result<(Process, Pipes), String> {
        let Self { program, directory, .. } = self;
        if !directory.is_dir() {
            DirBuilder::new()
                .mode(0o700)
                .create(directory)
                .map_err(|e| format!("its directory {}: {e}", directory.display()))?;
        }
        let walls = self.reach.walls(program, directory).map_err(|e| e.to_string())?;
        Process::start(self, walls).map_err(|e| format!("{}: {e}{}", program.display(), hint(program, &e)))
    }
}

/// What "not found" means when the file is there.
fn hint(program: &Path, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound if program.exists() => {
            " (the file is there; the interpreter or the loader that it names is not)"
        }
        _ => "",
    }
}

/// A running process with its pipes. Dropping it kills all that belongs to it.
pub struct Process {
    // dropped first: it must kill while the child is not reaped, since its number could be another's after that
    family: Family,
    exit: AsyncFd<OwnedFd>,
    child: Child,
}

/// The child's ends of the pipes, as we hold them.
pub struct Pipes {
    /// Where it reads.
    pub stdin: Option<ChildStdin>,
    /// What it writes.
    pub stdout: Option<ChildStdout>,
    /// What it complains of.
    pub stderr: Option<ChildStderr>,
}

impl Process {
    /// Starts it, in a session and a process group of its own.
    ///
    /// # Errors
    /// It could not be started; nothing runs then.
    fn start(start: &Start<'_>, walls: Walls) -> io::Result<(Self, Pipes)> {
        let variable = mark();
        let mut command = Command::new(start.program);
        command.args(start.args).current_dir(start.directory).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").env("HOME", start.directory);
        for name in start.environment {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        if start.reach.limits_files() {
            // the usual place is outside
            command.env("TMPDIR", start.directory);
        }
        command.env(MARK, OsStr::new(&variable));
        let (parent, rlimits) = (std::process::id(), start.rlimits);
        // SAFETY: `prepare` only makes system calls on memory that exists already, as it must between fork and exec
        unsafe { command.pre_exec(move || prepare(parent, rlimits, &walls)) };
        let variable = format!("{MARK}={variable}");
        adopted::adopt();
        let (mut child, leader) = {
            // together: else another call's sweep might take it for an orphan
            let mut leaders = adopted::leaders();
            let child = command.spawn()?;
            let leader = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or(io::ErrorKind::NotFound)?;
            leaders.insert(leader, variable.clone());
            (child, leader)
        };
        let family = Family {
            mark: Mark { leader, started: sweep::started(leader).unwrap_or(u64::MAX), variable },
            known: RefCell::default(),
            gone: false,
        };
        let pipes =
            Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() };
        // SAFETY: an OwnedFd gives the same descriptor until it is dropped, and the AsyncFd owns it
        let exit = unsafe { AsyncFd::register_with_interest(pidfd(leader)?, Interest::READABLE)? };
        Ok((Self { family, exit, child }, pipes))
    }

    /// Returns when the direct child has ended. It is not reaped: its number stays its own, so that its group can be
    /// killed without hitting another's.
    pub async fn exited(&self) {
        // an error can only mean that the runtime is ending
        let _ready = self.exit.readable().await;
    }

    /// How the direct child ended, if it has; it is not reaped.
    pub fn status(&self) -> Option<ExitStatus> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.family.leader()), flags) {
            Ok(WaitStatus::Exited(_, code)) => Some(ExitStatus::from_raw(code << 8)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitStatus::from_raw(signal as i32)),
            _ => None,
        }
    }

    /// Asks all of the process group to end.
    pub fn terminate(&self) {
        // who belongs to it is seen now: when parents end first, it can't be seen any more
        self.family.look();
        let _gone = killpg(self.family.leader(), Signal::SIGTERM);
    }

    /// Kills all that belongs to it, the direct child too, and what is started meanwhile.
    pub async fn kill(&self) {
        for _ in 0..SWEEPS {
            if self.family.kill() == 0 {
                return;
            }
            tokio::time::sleep(SWEEP_PAUSE).await;
        }
    }

    /// Takes the exit status of a child that has ended; nothing may be killed by its number any more.
    ///
    /// # Errors
    /// The status is lost: somebody else took it.
    pub async fn reap(mut self) -> io::Result<ExitStatus> {
        self.family.gone = true;
        self.child.wait().await
    }
}

/// All processes that belong to a direct child.
struct Family {
    mark: Mark,
    /// Those that were found, dead or alive.
    known: RefCell<BTreeSet<Known>>,
    gone: bool,
}

impl Family {
    fn leader(&self) -> Pid {
        Pid::from_raw(self.mark.leader)
    }

    /// Finds what lives now, and remembers it.
    fn look(&self) -> BTreeSet<Known> {
        let mut known = self.known.borrow_mut();
        let living = sweep::living(&self.mark, &known);
        known.extend(&living);
        living
    }

    /// Kills what lives now, and says how many there were.
    fn kill(&self) -> usize {
        let living = self.look();
        let _gone = killpg(self.leader(), Signal::SIGKILL);
        for (pid, _) in &living {
            let _gone = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        living.len()
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if !self.gone {
            // twice: what was forked during the first pass is found by the second
            self.kill();
            self.kill();
        }
        adopted::leaders().remove(&self.mark.leader);
        adopted::reap();
    }
}

/// Sixteen random digits; nothing else on the machine has them in its environment.
fn mark() -> String {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_err() {
        bytes = u64::from(std::process::id()).to_ne_bytes();
    }
    format!("{:016x}", u64::from_ne_bytes(bytes))
}

fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers; what it returns is checked before it is owned
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, libc::PIDFD_NONBLOCK) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Between fork and exec, in the child: only calls that are safe in a signal handler, and no allocation.
fn prepare(parent: u32, rlimits: Rlimits, walls: &Walls) -> io::Result<()> {
    let Rlimits { open_files, file_bytes, processes, memory_bytes } = rlimits;
    // SAFETY: all of these are system calls on numbers, on static text and on local memory
    unsafe {
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 {
            return Err(io::Error::last_os_error());
        }
        // the daemon may have died before the line above
        if i64::from(libc::getppid()) != i64::from(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(io::Error::last_os_error());
        }
        // the daemon ignores some signals, and that would be inherited
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::umask(0o077);
        limit(libc::RLIMIT_CORE, 0)?;
        limit(libc::RLIMIT_NOFILE, open_files)?;
        limit(libc::RLIMIT_FSIZE, file_bytes)?;
        if let Some(most) = processes {
            limit(libc::RLIMIT_NPROC, most)?;
        }
        if let Some(most) = memory_bytes {
            limit(libc::RLIMIT_AS, most)?;
        }
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if score >= 0 {
            libc::write(score, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(score);
        }
        // whatever descriptor was opened without care closes at exec; an old kernel leaves them as they are
        libc::syscall(libc::SYS_close_range, 3u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    walls.enter()
}

/// Lowers a limit; one that is lower already stays.
fn limit(resource: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls only use the local `now`
    unsafe {
        if libc::getrlimit(resource, &raw mut now) < 0 {
            return Err(io::Error::last_os_error());
        }
        let most = most.min(now.rlim_max);
        let lowered = libc::rlimit { rlim_cur: most, rlim_max: most };
        if libc::setrlimit(resource, &raw const lowered) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_pidfd_is_a_descriptor() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(pidfd(own).unwrap().as_raw_fd() >= 0);
        assert!(pidfd(-1).is_err());
    }

    #[test]
    fn marks_differ() {
        assert_ne!(mark(), mark());
        assert_eq!(mark().len(), 16);
    }
}
