//! The real storage: files through the runtime's io_uring.
//!
//! - A write and its fdatasync are a linked pair: two entries of one submission, pushed with nothing in
//!   between. A chain ends where a submission ends, and tokio-uring submits by itself when the queue is
//!   full, so [`ring::run`] keeps the entries in flight far below the queue's length.
//! - The file and the buffers of an operation live as long as the kernel may use them, whatever becomes of
//!   the caller.
//! - What io_uring has no operation for (reading a directory, changing a mode, cutting a file) runs on
//!   tokio's blocking threads, never on the runtime's thread.

mod file;
mod ring;
mod runtime;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, types};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};
use nix::libc;

use super::storage::{Access, Entry, Kind, Misplaced, Stamp, Storage};

pub use file::UringFile;
pub use ring::oldest_sync_age;
pub use runtime::{RingError, ignore_sigxfsz};

/// The disk, through the runtime's io_uring. Its methods work inside [`Uring::runtime`] only.
#[derive(Debug, Clone, Copy, Default)]
pub struct Uring;

/// A path as the kernel takes it, held for as long as an operation uses it.
fn cstr(path: &Path) -> io::Result<std::ffi::CString> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a NUL byte in a path"))
}

const HERE: types::Fd = types::Fd(libc::AT_FDCWD);

const REGULAR: &str = "a regular file";
const DIRECTORY: &str = "a directory";

/// Opens what should be of the kind that `belongs` there; an error says so when something else is.
async fn open(path: &Path, flags: OFlag, mode: libc::mode_t, belongs: &'static str) -> io::Result<OwnedFd> {
    let name = cstr(path)?;
    let opened = ring::spawn(1, move || {
        let entry = opcode::OpenAt::new(HERE, name.as_ptr())
            .flags((flags | OFlag::O_CLOEXEC).bits())
            .mode(mode)
            .build();
        ring::submit(name, ring::Fd, entry)
    });
    match opened.await? {
        Ok(fd) => Ok(fd),
        Err(e) => Err(misplaced(path, e, belongs).await),
    }
}

/// Runs what has no io_uring operation on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let _age = ring::Age::begin();
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// What a kind of file is called, with its article.
fn called(kind: fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_file() => REGULAR,
        kind if kind.is_dir() => DIRECTORY,
        kind if kind.is_symlink() => "a symlink",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Makes clear an error that came of what stands at `path`; any other error stays as it is.
async fn misplaced(path: &Path, error: io::Error, belongs: &'static str) -> io::Error {
    let telling = [Errno::ELOOP, Errno::EISDIR, Errno::ENOTDIR, Errno::ENXIO, Errno::ENODEV];
    if !error.raw_os_error().is_some_and(|errno| telling.contains(&Errno::from_raw(errno))) {
        return error;
    }
    let path = path.to_owned();
    match blocking(move || Ok(called(fs::symlink_metadata(path)?.file_type()))).await {
        Ok(found) if found != belongs => Misplaced { found, belongs }.error(),
        _ => error,
    }
}

async fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    let path = path.to_owned();
    blocking(move || fs::set_permissions(path, fs::Permissions::from_mode(mode))).await
}

/// The stamps of a directory's files.
fn stamps_in(dir: &Path) -> io::Result<Vec<Stamp>> {
    let mut stamps = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // of a symlink, its own
        let metadata = entry.metadata()?;
        if let Ok(name) = entry.file_name().into_string()
            && !metadata.is_dir()
        {
            let changed = i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec());
            stamps.push(Stamp { name, file: metadata.ino(), len: metadata.len(), changed });
        }
    }
    stamps.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(stamps)
}

impl Storage for Uring {
    type File = UringFile;
    type Lock = Flock<OwnedFd>;

    async fn open(&self, path: &Path, access: Access) -> io::Result<UringFile> {
        let flags = match access {
            Access::Read => OFlag::O_RDONLY,
            Access::Write => OFlag::O_RDWR,
            Access::New => OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL,
        };
        // to open a pipe would wait for its other end
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
        let fd = open(path, flags, 0o600, REGULAR).await?;
        if access == Access::New {
            // the umask can only have taken bits away
            set_mode(path, 0o600).await?;
        }
        // a device may have no end, and whoever reads it to its end never comes back
        let kind = fs::File::from(fd.try_clone()?).metadata()?.file_type();
        if !kind.is_file() {
            return Err(Misplaced { found: called(kind), belongs: REGULAR }.error());
        }
        // or io_uring would give up, instead of waiting, what cannot be done at once
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty()))?;
        Ok(UringFile::new(Arc::new(fd)))
    }

    async fn create_dir(&self, path: &Path) -> io::Result<()> {
        let c_path = cstr(path)?;
        ring::spawn(1, move || {
            let entry = opcode::MkDirAt::new(HERE, c_path.as_ptr()).mode(0o700).build();
            ring::submit(c_path, ring::Done, entry)
        })
        .await??;
        set_mode(path, 0o700).await
    }

    async fn lock(&self, dir: &Path) -> io::Result<Option<Self::Lock>> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let fd = open(dir, flags, 0, DIRECTORY).await?;
        match Flock::lock(fd, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Some(lock)),
            Err((_, Errno::EWOULDBLOCK)) => Ok(None),
            Err((_, errno)) => Err(errno.into()),
        }
    }

    async fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fd = open(dir, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0, DIRECTORY).await?;
        ring::spawn(1, move || {
            let entry = opcode::Fsync::new(types::Fd(fd.as_raw_fd())).build();
            ring::submit(fd, ring::Done, entry)
        })
        .await?
    }

    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let dir = dir.to_owned();
        blocking(move || {
            let found = called(fs::symlink_metadata(&dir)?.file_type());
            if found != DIRECTORY {
                return Err(Misplaced { found, belongs: DIRECTORY }.error());
            }
            let mut entries = Vec::new();
            for entry in fs::read_dir(&dir)? {
                let entry = entry?;
                let kind = match entry.file_type()? {
                    t if t.is_dir() => Kind::Dir,
                    t if t.is_file() => Kind::File,
                    _ => Kind::Other,
                };
                if let Ok(name) = entry.file_name().into_string() {
                    entries.push(Entry { name, kind });
                }
            }
            Ok(entries)
        })
        .await
    }

    async fn stamps(&self, dirs: Vec<PathBuf>) -> Vec<Vec<Stamp>> {
        // all in one go: a thousand small hops to another thread would take longer than the work
        let all = blocking(move || Ok(dirs.iter().map(|dir| stamps_in(dir).unwrap_or_default()).collect()));
        all.await.unwrap_or_default()
    }

    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let paths = (cstr(from)?, cstr(to)?);
        ring::spawn(1, move || {
            let entry = opcode::RenameAt::new(HERE, paths.0.as_ptr(), HERE, paths.1.as_ptr())
                .flags(libc::RENAME_NOREPLACE)
                .build();
            ring::submit(paths, ring::Done, entry)
        })
        .await?
    }

    async fn pause(&self, how_long: Duration) {
        tokio::time::sleep(how_long).await;
    }

    async fn remove(&self, path: &Path, kind: Kind) -> io::Result<()> {
        let path = cstr(path)?;
        let flags = if kind == Kind::Dir { libc::AT_REMOVEDIR } else { 0 };
        ring::spawn(1, move || {
            let entry = opcode::UnlinkAt::new(HERE, path.as_ptr()).flags(flags).build();
            ring::submit(path, ring::Done, entry)
        })
        .await?
    }
}
