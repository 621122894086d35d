//! The seam: the few things that the store asks of a disk.
//!
//! [`Uring`](super::Uring) is the real one. The tests have another, a disk in memory that can fail at any
//! operation and lose whatever a power cut may lose (`tests/store_support/sim.rs`); the store's guarantees
//! are proved on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How a file is opened. None of them follows a symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// To read.
    Read,
    /// To read and write what exists.
    Write,
    /// To write a file that must not exist yet; its mode is 0600 whatever the umask.
    New,
}

/// What a name in a directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything else: a symlink, a socket, …
    Other,
}

/// What shows whether a file is still the one that was read. As long as a stamp is the same, so are the file's bytes:
/// but for a disk that loses or changes what it holds, which only reading shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    /// Its name, without its directory.
    pub name: String,
    /// The file system's number for it.
    pub file: u64,
    /// Its length in bytes.
    pub len: u64,
    /// When it was last changed, in nanoseconds of the file system's clock.
    pub changed: i128,
}

/// A name in a directory. Names that are not UTF-8 are left out: no file of ours has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without its directory.
    pub name: String,
    /// What it stands for.
    pub kind: Kind,
}

/// Something else stands where a file or a directory of ours belongs; it is left alone. Inside the
/// `io::Error` of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misplaced {
    /// What is there, with its article.
    pub found: &'static str,
    /// What belongs there, with its article.
    pub belongs: &'static str,
}

impl Misplaced {
    /// As an operation's error.
    #[must_use]
    pub fn error(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, self)
    }

    /// Whether this is why an operation failed.
    #[must_use]
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, belongs } = self;
        write!(
            f,
            "{found} is where {belongs} belongs; it is left alone: move it away, and put back what was there"
        )
    }
}

impl std::error::Error for Misplaced {}

/// What became of a write and of the sync that was linked to it.
#[derive(Debug)]
pub struct Appended {
    /// How many bytes were written; fewer than given is possible, and no success.
    pub written: io::Result<usize>,
    /// Whether they were synced. A sync whose write failed or was short is never begun; its error is
    /// `ECANCELED`.
    pub synced: io::Result<()>,
}

/// A place for files. An operation that was begun runs to its end even when the caller drops its future.
#[allow(async_fn_in_trait)]
pub trait Storage: Clone + 'static {
    /// An open file.
    type File: StorageFile;
    /// An exclusive lock, held until it is dropped or the process ends.
    type Lock: 'static;

    /// Opens a file. What is no regular file is not waited for, and is [`Misplaced`].
    async fn open(&self, path: &Path, access: Access) -> io::Result<Self::File>;

    /// Makes a directory that must not exist yet; its mode is 0700 whatever the umask.
    async fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Locks a directory against every other opener in any process; `None` when somebody holds it. A
    /// symlink to a directory is not one.
    async fn lock(&self, dir: &Path) -> io::Result<Option<Self::Lock>>;

    /// Makes a directory's names durable.
    async fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// A directory's names, in no order. A symlink to a directory is not one.
    async fn list(&self, dir: &Path) -> io::Result<Vec<Entry>>;

    /// The stamps of all that is no directory in each of `dirs`, in the order of their names; none of a directory
    /// that cannot be listed.
    async fn stamps(&self, dirs: Vec<PathBuf>) -> Vec<Vec<Stamp>>;

    /// Gives a file or a directory another name, which nothing may have yet.
    async fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits, for what another process may be in the middle of.
    async fn pause(&self, how_long: Duration);

    /// Removes a name: an empty directory's, or that of anything else.
    async fn remove(&self, path: &Path, kind: Kind) -> io::Result<()>;
}

/// An open file of a [`Storage`].
#[allow(async_fn_in_trait)]
pub trait StorageFile: 'static {
    /// Reads at most `buffer.len()` bytes from `at` on into `buffer` and gives it back, cut to what was
    /// read: nothing at the file's end.
    async fn read_at(&self, at: u64, buffer: Vec<u8>) -> io::Result<Vec<u8>>;

    /// Writes `bytes` at `at`, and when all of them are written, syncs the file's data: in this order.
    async fn append(&self, at: u64, bytes: Vec<u8>) -> Appended;

    /// Sets `len` bytes of the disk aside from `at` on, for what will be appended there. The file stays as long as it
    /// is, and as it is.
    async fn reserve(&self, at: u64, len: u64) -> io::Result<()>;

    /// Cuts the file to `len` bytes, and gives back what was set aside behind them. Durable after the next [`sync`](Self::sync).
    async fn truncate(&self, len: u64) -> io::Result<()>;

    /// Makes the file's data and length durable (`fdatasync`).
    async fn sync(&self) -> io::Result<()>;

    /// Syncs what is not on the disk yet and forgets what is only remembered of it, so that reads from
    /// here on show what the disk holds. After a failed sync the page cache can show bytes that the disk
    /// never got.
    async fn refresh(&self) -> io::Result<()>;
}
