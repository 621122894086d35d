//! What a tool's processes can reach: files by Landlock, sockets by seccomp. Both are kept by the kernel, hold for
//! all that the tool starts, and cannot be taken back. Neither needs a privilege, and both work inside a unit's
//! sandbox.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use nix::fcntl::OFlag;
use nix::libc;
use nix::sys::stat::Mode;

/// What programs need to start and to find their way, beside their own files. Of `/proc` only what is of the whole
/// machine: what is of other processes has their environment.
const PROGRAMS: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/nix/store",
    "/run/current-system",
    "/etc/alternatives",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/static",
    "/etc/zoneinfo",
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/proc/uptime",
    "/proc/version",
    "/sys/devices/system/cpu",
];
/// Devices that hold nothing.
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/urandom", "/dev/zero"];

/// The kernel's name for this machine's system calls.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// What a tool may reach of what the daemon's user may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// What it may read and run, besides the system's programs and libraries, its own program and its directory.
    /// When this and `write` are absent, files are not limited.
    pub read: Option<Vec<PathBuf>>,
    /// What it may read, run and write besides its directory.
    pub write: Option<Vec<PathBuf>>,
    /// Whether it may have sockets of any kind, Unix ones too.
    pub network: bool,
}

impl Default for Reach {
    fn default() -> Self {
        Self { read: None, write: None, network: true }
    }
}

impl Reach {
    /// Whether files are limited.
    #[must_use]
    pub fn limits_files(&self) -> bool {
        self.read.is_some() || self.write.is_some()
    }

    /// Builds the walls for one start of `program` in `directory`.
    ///
    /// # Errors
    /// A path is not there, or the kernel cannot keep what is wanted: nothing must be started then.
    pub(super) fn walls(&self, program: &Path, directory: &Path) -> Result<Walls, ConfineError> {
        let files = self.limits_files().then(|| self.ruleset(program, directory)).transpose()?;
        Ok(Walls { files, network: self.network })
    }

    fn ruleset(&self, program: &Path, directory: &Path) -> Result<OwnedFd, ConfineError> {
        let open = |paths: &Option<Vec<PathBuf>>| {
            paths.iter().flatten().map(|path| Opened::new(path)).collect::<Result<Vec<_>, _>>()
        };
        let (read, write) = (open(&self.read)?, open(&self.write)?);
        let (program, directory) = (Opened::new(program).ok(), Opened::new(directory)?);
        let writable: Vec<&Opened> = write.iter().chain([&directory]).collect();
        for opened in read.iter().chain(&write).chain(&program).chain([&directory]) {
            opened.stays_within(&writable)?;
        }
        let names = |opened: &[Opened]| opened.iter().map(Opened::name).collect::<Vec<_>>();
        let all = AccessFs::from_all(ABI::V5);
        let look = AccessFs::from_read(ABI::V5);
        let device = AccessFs::ReadFile | AccessFs::WriteFile;
        let built = || -> Result<RulesetCreated, RulesetError> {
            // a kernel that lacks the first of these keeps nothing; what later ones add is taken where it is there
            let ruleset = Ruleset::default()
                .set_compatibility(CompatLevel::HardRequirement)
                .handle_access(AccessFs::from_all(ABI::V1))?
                .set_compatibility(CompatLevel::BestEffort)
                .handle_access(all)?
                .scope(Scope::from_all(ABI::V6))?;
            ruleset
                .create()?
                .add_rules(path_beneath_rules(PROGRAMS, look))?
                .add_rules(path_beneath_rules(program.iter().map(Opened::name), look))?
                .add_rules(path_beneath_rules(DEVICES, device))?
                .add_rules(path_beneath_rules(names(&read), look))?
                .add_rules(path_beneath_rules(names(&write), all))?
                .add_rules(path_beneath_rules([directory.name()], all))
        };
        let created = built().map_err(|e| ConfineError::Kernel(e.to_string()))?;
        let fd: Option<OwnedFd> = created.into();
        fd.ok_or_else(|| ConfineError::Kernel("Landlock is not there".to_owned()))
    }
}

/// A path that a tool may reach, held open: what is looked at is what the rule is made for.
struct Opened {
    path: PathBuf,
    real: PathBuf,
    fd: OwnedFd,
}

impl Opened {
    fn new(path: &Path) -> Result<Self, ConfineError> {
        let failed = |e: io::Error| ConfineError::Path(path.to_owned(), e);
        let fd = nix::fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| failed(e.into()))?;
        let real = std::fs::read_link(name(&fd)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), real, fd })
    }

    /// A path that leads to it whatever happens to its own.
    fn name(&self) -> PathBuf {
        name(&self.fd)
    }

    /// A path below one that the tool may write must not lead out of it: the tool may have put a link there.
    fn stays_within(&self, writable: &[&Self]) -> Result<(), ConfineError> {
        let below = |top: &&&Self| self.path != top.path && self.path.starts_with(&top.path);
        match writable.iter().filter(below).find(|top| !self.real.starts_with(&top.real)) {
            None => Ok(()),
            Some(top) => Err(ConfineError::Strays {
                path: self.path.clone(),
                real: self.real.clone(),
                writable: top.path.clone(),
            }),
        }
    }
}

