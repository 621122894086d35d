//! Room on the disk that is set aside ahead of a log, and given back when nobody writes there any more.
//!
//! It changes neither the log's bytes nor its length. It makes a log one long piece of the disk where it would be many short
//! ones, a few blocks each, with other sessions' between: a file of more than four pieces costs ext4 one block more in
//! each sync.

use std::rc::Rc;

use super::log::{Log, locked};
use super::session::{Pending, Session};
use super::storage::{Storage, StorageFile};

/// How much is set aside at a time, in bytes.
const AHEAD: u64 = 1024 * 1024;

impl<F: StorageFile, L> Log<F, L> {
    /// Sees to it that room is set aside for `len` bytes from `end` on, the log's acknowledged length. A file system that
    /// cannot do that, or is full, is no error: the append itself will tell.
    pub(crate) async fn reserve(&self, end: u64, len: u64) {
        let needed = end.saturating_add(len);
        if self.is_poisoned() || needed <= self.reserved.get() {
            return;
        }
        let _ = self.file.reserve(end, len.saturating_add(AHEAD)).await;
        self.reserved.set(needed.saturating_add(AHEAD));
    }

    /// Gives back what is set aside behind `end`, the log's acknowledged length.
    ///
    /// Until it has ended nobody may append, or that would be cut away.
    pub(crate) async fn release(&self, end: u64) {
        if self.is_poisoned() || self.reserved.replace(0) <= end {
            return;
        }
        // bytes that somebody else put there are not ours to cut
        if self.ends_at(end).await {
            // what cannot be given back stays; the log is as it was
            let _ = self.file.truncate(end).await;
        }
    }
}

impl<S: Storage> Session<S> {
    /// Gives back the part of the disk that is set aside for appends to come. When its future is dropped, that goes
    /// on, as an append does.
    pub(super) async fn release(&mut self) {
        if self.ready().await.is_ok() {
            let (log, end) = (Rc::clone(&self.log), self.end);
            let write = locked(&self.log, async move {
                log.release(end).await;
                Ok(None)
            });
            let (records, sequence, last) = (Vec::new(), self.sequence.clone(), self.last);
            self.pending = Some(Pending { records, sequence, last, bytes: 0, write, epoch: None });
            let _ = self.settle().await;
        }
    }
}
