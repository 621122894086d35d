//! The writing end of a log.

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::pin::Pin;

use nix::libc;

use super::error::{Result, SessionError, Unknown};
use super::storage::{Appended, StorageFile};
use crate::proto::{Digest, LogRecord, Place, count, encode_line};

/// Records as the bytes of one append.
pub(crate) struct Batch {
    /// The lines.
    pub bytes: Vec<u8>,
    /// The digest of the last line.
    pub last: Digest,
    /// The longest line, in bytes.
    pub longest: u64,
}

impl Batch {
    /// Encodes `records` to follow the line whose digest is `last`.
    pub(crate) fn encode(last: Digest, records: &[LogRecord]) -> Result<Self> {
        let mut batch = Self { bytes: Vec::new(), last, longest: 0 };
        let mut more = u32::try_from(records.len())
            .map_err(|_| SessionError::Encode(serde::ser::Error::custom("too many records in one append")))?;
        for record in records {
            more = more.saturating_sub(1);
            let place = Place { back: count(batch.bytes.len()), more };
            let line = encode_line(batch.last, place, record).map_err(SessionError::Encode)?;
            batch.last = Digest::of(&line);
            batch.longest = batch.longest.max(count(line.len()));
            if batch.bytes.is_empty() {
                batch.bytes = line;
            } else {
                batch.bytes.extend_from_slice(&line);
            }
        }
        Ok(batch)
    }
}

/// Boxes what is done to a log, which stays locked until that has ended. When the runtime is shut down in the middle, the kernel
/// or a thread may still be at it; then the log stays locked until the process has ended.
pub(super) fn locked<F, L: Clone + 'static, T>(
    log: &Log<F, L>,
    work: impl Future<Output = T> + 'static,
) -> Pin<Box<dyn Future<Output = T>>> {
    let lock = ManuallyDrop::new(log.lock.clone());
    Box::pin(async move {
        let done = work.await;
        drop(ManuallyDrop::into_inner(lock));
        done
    })
}

/// An open log and the lock that makes this its only writer.
pub(crate) struct Log<F, L> {
    path: PathBuf,
    pub(super) file: F,
    poisoned: Cell<bool>,
    /// How far room was set aside, or was asked for in vain.
    pub(super) reserved: Cell<u64>,
    lock: L,
}

impl<F: StorageFile, L> Log<F, L> {
    pub(crate) fn new(path: PathBuf, file: F, lock: L) -> Self {
        Self { path, file, poisoned: Cell::new(false), reserved: Cell::new(0), lock }
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// What makes it the only writer.
    pub(crate) fn lock(&self) -> &L {
        &self.lock
    }

    /// Nothing more may be written: what the disk holds is unknown.
    pub(crate) fn poison(&self) {
        self.poisoned.set(true);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.get()
    }

    /// Writes `bytes` at `end`, the log's acknowledged length, and syncs them. After an error that leaves
    /// the log usable, it is `end` bytes long again, durably.
    pub(crate) async fn write(&self, end: u64, bytes: Vec<u8>) -> Result<()> {
        if self.is_poisoned() {
            return Err(SessionError::Poisoned(self.path.clone()));
        }
        let len = bytes.len();
        // until the outcome is known, a task that ends in the middle leaves a log that nobody may use
        self.poisoned.set(true);
        let Appended { written, synced } = self.file.append(end, bytes).await;
        let refused = match written {
            Ok(n) if n == len => {
                let synced = match synced {
                    // the sync was never begun, so none has failed
                    Err(e) if e.raw_os_error() == Some(libc::ECANCELED) => self.file.sync().await,
                    other => other,
                };
                return match synced {
                    Ok(()) => {
                        self.poisoned.set(false);
                        Ok(())
                    }
                    Err(e) => Err(self.unknown("the sync", e)),
                };
            }
            Ok(n) => {
                let why = format!(
                    "the disk took {n} of {len} bytes: it is full, or the file's size limit is reached; \
                     the log was cut back"
                );
                io::Error::new(io::ErrorKind::StorageFull, why)
            }
            // nothing was written, so nothing is to be cut back, which could not be done either
            Err(e) if e.raw_os_error() == Some(libc::EROFS) && self.ends_at(end).await => {
                self.poisoned.set(false);
                return Err(SessionError::Io(self.path.clone(), e));
            }
            Err(e) => e,
        };
        self.reserved.set(0);
        self.file.truncate(end).await.map_err(|e| self.unknown("cutting back a failed write", e))?;
        self.file.sync().await.map_err(|e| self.unknown("the sync after cutting back a failed write", e))?;
        self.poisoned.set(false);
        Err(SessionError::Io(self.path.clone(), refused))
    }

    /// Whether the file certainly has no byte from `end` on.
    pub(super) async fn ends_at(&self, end: u64) -> bool {
        self.file.read_at(end, vec![0; 1]).await.is_ok_and(|behind| behind.is_empty())
    }

    fn unknown(&self, doing: &'static str, error: io::Error) -> SessionError {
        SessionError::Io(self.path.clone(), Unknown::wrap(doing, error))
    }
}
