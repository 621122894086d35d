//! The next epoch of a session: a new baseline and a new log, there whole or not at all.
//!
//! Both files are written under names that nothing reads, and synced. The baseline gets its name first, and
//! that is synced; then the log gets its own, and with it the epoch has begun. So wherever the power goes, the
//! session opens in the old epoch or in the new one, and what is left of the beginning hides neither.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::baseline::Baseline;
use super::create::{write_baseline, write_new};
use super::error::{Result, SessionError, Unknown};
use super::log::{Batch, Log, locked};
use super::repair::move_remains;
use super::session::{OpenLog, Pending, Session};
use super::storage::{Access, Kind, Storage};
use super::uring::Uring;
use super::walk::{Step, baseline_path, baseline_tmp_path, epochs, log_path, log_tmp_path, walk};
use crate::proto::{Epoch, LogRecord, SessionId, SessionStart, Timestamp, Violation, count};

impl<S: Storage> Session<S> {
    /// Begins the next epoch with this baseline, durably; `records` follow its `session_start` in the same
    /// append. From here on [`Session::records`] are those of the new epoch.
    ///
    /// When its future is dropped, it goes on as an append does: the next one waits for it, and a session that is
    /// dropped leaves it a task.
    ///
    /// # Errors
    /// As [`Session::append_all`]; the session is then as it was, in the old epoch, unless
    /// [`SessionError::unknown`].
    pub async fn begin_epoch(&mut self, baseline: Baseline, records: Vec<LogRecord>) -> Result<()> {
        self.ready().await?;
        let epoch = self.epoch().next();
        let start = SessionStart {
            time: Timestamp::now(),
            session: self.id().clone(),
            epoch,
            slot: self.slot(),
            baseline: baseline.hash(),
            previous: Some(self.last),
            origin: None,
        };
        let mut all = vec![LogRecord::SessionStart(start)];
        all.extend(records);
        let refused = |violation| SessionError::Sequence(log_path(&self.dir, epoch), violation);
        let mut sequence = self.sequence.next_epoch();
        all.iter().try_for_each(|record| sequence.check(record)).map_err(refused)?;
        if let Some(turn) = sequence.left_open() {
            return Err(refused(Violation::left_open(turn)));
        }
        let Batch { bytes, last, longest } = Batch::encode(baseline.hash(), &all)?;
        let length = count(bytes.len());
        self.check_size(&all, longest, length)?;
        self.release().await;
        let begin = Begin {
            storage: self.storage.clone(),
            dir: self.dir.clone(),
            id: self.id().clone(),
            epoch,
            old: Rc::clone(&self.log),
        };
        let content = baseline.clone();
        let write = locked(&self.log, async move { begin.run(&content, bytes).await.map(Some) });
        let epoch = Some((epoch, baseline));
        self.pending = Some(Pending { records: all, sequence, last, bytes: length, write, epoch });
        self.settle().await
    }

    /// A reader of all epochs before the newest.
    #[must_use]
    pub fn earlier(&self) -> Earlier<S> {
        Earlier {
            storage: self.storage.clone(),
            dir: self.dir.clone(),
            id: self.id().clone(),
            newest: self.epoch(),
        }
    }
}

/// The beginning of an epoch, on its way.
struct Begin<S: Storage> {
    storage: S,
    dir: PathBuf,
    id: SessionId,
    epoch: Epoch,
    old: OpenLog<S>,
}

impl<S: Storage> Begin<S> {
    async fn run(&self, baseline: &Baseline, bytes: Vec<u8>) -> Result<OpenLog<S>> {
        let Self { storage, dir, epoch, old, .. } = self;
        let (tmp, path) = (log_tmp_path(dir, *epoch), log_path(dir, *epoch));
        let file = match self.prepare(baseline, &tmp, bytes).await {
            Ok(file) => file,
            Err(e) => {
                self.clear_away().await;
                return Err(e);
            }
        };
        // from here on the epoch may have begun, whatever the disk says: what went into the old log then would
        // be lost, so nothing goes there before a fresh open has seen which of the two it is
        old.poison();
        let unknown = |doing| {
            let path = path.clone();
            move |e| SessionError::Io(path, Unknown::wrap(doing, e))
        };
        storage.rename(&tmp, &path).await.map_err(unknown("naming the new epoch's log"))?;
        storage.sync_dir(dir).await.map_err(unknown("the sync of the new epoch's name"))?;
        Ok(Rc::new(Log::new(path, file, Rc::clone(old.lock()))))
    }

    /// Makes both files, durably, but for the log's name.
    async fn prepare(&self, baseline: &Baseline, tmp: &Path, bytes: Vec<u8>) -> Result<S::File> {
        let Self { storage, dir, id, epoch, .. } = self;
        // what an earlier attempt has left when it was cut off has these names
        let remains = epochs(storage, dir, id).await.map_err(|broken| broken.error)?.remains;
        move_remains(storage, dir, &remains).await?;
        write_baseline(storage, dir, *epoch, baseline).await?;
        write_new(storage, tmp, bytes).await.map_err(SessionError::io(tmp))?;
        let file = storage.open(tmp, Access::Write).await.map_err(SessionError::io(tmp))?;
        storage.sync_dir(dir).await.map_err(SessionError::io(dir))?;
        Ok(file)
    }

    /// After a failure: removes what was made, as far as the disk allows; the rest is told and moved away.
    async fn clear_away(&self) {
        let (dir, epoch) = (&self.dir, self.epoch);
        for path in [log_tmp_path(dir, epoch), baseline_path(dir, epoch), baseline_tmp_path(dir, epoch)] {
            let _ = self.storage.remove(&path, Kind::File).await;
        }
    }
}

/// Reads what a session's earlier epochs hold, and needs no lock.
#[derive(Debug, Clone)]
pub struct Earlier<S: Storage = Uring> {
    storage: S,
    dir: PathBuf,
    id: SessionId,
    newest: Epoch,
}

impl<S: Storage> Earlier<S> {
    /// Gives each record of the earlier epochs to `visit`, in order, one at a time from the disk; gives how many
    /// epochs there are.
    ///
    /// # Errors
    /// Damage, and the disk's.
    pub async fn each(&self, visit: &mut dyn FnMut(LogRecord)) -> Result<u32> {
        let Self { storage, dir, id, newest } = self;
        let mut reading = Epoch(0);
        let walked = walk(storage, dir, id, &mut |step| {
            match step {
                Step::Epoch(epoch, _) => reading = epoch,
                Step::Record(found) if reading < *newest => visit(found.record),
                Step::Record(_) => {}
            }
            if reading < *newest { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await;
        walked.map_err(|broken| broken.error)?;
        Ok(newest.0)
    }
}
