//! The ways out of damage: cutting away a torn tail, moving away a creation that was cut off, and
//! copying the good records into a new session.

use std::path::{Path, PathBuf};

use super::create::{sync_names, write_new};
use super::error::{Result, SessionError, parent};
use super::storage::{Access, Storage, StorageFile};
use super::walk::{Broken, BrokenLog, epochs, log_path, walk};
use crate::proto::{Epoch, SessionId, Timestamp, count};

/// A torn tail that was cut away, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The log.
    pub log: PathBuf,
    /// The first line that goes, from 1.
    pub line: u64,
    /// Where it begins: the log's length afterwards, in bytes.
    pub keep: u64,
    /// How many bytes go.
    pub bytes: u64,
    /// What is wrong with them.
    pub why: String,
    /// Where they are saved.
    pub saved: PathBuf,
}

/// What can be done about a session.
#[derive(Debug)]
pub enum Remedy {
    /// Nothing is wrong with it.
    None,
    /// Its torn tail can be cut away.
    Cut(Cut),
    /// It is whole; what the beginning of an epoch that was cut off has left in its directory, and nothing reads,
    /// can be moved away: from where, to where.
    MoveRemains(Vec<(PathBuf, PathBuf)>),
    /// Its creation was cut off: its directory can be moved away, to here.
    MoveAway(PathBuf),
    /// It cannot be repaired; the error names another way out, if there is one.
    Refused(SessionError),
}

/// Makes durable what a writer that was killed left in the page cache, forgets what only the page cache
/// knows, and gives the newest log, open for writing. The session must be locked.
pub(crate) async fn refresh<S: Storage>(
    storage: &S,
    dir: &Path,
    id: &SessionId,
) -> Result<Option<(Epoch, S::File)>> {
    let newest = match epochs(storage, dir, id).await {
        Ok(epochs) => epochs.newest,
        Err(Broken { error: SessionError::HalfCreated { .. }, .. }) => return Ok(None),
        Err(broken) => return Err(broken.error),
    };
    let path = log_path(dir, newest);
    let file = storage.open(&path, Access::Write).await.map_err(SessionError::io(&path))?;
    file.refresh().await.map_err(SessionError::io(&path))?;
    sync_names(storage, dir).await?;
    Ok(Some((newest, file)))
}

/// Finds out what can be done about a session, and changes nothing.
pub(crate) async fn plan<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> Result<Remedy> {
    let broken = match walk(storage, dir, id, &mut |_| std::ops::ControlFlow::Continue(())).await {
        Ok(walked) if walked.remains.is_empty() => return Ok(Remedy::None),
        Ok(walked) => return Ok(Remedy::MoveRemains(moves(storage, dir, &walked.remains).await?)),
        Err(broken) => broken,
    };
    match broken {
        Broken { error: error @ SessionError::NotFound(_), .. } => Err(error),
        Broken { error: SessionError::HalfCreated { .. }, .. } => move_away(storage, dir, id).await,
        Broken { damage: Some(damage), .. } if damage.is_only_begun() => move_away(storage, dir, id).await,
        Broken { damage: Some(damage), .. } if damage.is_tail() => {
            let BrokenLog { epoch, path, damage, good, size } = *damage;
            let saved = free_name(storage, dir, &format!("{epoch}.jsonl.cut-")).await?;
            Ok(Remedy::Cut(Cut {
                log: path,
                line: good.lines.saturating_add(1),
                keep: good.bytes,
                bytes: size.saturating_sub(good.bytes),
                why: damage.why,
                saved,
            }))
        }
        Broken { error, .. } => Ok(Remedy::Refused(error)),
    }
}

/// Where the remains of an epoch's beginning can go: beside where they are, under names that nothing reads.
async fn moves<S: Storage>(storage: &S, dir: &Path, remains: &[String]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut moves = Vec::new();
    for name in remains {
        moves.push((dir.join(name), free_name(storage, dir, &format!("{name}.half-created-")).await?));
    }
    Ok(moves)
}

/// Moves away what the beginning of an epoch that was cut off has left behind. The session must be locked.
pub(crate) async fn move_remains<S: Storage>(storage: &S, dir: &Path, remains: &[String]) -> Result<()> {
    if remains.is_empty() {
        return Ok(());
    }
    carry_out(storage, dir, &Remedy::MoveRemains(moves(storage, dir, remains).await?)).await
}

async fn move_away<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> Result<Remedy> {
    // no session id begins like this
    let to = free_name(storage, parent(dir), &format!(".half-created-{id}-")).await?;
    Ok(Remedy::MoveAway(to))
}

/// A name in `dir` that nothing has: `stem`, the time, and a number where even that is taken.
pub(crate) async fn free_name<S: Storage>(storage: &S, dir: &Path, stem: &str) -> Result<PathBuf> {
    // colons are trouble in a file's name for some file systems and tools
    let now = Timestamp::now().to_string().replace(':', "");
    let taken = storage.list(dir).await.map_err(SessionError::io(dir))?;
    let mut name = format!("{stem}{now}");
    let mut number = 1u64;
    while taken.iter().any(|entry| entry.name == name) {
        number = number.saturating_add(1);
        name = format!("{stem}{now}-{number}");
    }
    Ok(dir.join(name))
}

/// Does what [`plan`] found. The session must be locked.
pub(crate) async fn carry_out<S: Storage>(storage: &S, dir: &Path, remedy: &Remedy) -> Result<()> {
    match remedy {
        Remedy::None | Remedy::Refused(_) => Ok(()),
        Remedy::Cut(cut) => {
            let file = storage.open(&cut.log, Access::Write).await.map_err(SessionError::io(&cut.log))?;
            // what is saved is durable, name and all, before anything is cut
            let bytes = tail(&file, cut.keep).await.map_err(SessionError::io(&cut.log))?;
            write_new(storage, &cut.saved, bytes).await.map_err(SessionError::io(&cut.saved))?;
            storage.sync_dir(dir).await.map_err(SessionError::io(dir))?;
            file.truncate(cut.keep).await.map_err(SessionError::io(&cut.log))?;
            file.sync().await.map_err(SessionError::io(&cut.log))
        }
        Remedy::MoveRemains(moves) => {
            for (from, to) in moves {
                storage.rename(from, to).await.map_err(SessionError::io(from))?;
            }
            storage.sync_dir(dir).await.map_err(SessionError::io(dir))
        }
        Remedy::MoveAway(to) => {
            storage.rename(dir, to).await.map_err(SessionError::io(dir))?;
            let sessions = parent(dir);
            storage.sync_dir(sessions).await.map_err(SessionError::io(sessions))
        }
    }
}

/// The bytes from `at` to the file's end. One append at most, so they fit into memory.
async fn tail<F: StorageFile>(file: &F, at: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let piece = file.read_at(at.saturating_add(count(bytes.len())), vec![0; 128 * 1024]).await?;
        if piece.is_empty() {
            return Ok(bytes);
        }
        bytes.extend_from_slice(&piece);
    }
}

/// Cuts away a torn tail of a locked session, if there is one and nothing else is wrong.
pub(crate) async fn cut_tail<S: Storage>(storage: &S, dir: &Path, id: &SessionId) -> Result<Option<Cut>> {
    let remedy = plan(storage, dir, id).await?;
    let Remedy::Cut(_) = &remedy else {
        return Ok(None);
    };
    carry_out(storage, dir, &remedy).await?;
    match remedy {
        Remedy::Cut(cut) => Ok(Some(cut)),
        _ => Ok(None),
    }
}