fn name(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// The version of Landlock that this kernel keeps; 0 when it has none.
#[must_use]
pub fn landlock_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call reads no memory and gives a number
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, VERSION) };
    u32::try_from(version).unwrap_or(0)
}

/// Whether memory that may be written and executed is refused to this process, and so to all that it starts, as systemd's
/// `MemoryDenyWriteExecute` does: what compiles while it runs does not run then.
#[must_use]
pub fn denies_generated_code() -> bool {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: new memory, which nobody uses, and which is given back
    unsafe {
        let page = libc::mmap(std::ptr::null_mut(), 1, all, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if page == libc::MAP_FAILED {
            return matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM | libc::EACCES));
        }
        libc::munmap(page, 1);
    }
    false
}

/// Why a tool's reach cannot be limited as configured.
#[derive(Debug)]
pub enum ConfineError {
    /// A path that it may reach is not there.
    Path(PathBuf, io::Error),
    /// A path below one that the tool may write leads out of it, through a link that the tool may have made.
    Strays {
        /// The path.
        path: PathBuf,
        /// Where it leads.
        real: PathBuf,
        /// What the tool may write.
        writable: PathBuf,
    },
    /// The kernel cannot keep it.
    Kernel(String),
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path, e) => {
                write!(f, "{}, which it may reach by `read` or `write`: {e}", path.display())
            }
            Self::Strays { path, real, writable } => write!(
                f,
                "{} leads to {}, out of {}, which the tool may write: it may have made that link itself; take the link \
                 away, or name the place that is meant",
                path.display(),
                real.display(),
                writable.display()
            ),
            Self::Kernel(why) => write!(
                f,
                "this kernel cannot limit its files as `read` and `write` say ({why}); use one with Landlock (5.13 or \
                 newer, CONFIG_SECURITY_LANDLOCK, and landlock among lsm=), or take both keys away"
            ),
        }
    }
}

impl std::error::Error for ConfineError {}

/// What is put around a process between fork and exec.
pub(super) struct Walls {
    files: Option<OwnedFd>,
    network: bool,
}

impl Walls {
    /// Puts them around the calling process. Must be called between fork and exec, after `no_new_privs` was set: makes
    /// system calls only.
    pub(super) fn enter(&self) -> io::Result<()> {
        if let Some(files) = &self.files {
            // SAFETY: a system call on two numbers
            if unsafe { libc::syscall(libc::SYS_landlock_restrict_self, files.as_raw_fd(), 0u32) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if !self.network {
            let program = libc::sock_fprog { len: FILTER_LENGTH, filter: FILTER.as_ptr().cast_mut() };
            // SAFETY: the kernel copies the filter, which is static, and does not write to it
            let done = unsafe {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
            };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    #[allow(clippy::cast_possible_truncation, reason = "the codes have 16 bits")]
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on after `steps` more statements when the number that was loaded compares to `k`.
const fn jump(code: u32, k: u32, steps: u8) -> libc::sock_filter {
    #[allow(clippy::cast_possible_truncation, reason = "the codes have 16 bits")]
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_K | code) as u16, jt: steps, jf: 0, k }
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "numbers of system calls are small"
)]
const fn call(number: libc::c_long) -> u32 {
    number as u32
}

const FILTER_LENGTH: u16 = 13;
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// No `socket`, no io_uring, which can make sockets past any filter, and no taking of another process's sockets: neither a
/// copy of one, nor by being its debugger. A program for another architecture, whose
/// calls have other numbers, is killed. `socketpair` stays: it reaches nobody.
#[allow(clippy::cast_sign_loss, reason = "an error's number is positive")]
const FILTER: [libc::sock_filter; FILTER_LENGTH as usize] = [
    statement(LOAD, 4), // the architecture
    jump(libc::BPF_JEQ, ARCHITECTURE, 1),
    statement(RETURN, libc::SECCOMP_RET_KILL_PROCESS),
    statement(LOAD, 0),                  // the call's number
    jump(libc::BPF_JGE, 0x4000_0000, 7), // x86's second set of numbers
    jump(libc::BPF_JEQ, call(libc::SYS_socket), 6),
    jump(libc::BPF_JEQ, call(libc::SYS_io_uring_setup), 5),
    jump(libc::BPF_JEQ, call(libc::SYS_io_uring_enter), 4),
    jump(libc::BPF_JEQ, call(libc::SYS_pidfd_getfd), 3),
    jump(libc::BPF_JEQ, call(libc::SYS_ptrace), 2),
    jump(libc::BPF_JEQ, call(libc::SYS_process_vm_writev), 1),
    statement(RETURN, libc::SECCOMP_RET_ALLOW),
    statement(RETURN, libc::SECCOMP_RET_ERRNO | libc::EACCES as u32),
];
