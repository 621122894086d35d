//! Making a session, so that it survives a power cut when its creator is told of it.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::baseline::Baseline;
use super::error::{BaselineError, Result, SessionError, parent};
use super::log::{Batch, Log};
use super::options::StoreLimits;
use super::session::Session;
use super::storage::{Access, Appended, Kind, Storage, StorageFile};
use super::walk::{Broken, Step, baseline_path, baseline_tmp_path, half_created, log_path, walk_settled};
use crate::proto::{Epoch, LogRecord, Sequence, SessionId, SessionStart, Timestamp, count};

impl<S: Storage> Session<S> {
    /// As [`Session::create`], on any storage, with `records` behind the first in the same append.
    ///
    /// The creation goes on when its future is dropped.
    ///
    /// # Errors
    /// As [`Session::create`].
    pub async fn create_with(
        storage: S,
        home: &Path,
        id: SessionId,
        baseline: Baseline,
        slot: u32,
        records: Vec<LogRecord>,
        limits: StoreLimits,
    ) -> Result<Self> {
        let dir = Self::dir_for(home, &id);
        let path = dir.clone();
        let start = SessionStart {
            time: Timestamp::now(),
            session: id.clone(),
            epoch: Epoch(0),
            slot,
            baseline: baseline.hash(),
            previous: None,
            origin: None,
        };
        let mut all = vec![LogRecord::SessionStart(start)];
        all.extend(records);
        let task = tokio::task::spawn_local(async move {
            let sessions = parent(&dir).to_owned();
            ensure_dir(&storage, &sessions).await?;
            match storage.create_dir(&dir).await {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(existing(&storage, &dir, &id).await);
                }
                Err(e) => return Err(SessionError::Io(dir, e)),
            }
            let made = populate(&storage, &dir, &id, &baseline, &all).await;
            match made {
                Ok(made) => Ok(Self::assemble(storage, id, dir, baseline, all, limits, made)),
                Err(e) => {
                    clear_away(&storage, &dir).await;
                    Err(e)
                }
            }
        });
        task.await.map_err(|e| SessionError::Io(path, io::Error::other(e)))?
    }
}

/// What [`populate`] leaves behind for the session.
pub(crate) struct Made<F, L> {
    pub log: Rc<Log<F, L>>,
    pub batch_last: crate::proto::Digest,
    pub end: u64,
    pub sequence: Sequence,
}

/// Makes a directory and those above it, each durable in its parent.
async fn ensure_dir<S: Storage>(storage: &S, dir: &Path) -> Result<()> {
    let mut missing = vec![dir];
    while let Some(next) = missing.last().copied() {
        match storage.create_dir(next).await {
            Ok(()) => {
                let above = parent(next);
                if let Err(e) = storage.sync_dir(above).await {
                    // or the next attempt would find it there and take it for durable
                    let _ = storage.remove(next, Kind::Dir).await;
                    return Err(SessionError::Io(above.to_owned(), e));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound && parent(next) != next => {
                missing.push(parent(next));
                continue;
            }
            Err(e) => return Err(SessionError::Io(next.to_owned(), e)),
        }
        missing.pop();
    }
    Ok(())
}

/// Says what stands where a session was to be made.
async fn existing<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> SessionError {
    // another creator of the same id may be in the middle of it
    let begun = |broken: &Broken| {
        matches!(broken.error, SessionError::HalfCreated { .. })
            || broken.damage.as_ref().is_some_and(|d| d.is_only_begun())
    };
    let first_record = |(): &mut (), step: Step<'_>| match step {
        Step::Epoch(..) => ControlFlow::Continue(()),
        Step::Record(_) => ControlFlow::Break(()),
    };
    match walk_settled(storage, dir, id, None, begun, || (), first_record).await.1 {
        Err(broken) if matches!(broken.error, SessionError::HalfCreated { .. }) => broken.error,
        Err(broken) if begun(&broken) => half_created(dir, id, "its log has no whole record"),
        _ => SessionError::Exists(id.clone()),
    }
}

/// Fills a new session's directory. When it has returned, all of it survives a power cut.
async fn populate<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
    baseline: &Baseline,
    records: &[LogRecord],
) -> Result<Made<S::File, Rc<S::Lock>>> {
    let mut sequence = Sequence::default();
    let path = log_path(dir, Epoch(0));
    for record in records {
        sequence.check(record).map_err(|e| SessionError::Sequence(path.clone(), e))?;
    }
    let Batch { bytes, last, .. } = Batch::encode(baseline.hash(), records)?;
    let lock = storage.lock(dir).await.map_err(SessionError::io(dir))?;
    let lock = lock.ok_or_else(|| SessionError::Locked(id.clone()))?;
    write_baseline(storage, dir, Epoch(0), baseline).await?;
    let file = storage.open(&path, Access::New).await.map_err(SessionError::io(&path))?;
    let log = Rc::new(Log::new(path, file, Rc::new(lock)));
    let end = count(bytes.len());
    log.write(0, bytes).await?;
    sync_names(storage, dir).await?;
    Ok(Made { log, batch_last: last, end, sequence })
}

/// Makes durable the names of a session's files, of its directory, of `sessions` and of the home: an
/// earlier attempt may have made them and failed, or been killed, before they were.
pub(crate) async fn sync_names<S: Storage>(storage: &S, dir: &Path) -> Result<()> {
    let sessions = parent(dir);
    let home = parent(sessions);
    for named_in in [dir, sessions, home] {
        storage.sync_dir(named_in).await.map_err(SessionError::io(named_in))?;
    }
    match storage.sync_dir(parent(home)).await {
        // a home in a directory that is not ours to read was not made by us
        Err(e) if e.kind() != io::ErrorKind::PermissionDenied => {
            Err(SessionError::Io(parent(home).to_owned(), e))
        }
        _ => Ok(()),
    }
}

/// Writes an epoch's baseline under another name and renames it into place, so that it is never there
/// in part. The directory is not synced.
pub(crate) async fn write_baseline<S: Storage>(
    storage: &S,
    dir: &Path,
    epoch: Epoch,
    baseline: &Baseline,
) -> Result<()> {
    let (tmp, path) = (baseline_tmp_path(dir, epoch), baseline_path(dir, epoch));
    let failed = |path: PathBuf| |e| SessionError::Baseline(BaselineError::Io(path, e));
    write_new(storage, &tmp, baseline.to_json().as_bytes().to_vec()).await.map_err(failed(tmp.clone()))?;
    storage.rename(&tmp, &path).await.map_err(failed(path.clone()))
}

/// Writes a file that must not exist yet, and syncs it; its name is not durable yet.
pub(crate) async fn write_new<S: Storage>(storage: &S, path: &Path, bytes: Vec<u8>) -> io::Result<()> {
    let file = storage.open(path, Access::New).await?;
    let len = bytes.len();
    let Appended { written, synced } = file.append(0, bytes).await;
    let written = written?;
    if written != len {
        let why = format!("the disk took {written} of {len} bytes: it is full");
        return Err(io::Error::new(io::ErrorKind::StorageFull, why));
    }
    synced
}

/// After a failure: removes what was made, as far as the disk allows. Nobody was told of it.
async fn clear_away<S: Storage>(storage: &S, dir: &Path) {
    let epoch = Epoch(0);
    for path in [log_path(dir, epoch), baseline_path(dir, epoch), baseline_tmp_path(dir, epoch)] {
        // what cannot be removed is reported as half-created by whoever meets it next
        let _ = storage.remove(&path, Kind::File).await;
    }
    let _ = storage.remove(dir, Kind::Dir).await;
}
