//! One daemon a home.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::ChannelError;
use crate::proto::Timestamp;

/// The lock file's name in a home.
pub const LOCK_FILE: &str = "loopd.lock";
/// Enough for two short lines; more is not a lock file of ours.
const LOCK_FILE_BYTES: u64 = 256;

/// Who holds a home, as its lock file says. Only true while the file is locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// When it took the lock.
    pub started: Timestamp,
}

impl Holder {
    fn read(file: &mut File) -> Option<Self> {
        let mut text = String::new();
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
/// content (the process and the time) means something only while it is locked.
#[derive(Debug)]
pub struct HomeLock {
    _file: Flock<File>,
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
        let failed = |path: &Path, step| {
            let path = path.to_owned();
            move |source| ChannelError::Lock { path, step, source }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(home)
            .map_err(failed(home, "make the home directory"))?;
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags((OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW).bits())
                .open(&path)
                .map_err(failed(&path, "open the lock file"))?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((mut file, Errno::EWOULDBLOCK)) => {
                    return Err(ChannelError::HomeHeld { holder: Holder::read(&mut file), lock: path });
                }
                Err((_, Errno::EINTR)) => continue,
                Err((_, errno)) => return Err(failed(&path, "lock the lock file")(errno.into())),
            };
            // locked, but is it still the file of that name? Somebody may have removed it meanwhile, and
            // a second daemon would lock the new one
            if !still_named(&file, &path).map_err(failed(&path, "look at the lock file"))? {
                continue;
            }
            let text = format!("{}\n{}\n", std::process::id(), Timestamp::now());
            file.set_len(0)
                .and_then(|()| file.write_all(text.as_bytes()))
                .map_err(failed(&path, "write the lock file"))?;
            return Ok(Self { _file: file, path });
        }
    }

    /// The lock file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn still_named(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok(named.dev() == ours.dev() && named.ino() == ours.ino()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
