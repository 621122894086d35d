//! Copying the good records of a damaged session into a new one.

use std::ops::ControlFlow;
use std::path::Path;

use super::baseline::Baseline;
use super::create::write_baseline;
use super::error::{Result, SessionError, parent};
use super::log::{Batch, Log};
use super::read::offset;
use super::storage::{Access, Storage};
use super::walk::{Broken, Step, log_path, walk};
use crate::proto::{Digest, Epoch, ErrorCode, LogRecord, Origin, SessionId};

/// What was copied.
#[derive(Debug)]
pub struct Recovered {
    /// The new session.
    pub id: SessionId,
    /// Records in it, over all epochs.
    pub records: u64,
    /// The last line that was copied: its epoch, and its number from 1.
    pub last: (Epoch, u64),
    /// What ended the copying.
    pub damage: SessionError,
}

/// How the directory of a session that is being recovered is named; no session id begins like this.
pub(crate) const UNFINISHED: &str = ".new-";

/// How many records are written at once.
const AT_ONCE: usize = 64;

/// An epoch as it is copied.
struct Copy {
    epoch: Epoch,
    baseline: Baseline,
    records: Vec<LogRecord>,
}

/// Copies the good records of `id` into the new session `new`; `None` when nothing is wrong with it.
pub(crate) async fn recover<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    new: SessionId,
) -> Result<Option<Recovered>> {
    let mut copies: Vec<Copy> = Vec::new();
    let mut copy = |step: Step<'_>| {
        match step {
            Step::Epoch(epoch, baseline) => {
                copies.push(Copy { epoch, baseline: baseline.clone(), records: Vec::new() });
            }
            Step::Record(found) => {
                if let Some(copy) = copies.last_mut() {
                    copy.records.push(found.record);
                }
            }
        }
        ControlFlow::Continue(())
    };
    let damage = match walk(storage, dir, id, &mut copy).await {
        Ok(_) => return Ok(None),
        Err(Broken { error, .. }) => error,
    };
    // what could not be read may be good all the same
    if damage.code() != ErrorCode::Damaged {
        return Err(damage);
    }
    copies.retain(|copy| !copy.records.is_empty());
    // an epoch of which only the first line is left may lack a turn that goes on in it: the one before stands alone
    while copies.last().is_some_and(|copy| copy.epoch > Epoch(0) && copy.records.len() == 1) {
        copies.pop();
    }
    let Some(newest) = copies.last() else {
        return Err(damage);
    };
    let last = (newest.epoch, offset(newest.records.len()));
    let records = copies.iter().map(|copy| offset(copy.records.len())).fold(0, u64::saturating_add);

    // the new session gets its name when it is whole, so that one that was cut off is never mistaken
    // for it
    let sessions = parent(dir);
    let (unfinished, to) = (sessions.join(format!("{UNFINISHED}{new}")), sessions.join(new.as_str()));
    storage.create_dir(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    let lock = storage.lock(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    let mut previous = None;
    for copy in copies {
        previous = Some(write_epoch(storage, &unfinished, id, &new, copy, previous).await?);
    }
    storage.sync_dir(&unfinished).await.map_err(SessionError::io(&unfinished))?;
    storage.rename(&unfinished, &to).await.map_err(SessionError::io(&to))?;
    storage.sync_dir(sessions).await.map_err(SessionError::io(sessions))?;
    drop(lock);
    Ok(Some(Recovered { id: new, records, last, damage }))
}

/// Writes one epoch and gives the digest of its last line.
async fn write_epoch<S: Storage>(
    storage: &S,
    dir: &Path,
    from: &SessionId,
    new: &SessionId,
    copy: Copy,
    previous: Option<Digest>,
) -> Result<Digest> {
    let Copy { epoch, baseline, mut records } = copy;
    let line = offset(records.len());
    for record in &mut records {
        if let LogRecord::SessionStart(start) = record {
            start.session = new.clone();
            start.previous = previous;
            start.origin = Some(Origin { session: from.clone(), epoch, line });
        }
    }
    write_baseline(storage, dir, epoch, &baseline).await?;
    let path = log_path(dir, epoch);
    let file = storage.open(&path, Access::New).await.map_err(SessionError::io(&path))?;
    let log = Log::new(path, file, ());
    let (mut last, mut end) = (baseline.hash(), 0u64);
    for records in records.chunks(AT_ONCE) {
        let batch = Batch::encode(last, records)?;
        let length = offset(batch.bytes.len());
        log.write(end, batch.bytes).await?;
        last = batch.last;
        end = end.saturating_add(length);
    }
    Ok(last)
}
