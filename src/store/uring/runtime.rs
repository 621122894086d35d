//! Starting the ring, and saying why it does not start.

use std::fmt;
use std::fs;
use std::io;

use io_uring::{IoUring, Probe, opcode};
use nix::libc;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

use super::{Uring, ring};

/// Why there is no io_uring, and what to do about it.
#[derive(Debug)]
pub struct RingError {
    source: io::Error,
    cause: String,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring cannot be used: {}; {}", self.source, self.cause)
    }
}

impl std::error::Error for RingError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

impl Uring {
    /// The runtime on which everything of this process runs: tokio's, on the current thread, with a ring.
    ///
    /// # Errors
    /// The kernel refuses a ring, or one with the operations that the store uses.
    pub fn runtime() -> Result<tokio_uring::Runtime, RingError> {
        probe()?;
        let mut builder = tokio_uring::builder();
        builder.entries(ring::ENTRIES);
        tokio_uring::Runtime::new(&builder).map_err(RingError::explain)
    }
}

/// The operations that the store uses, each with the kernel that brought it.
const NEEDED: &[(u8, &str)] = &[
    (opcode::Read::CODE, "read (Linux 5.6)"),
    (opcode::Write::CODE, "write (Linux 5.6)"),
    (opcode::Fsync::CODE, "fsync (Linux 5.1)"),
    (opcode::OpenAt::CODE, "openat (Linux 5.6)"),
    (opcode::Fadvise::CODE, "fadvise (Linux 5.6)"),
    (opcode::RenameAt::CODE, "renameat (Linux 5.11)"),
    (opcode::UnlinkAt::CODE, "unlinkat (Linux 5.11)"),
    (opcode::MkDirAt::CODE, "mkdirat (Linux 5.15)"),
];

/// Makes a small ring and asks it what it can do.
fn probe() -> Result<(), RingError> {
    let ring = IoUring::new(2).map_err(RingError::explain)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|source| RingError {
        source,
        cause: "the kernel does not tell what its io_uring can do; Linux 5.15 or newer is needed".to_owned(),
    })?;
    // the threads that wait for the disk belong to this thread, not to a ring, and its first ring, this little
    // one, would allow only two of them
    ring.submitter().register_iowq_max_workers(&mut [ring::WORKERS, 0]).map_err(RingError::explain)?;
    let missing: Vec<_> =
        NEEDED.iter().filter(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(RingError {
        source: io::Error::from_raw_os_error(libc::EOPNOTSUPP),
        cause: format!("this kernel's io_uring lacks {}; Linux 5.15 or newer is needed", missing.join(", ")),
    })
}

impl RingError {
    /// Looks for the cause of what `io_uring_setup` answered.
    fn explain(source: io::Error) -> Self {
        let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        let filtered = fs::read_to_string("/proc/self/status")
            .unwrap_or_default()
            .lines()
            .any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
        let cause = Self::cause(source.raw_os_error(), sysctl.trim(), filtered);
        Self { source, cause }
    }

    /// The cause of an errno: `sysctl` is what kernel.io_uring_disabled says (empty where there is
    /// none), `filtered` whether a seccomp filter is in force.
    fn cause(errno: Option<i32>, sysctl: &str, filtered: bool) -> String {
        const FILTER: &str = "a seccomp filter of this process's surroundings refuses io_uring_setup; allow \
            io_uring_setup, io_uring_enter and io_uring_register (systemd: SystemCallFilter=@aio; \
            containers: a seccomp profile that allows them)";
        match (errno, sysctl) {
            (Some(libc::EPERM), "2") => {
                "the sysctl kernel.io_uring_disabled is 2: nobody may use it; set it \
                 to 0 (sysctl kernel.io_uring_disabled=0, or boot.kernel.sysctl on NixOS)"
                    .to_owned()
            }
            (Some(libc::EPERM), "1") => {
                "the sysctl kernel.io_uring_disabled is 1: only root and the group of \
                 kernel.io_uring_group may use it; set it to 0, or put this user into that group"
                    .to_owned()
            }
            // a hardened service may not read the sysctl
            (Some(libc::EPERM | libc::EACCES), "") => {
                format!(
                    "either {FILTER}; or the sysctl kernel.io_uring_disabled, which this process cannot read, is \
                     1 or 2: set it to 0"
                )
            }
            (Some(libc::EPERM | libc::EACCES), _) => FILTER.to_owned(),
            (Some(libc::ENOSYS), _) if filtered => FILTER.to_owned(),
            (Some(libc::ENOSYS), _) => {
                "this kernel has no io_uring (Linux 5.15 or newer with CONFIG_IO_URING is needed)".to_owned()
            }
            (Some(libc::ENOMEM), _) => {
                let limit = getrlimit(Resource::RLIMIT_MEMLOCK)
                    .map_or_else(|_| "unknown".to_owned(), |(soft, _)| soft.to_string());
                format!(
                    "there is no memory for it: the limit of locked memory is {limit} bytes; raise it \
                     (systemd: LimitMEMLOCK=8M; shell: ulimit -l), or free memory"
                )
            }
            (Some(libc::EMFILE | libc::ENFILE), _) => {
                "too many files are open; raise the limit (systemd: LimitNOFILE=4096; shell: ulimit -n)"
                    .to_owned()
            }
            (Some(libc::EINVAL), _) => {
                "this kernel's io_uring is too old; Linux 5.15 or newer is needed".to_owned()
            }
            _ => "no known cause; `loopd check` tells what this machine lacks".to_owned(),
        }
    }
}

/// Ignores SIGXFSZ, so that a file at its size limit gives an error instead of ending the process.
///
/// # Errors
/// The kernel refuses; it never does.
pub fn ignore_sigxfsz() -> io::Result<()> {
    // SAFETY: ignoring a signal runs no code of ours.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_appends_wait_for_the_disk_as_may_be_in_flight() {
        let _runtime = Uring::runtime().unwrap();
        let mut allowed = [0, 0];
        IoUring::new(2).unwrap().submitter().register_iowq_max_workers(&mut allowed).unwrap();
        assert_eq!(allowed[0], ring::WORKERS);
    }

    #[test]
    fn every_refusal_names_its_cause_and_its_remedy() {
        let cause = RingError::cause;
        assert!(cause(Some(libc::EPERM), "2", false).contains("kernel.io_uring_disabled is 2"));
        assert!(cause(Some(libc::EPERM), "1", true).contains("io_uring_group"));
        assert!(cause(Some(libc::EPERM), "0", true).contains("SystemCallFilter"));
        assert!(cause(Some(libc::ENOSYS), "", true).contains("seccomp"));
        assert!(cause(Some(libc::ENOSYS), "", false).contains("CONFIG_IO_URING"));
        assert!(cause(Some(libc::ENOMEM), "0", false).contains("LimitMEMLOCK"));
        let shown = RingError::explain(io::Error::from_raw_os_error(libc::ENOSYS)).to_string();
        assert!(shown.contains("os error 38"), "{shown}");
    }
}
