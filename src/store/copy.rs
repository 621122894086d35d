//! Records of one session as a new one: what recoveries and forks have in common.

use std::path::Path;

use super::baseline::Baseline;
use super::create::write_baseline;
use super::error::{Result, SessionError};
use super::log::{Batch, Log};
use super::storage::{Access, Storage};
use super::walk::{Step, log_path};
use crate::proto::{Digest, Epoch, LogRecord, Origin, SessionId, count};

/// How the directory of a session that is being copied is named; no session id begins like this.
pub(crate) const UNFINISHED: &str = ".new-";

/// How many records are written at once.
const AT_ONCE: usize = 64;

/// An epoch as it is copied.
pub(crate) struct Copy {
    /// Its number, which it keeps.
    pub epoch: Epoch,
    /// Its baseline, which it keeps too.
    pub baseline: Baseline,
    /// Its records, from the first on.
    pub records: Vec<LogRecord>,
    /// The lines of the original that they came from.
    pub lines: u64,
}

/// Takes a step of a walk into `copies`.
pub(crate) fn take(copies: &mut Vec<Copy>, step: Step<'_>) {
    match step {
        Step::Epoch(epoch, baseline) => {
            copies.push(Copy { epoch, baseline: baseline.clone(), records: Vec::new(), lines: 0 });
        }
        Step::Record(found) => {
            if let Some(copy) = copies.last_mut() {
                copy.records.push(found.record);
                copy.lines = copy.lines.saturating_add(1);
            }
        }
    }
}

/// Makes the session `new` of them, durably, with `more` records behind the last.
pub(crate) async fn write<S: Storage>(
    storage: &S,
    sessions: &Path,
    (from, new): (&SessionId, &SessionId),
    mut copies: Vec<Copy>,
    more: Vec<LogRecord>,
) -> Result<()> {
    if let Some(newest) = copies.last_mut() {
        newest.records.extend(more);
    }
    // it gets its name when it is whole, so that one that was cut off is never mistaken for it
    let (unfinished, to) = (sessions.join(format!("{UNFINISHED}{new}")), sessions.join(new.as_str()));
    storage.create_dir(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    let lock = storage.lock(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    let mut previous = None;
    for copy in copies {
        previous = Some(write_epoch(storage, &unfinished, (from, new), copy, previous).await?);
    }
    storage.sync_dir(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    storage.rename(&unfinished, &to).await.map_err(SessionError::io(&to))?;
    storage.sync_dir(sessions).await.map_err(SessionError::io(sessions))?;
    drop(lock);
    Ok(())
}

/// Writes one epoch and gives the digest of its last line.
async fn write_epoch<S: Storage>(
    storage: &S,
    dir: &Path,
    (from, new): (&SessionId, &SessionId),
    copy: Copy,
    previous: Option<Digest>,
) -> Result<Digest> {
    let Copy { epoch, baseline, mut records, lines } = copy;
    for record in &mut records {
        if let LogRecord::SessionStart(start) = record {
            start.session = new.clone();
            start.previous = previous;
            start.origin = Some(Origin { session: from.clone(), epoch, line: lines });
        }
    }
    write_baseline(storage, dir, epoch, &baseline).await?;
    let path = log_path(dir, epoch);
    let file = storage.open(&path, Access::New).await.map_err(SessionError::io(&path))?;
    let log = Log::new(path, file, ());
    let (mut last, mut end) = (baseline.hash(), 0u64);
    for records in records.chunks(AT_ONCE) {
        let batch = Batch::encode(last, records)?;
        let length = count(batch.bytes.len());
        log.write(end, batch.bytes).await?;
        last = batch.last;
        end = end.saturating_add(length);
    }
    Ok(last)
}
