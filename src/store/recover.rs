//! Copying the good records of a damaged session into a new one.

use std::ops::ControlFlow;
use std::path::Path;

use super::copy::{self, Copy};
use super::error::{Result, SessionError, parent};
use super::storage::Storage;
use super::walk::{Broken, Step, walk};
use crate::proto::{Epoch, ErrorCode, SessionId, count};

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

/// Copies the good records of `id` into the new session `new`; `None` when nothing is wrong with it.
pub(crate) async fn recover<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    new: SessionId,
) -> Result<Option<Recovered>> {
    let mut copies: Vec<Copy> = Vec::new();
    let mut copy = |step: Step<'_>| {
        copy::take(&mut copies, step);
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
    let last = (newest.epoch, count(newest.records.len()));
    let records = copies.iter().map(|copy| count(copy.records.len())).fold(0, u64::saturating_add);

    copy::write(storage, parent(dir), (id, &new), copies, Vec::new()).await?;
    Ok(Some(Recovered { id: new, records, last, damage }))
}
