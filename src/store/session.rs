//! One session, open for appending.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use super::baseline::Baseline;
use super::create::Made;
use super::error::{Result, SessionError};
use super::log::{Batch, Log, locked};
use super::options::{MAX_RECORD_BYTES, OpenOptions, StoreLimits, TornTail};
use super::repair::{self, Cut};
use super::storage::Storage;
use super::uring::Uring;
use super::walk::{Step, Walked, log_path, walk};
use crate::proto::{
    CallId, Digest, Epoch, LogRecord, Sequence, SessionId, ToolOutcome, TurnId, Usage, count,
};

/// A session, open for appending: what it holds in memory is on the disk, synced.
pub struct Session<S: Storage = Uring> {
    pub(super) storage: S,
    id: SessionId,
    pub(super) dir: PathBuf,
    epoch: Epoch,
    baseline: Baseline,
    records: Vec<LogRecord>,
    pub(super) sequence: Sequence,
    last_usage: Option<Usage>,
    limits: StoreLimits,
    /// The log's acknowledged length, the digest of its last line, and the length of all earlier logs.
    pub(super) end: u64,
    pub(super) last: Digest,
    earlier_bytes: u64,
    pub(super) log: OpenLog<S>,
    /// What the beginning of an epoch that was cut off has left behind.
    remains: Vec<String>,
    /// An append that is under way; there still when its caller went away before its end.
    pub(super) pending: Option<Pending<S>>,
}

/// A log with the session's lock, which all of a session's logs share.
pub(super) type OpenLog<S> = Rc<Log<<S as Storage>::File, Rc<<S as Storage>::Lock>>>;

/// What an append does; it gives the log of the epoch that begins with it.
type Write<S> = Pin<Box<dyn Future<Output = Result<Option<OpenLog<S>>>>>>;

/// An append that is under way. A future is enough: a task for each append would be dearer, and the kernel
/// goes on with what it was given whoever waits.
pub(super) struct Pending<S: Storage> {
    pub(super) records: Vec<LogRecord>,
    pub(super) sequence: Sequence,
    pub(super) last: Digest,
    pub(super) bytes: u64,
    pub(super) write: Write<S>,
    /// That epoch.
    pub(super) epoch: Option<(Epoch, Baseline)>,
}

impl Session<Uring> {
    /// Makes a new session, durably. See [`Catalog::create`](super::Catalog::create) for generated ids.
    ///
    /// # Errors
    /// [`SessionError::Exists`], [`SessionError::HalfCreated`] where an earlier creation was cut off, or
    /// the disk's.
    pub async fn create(home: &Path, id: SessionId, baseline: Baseline, slot: u32) -> Result<Self> {
        Self::create_with(Uring, home, id, baseline, slot, Vec::new(), StoreLimits::default()).await
    }

    /// Opens a session and locks it.
    ///
    /// # Errors
    /// [`SessionError::NotFound`], [`SessionError::Locked`], damage, or the disk's.
    pub async fn open(home: &Path, id: &SessionId) -> Result<Self> {
        Ok(Self::open_with(Uring, home, id, OpenOptions::default()).await?.0)
    }
}

impl<S: Storage> Session<S> {
    /// A session's directory.
    #[must_use]
    pub fn dir_for(home: &Path, id: &SessionId) -> PathBuf {
        home.join("sessions").join(id.as_str())
    }

