//! One daemon a home.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::ChannelError;
use crate::proto::Timestamp;

/// The lock file's name in a home.
pub const LOCK_FILE: &str = "loopd.lock";
/// Enough for two short lines; more is not a lock file of ours.
const LOCK_FILE_BYTES: u64 = 256;
/// How often, and how long apart, a lock that is held is tried again.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
const READ_TRIES: u32 = 5;
const READ_PAUSE: Duration = Duration::from_millis(20);

/// Who holds a home, as its lock file says. Only true while the file is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// When it took the lock.
    pub started: Timestamp,
}

impl Holder {
    /// What the lock file says. A holder that has only just taken the lock gets a moment to write it.
    fn of(file: &mut File) -> Option<Self> {
        for _ in 0..READ_TRIES {
            if let Some(holder) = Self::read(file) {
                return Some(holder);
            }
            std::thread::sleep(READ_PAUSE);
        }
        None
    }

    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
        file.rewind().ok()?;
        file.take(LOCK_FILE_BYTES).read_to_string(&mut text).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.parse().ok()?;
        let started = lines.next()?.parse().ok()?;
        Some(Self { pid, started })
    }
}

/// A home that is this process's alone, until this is dropped or the process ends, in whatever way.
///
/// An exclusive `flock` on `<home>/loopd.lock`: it belongs to the file, so another path to the same home
/// finds it too, and it ends with the process, so there is never a stale one. The file stays; its
/// content (the process and the time) means something only while it is locked. The directory is locked
/// as well, so that removing the file lets nobody in.
#[derive(Debug)]
pub struct HomeLock {
    _file: Flock<File>,
    _home: Option<Flock<File>>,
    path: PathBuf,
}

impl HomeLock {
    /// Takes the home, which is made (mode 0700) when it is not there.
    ///
    /// # Errors
    /// [`ChannelError::HomeHeld`] naming the process that has it; [`ChannelError::Lock`] when the file
    /// cannot be made or locked.
    pub fn take(home: &Path) -> Result<Self, ChannelError> {
        let path = home.join(LOCK_FILE);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(home)
            .map_err(failed(home, "make the home directory"))?;
        let mut file = hold(&path, |lock, holder| ChannelError::HomeHeld { lock, holder })?;
        let directory = File::open(home).map_err(failed(home, "open the home directory"))?;
        let directory = match try_lock(directory) {
            Ok(directory) => Some(directory),
            Err((_, Errno::EWOULDBLOCK)) => return Err(ChannelError::HomeHeld { holder: None, lock: path }),
            Err((_, errno)) => {
                // some network file systems lock no directories; the file is locked, which is enough
                log::debug!("{}: the directory cannot be locked as well: {errno}", home.display());
                None
            }
        };
        sign(&mut file).map_err(failed(&path, "write the lock file"))?;
        Ok(Self { _file: file, _home: directory, path })
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A folder of saved slots that is this process's alone, as a home is: `flock` on `<folder>/loopd.lock`.
#[derive(Debug)]
pub struct SlotsLock {
    _file: Flock<File>,
}

impl SlotsLock {
    /// Takes the folder, which must be there.
    ///
    /// # Errors
    /// [`ChannelError::SlotsHeld`] naming the process that has it; [`ChannelError::Lock`] when the file
    /// cannot be made or locked.
    pub fn take(folder: &Path) -> Result<Self, ChannelError> {
        let path = folder.join(LOCK_FILE);
        let mut file = hold(&path, |lock, holder| ChannelError::SlotsHeld { lock, holder })?;
        sign(&mut file).map_err(failed(&path, "write the lock file"))?;
        Ok(Self { _file: file })
    }
}

fn failed(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> ChannelError {
    let path = path.to_owned();
    move |source| ChannelError::Lock { path, step, source }
}

/// Locks a lock file; one that another process has is the error that `held` makes.
fn hold(path: &Path, held: fn(PathBuf, Option<Holder>) -> ChannelError) -> Result<Flock<File>, ChannelError> {
    let file = open(path).map_err(failed(path, "open the lock file"))?;
    match try_lock(file) {
        Ok(file) => Ok(file),
        Err((mut file, Errno::EWOULDBLOCK)) => Err(held(path.to_owned(), Holder::of(&mut file))),
        Err((_, errno)) => Err(failed(path, "lock the lock file")(errno.into())),
    }
}

/// Opens a lock file, which is made when it is not there.
fn open(path: &Path) -> io::Result<File> {
    // opening a pipe or a device may wait, or do something
    if std::fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
        let why =
            "something that is no regular file is in its place; move it away, and loopd makes a new one";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let flags = OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags.bits());
    options.open(path)
}

/// Writes who holds a lock.
fn sign(file: &mut File) -> io::Result<()> {
    let text = format!("{}\n{}\n", std::process::id(), Timestamp::now());
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

/// Locks a file, with some patience: a daemon that was killed while it started a tool leaves the lock to that
/// child for the moment until the child becomes the tool's program or ends.
fn try_lock(mut file: File) -> Result<Flock<File>, (File, Errno)> {
    for _ in 1..LOCK_TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Err((held, Errno::EWOULDBLOCK | Errno::EINTR)) => file = held,
            other => return other,
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
}