    /// As [`Session::open`], on any storage. Tells of a tail that was cut away, where
    /// [`TornTail::Quarantine`] allows it.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub async fn open_with(
        storage: S,
        home: &Path,
        id: &SessionId,
        options: OpenOptions,
    ) -> Result<(Self, Option<Cut>)> {
        let dir = Self::dir_for(home, id);
        let lock = storage.lock(&dir).await.map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => SessionError::NotFound(id.clone()),
            _ => SessionError::Io(dir.clone(), e),
        })?;
        let lock = lock.ok_or_else(|| SessionError::Locked(id.clone()))?;
        // a record that a killed process wrote may not be synced yet, and its file not be named: nobody is
        // shown it before it is durable; a directory without a log is no session
        let refreshed = repair::refresh(&storage, &dir, id).await?;
        let (newest, file) = refreshed.ok_or_else(|| SessionError::NotFound(id.clone()))?;
        let cut = match options.torn_tail {
            TornTail::Refuse => None,
            TornTail::Quarantine => repair::cut_tail(&storage, &dir, id).await?,
        };
        let log = Log::new(log_path(&dir, newest), file, Rc::new(lock));
        let session = Self::load(storage, id, dir, newest, log, options.limits).await?;
        Ok((session, cut))
    }

    /// Reads a locked session.
    async fn load(
        storage: S,
        id: &SessionId,
        dir: PathBuf,
        newest: Epoch,
        log: Log<S::File, Rc<S::Lock>>,
        limits: StoreLimits,
    ) -> Result<Self> {
        let mut records = Vec::new();
        let mut last_usage = None;
        let mut reading = Epoch(0);
        let mut keep = |step: Step<'_>| {
            match step {
                Step::Epoch(epoch, _) => reading = epoch,
                Step::Record(found) => {
                    if let LogRecord::Usage(usage) = &found.record {
                        last_usage = Some(usage.usage());
                    }
                    if reading == newest {
                        records.push(found.record);
                    }
                }
            }
            std::ops::ControlFlow::Continue(())
        };
        let walked = walk(&storage, &dir, id, &mut keep).await;
        let Walked { epoch, baseline, end, earlier_bytes, remains } =
            walked.map_err(|broken| broken.error)?;
        Ok(Self {
            storage,
            id: id.clone(),
            dir,
            epoch,
            baseline,
            records,
            sequence: end.sequence,
            last_usage,
            limits,
            end: end.bytes,
            last: end.last,
            earlier_bytes,
            log: Rc::new(log),
            remains,
            pending: None,
        })
    }

    /// A session that was made a moment ago.
    pub(super) fn assemble(
        storage: S,
        id: SessionId,
        dir: PathBuf,
        baseline: Baseline,
        records: Vec<LogRecord>,
        limits: StoreLimits,
        made: Made<S::File, Rc<S::Lock>>,
    ) -> Self {
        let Made { log, batch_last: last, end, sequence } = made;
        let (epoch, last_usage, earlier_bytes, pending) = (Epoch(0), None, 0, None);
        Self {
            storage,
            id,
            dir,
            epoch,
            baseline,
            records,
            sequence,
            last_usage,
            limits,
            end,
            last,
            earlier_bytes,
            log,
            remains: Vec::new(),
            pending,
        }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The newest epoch, whose records are in memory.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the beginning of an epoch that was cut off has left in the directory when the session was opened:
    /// names of files that nothing reads.
    #[must_use]
    pub fn remains(&self) -> &[String] {
        &self.remains
    }

    /// The newest epoch's baseline.
    #[must_use]
    pub fn baseline(&self) -> &Baseline {
        &self.baseline
    }

    /// The newest epoch's records; all of them are on the disk.
    #[must_use]
    pub fn records(&self) -> &[LogRecord] {
        &self.records
    }

    /// What the records came to: open turn, unanswered calls, next numbers.
    #[must_use]
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The number for the next tool call.
    #[must_use]
    pub fn next_call(&self) -> CallId {
        self.sequence.next_call()
    }

    /// The number for the next turn.
    #[must_use]
    pub fn next_turn(&self) -> TurnId {
        self.sequence.next_turn()
    }

    /// The latest usage record's numbers.
    #[must_use]
    pub fn last_usage(&self) -> Option<Usage> {
        self.last_usage
    }

    /// The model server's slot that it was made for.
    #[must_use]
    pub fn slot(&self) -> u32 {
        let start = self.records.iter().find_map(|record| match record {
            LogRecord::SessionStart(start) => Some(start.slot),
            _ => None,
        });
        start.unwrap_or_default()
    }

    /// Whether a sync failed: nothing more can be appended until the session is opened anew.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.pending.is_none() && self.log.is_poisoned()
    }

    /// Appends one record, durably.
    ///
    /// # Errors
    /// As [`Session::append_all`].
    pub async fn append(&mut self, record: LogRecord) -> Result<()> {
        self.append_all(vec![record]).await
    }

    /// Appends several records in one write and one sync: after success all of them are on the disk and
    /// in memory, after an error none of them is acknowledged.
    ///
    /// When its future is dropped, the append goes on: the next one waits for it, as [`Session::close`] does,
    /// and a session that is dropped leaves it a task.
    ///
    /// # Errors
    /// A record out of order or too large, before anything is written; the disk's; and
    /// [`SessionError::Poisoned`]. [`SessionError::unknown`] tells whether the records may be on the disk
    /// all the same.
    pub async fn append_all(&mut self, records: Vec<LogRecord>) -> Result<()> {
        self.ready().await?;
        if records.is_empty() {
            return Ok(());
        }
        let mut sequence = self.sequence.clone();
        for record in &records {
            sequence
                .check(record)
                .map_err(|violation| SessionError::Sequence(self.log.path().clone(), violation))?;
        }
        let Batch { bytes, last, longest } = Batch::encode(self.last, &records)?;
        let length = count(bytes.len());
        self.check_size(&records, longest, length)?;
        let (log, end) = (Rc::clone(&self.log), self.end);
        let write = locked(&self.log, async move {
            log.reserve(end, length).await;
            log.write(end, bytes).await.map(|()| None)
        });
        self.pending = Some(Pending { records, sequence, last, bytes: length, write, epoch: None });
        self.settle().await
    }

    pub(super) fn check_size(&self, records: &[LogRecord], longest: u64, length: u64) -> Result<()> {
        let too_large = |bytes, limit, max| {
            Err(SessionError::TooLarge { path: self.log.path().clone(), bytes, limit, max })
        };
        let record_bytes = self.limits.record_bytes.min(MAX_RECORD_BYTES);
        if longest > record_bytes {
            return too_large(longest, "record_bytes", record_bytes);
        }
        // a turn that the limit ends must still be able to end
        let ends_a_turn = |record: &LogRecord| match record {
            LogRecord::TurnEnd(_) => true,
            LogRecord::ToolResult(result) => result.outcome == ToolOutcome::Interrupted,
            _ => false,
        };
        let total = self.earlier_bytes.saturating_add(self.end).saturating_add(length);
        if total > self.limits.session_bytes && !records.iter().all(ends_a_turn) {
            return too_large(total, "session_bytes", self.limits.session_bytes);
        }
        Ok(())
    }

    /// Waits for an append whose caller went away, and tells whether the log can take another. What became of
    /// that one shows in the records and in the log's state.
    pub(super) async fn ready(&mut self) -> Result<()> {
        let _ = self.settle().await;
        if self.log.is_poisoned() { Err(SessionError::Poisoned(self.log.path().clone())) } else { Ok(()) }
    }

    /// Waits for the append that is under way, and takes its records into memory if it succeeded.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        let result = pending.write.as_mut().await;
        let Some(Pending { records, sequence, last, bytes, epoch, .. }) = self.pending.take() else {
            return Ok(());
        };
        let log = result?;
        let usage = records.iter().rev().find_map(|record| match record {
            LogRecord::Usage(usage) => Some(usage.usage()),
            _ => None,
        });
        self.last_usage = usage.or(self.last_usage);
        if let (Some((epoch, baseline)), Some(log)) = (epoch, log) {
            self.earlier_bytes = self.earlier_bytes.saturating_add(std::mem::take(&mut self.end));
            (self.epoch, self.baseline, self.log) = (epoch, baseline, log);
            self.records.clear();
            self.remains.clear();
        }
        self.records.extend(records);
        self.sequence = sequence;
        self.last = last;
        self.end = self.end.saturating_add(bytes);
        Ok(())
    }

    /// Waits for an append that is under way, and gives the lock back, and what is set aside of the disk.
    ///
    /// # Errors
    /// Those of that append.
    pub async fn close(mut self) -> Result<()> {
        self.settle().await?;
        self.release().await;
        Ok(())
    }
}

impl<S: Storage> Drop for Session<S> {
    /// An append whose caller went away is brought to its end with the log locked.
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            tokio::task::spawn_local(pending.write);
        }
    }
}

impl<S: Storage> std::fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("dir", &self.dir)
            .field("epoch", &self.epoch)
            .field("records", &self.records.len())
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
