//! Every session under one home. Whatever it tells is derived from the logs.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use futures_util::stream::{self, StreamExt as _};

use super::baseline::Baseline;
use super::copy::UNFINISHED;
use super::error::{Result, SessionError};
use super::inspect::{self, Inspected, inspect};
use super::known::{Known, Seen};
use super::options::OpenOptions;
use super::recover::{Recovered, recover};
use super::repair::{self, Cut, Remedy};
use super::session::Session;
use super::storage::{Kind, Stamp, Storage};
use super::uring::Uring;
use super::walk::{Broken, Start, Step, WRITER_PAUSE, WRITER_TRIES, Walked, walk, walk_settled};
use crate::proto::{
    BaselineContent, LogRecord, Named, SessionId, SessionInfo, Timestamp, TurnUsage, UsageTable, count,
};

/// How many sessions a list reads at once: most are small, and their reading is mostly waiting.
const AT_ONCE: usize = 4;

/// The sessions under one home.
#[derive(Debug, Clone)]
pub struct Catalog<S: Storage = Uring> {
    storage: S,
    home: PathBuf,
    options: OpenOptions,
    known: Known,
}

impl Catalog<Uring> {
    /// The sessions under `home`, which need not exist yet.
    #[must_use]
    pub fn new(home: PathBuf, options: OpenOptions) -> Self {
        Self::on(Uring, home, options)
    }
}

impl<S: Storage> Catalog<S> {
    /// As [`Catalog::new`], on any storage.
    #[must_use]
    pub fn on(storage: S, home: PathBuf, options: OpenOptions) -> Self {
        Self { storage, home, options, known: Known::default() }
    }

    /// The home.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    pub(super) fn storage(&self) -> &S {
        &self.storage
    }

    pub(super) fn known(&self) -> &Known {
        &self.known
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.home.join("sessions")
    }

    pub(super) fn dir(&self, id: &SessionId) -> PathBuf {
        Session::<S>::dir_for(&self.home, id)
    }

    /// Makes a new session, durably; its id is generated when none is given, its name written with it.
    ///
    /// # Errors
    /// As [`Session::create`].
    pub async fn create(
        &self,
        id: Option<SessionId>,
        baseline: Baseline,
        slot: u32,
        name: Option<String>,
    ) -> Result<Session<S>> {
        let id = id.map_or_else(|| generate(&self.home), Ok)?;
        let named = name.map(|name| LogRecord::Named(Named { time: Timestamp::now(), name }));
        let records = named.into_iter().collect();
        let Self { storage, home, options, .. } = self;
        Session::create_with(storage.clone(), home, id, baseline, slot, records, options.limits).await
    }

    /// Opens a session and locks it, as the catalog's options say. Tells of a tail that was cut away.
    ///
    /// # Errors
    /// As [`Session::open`].
    pub async fn open(&self, id: &SessionId) -> Result<(Session<S>, Option<Cut>)> {
        // it forgets what is only remembered of the disk, and may cut a torn end away
        self.known.forget(id);
        Session::open_with(self.storage.clone(), &self.home, id, self.options).await
    }

    /// The ids of everything that calls itself a session, in alphabetical order.
    ///
    /// # Errors
    /// The disk's.
    pub async fn ids(&self) -> Result<Vec<SessionId>> {
        let sessions = self.sessions();
        let entries = match self.storage.list(&sessions).await {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(SessionError::Io(sessions, e)),
        };
        // a symlink is listed, as damaged; a plain file cannot be mistaken for a session
        let named = entries.into_iter().filter(|e| e.kind != Kind::File);
        let mut ids: Vec<SessionId> = named.filter_map(|e| e.name.parse().ok()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Every session, the one with the newest record first; damaged ones are listed as such.
    ///
    /// # Errors
    /// The disk's, for the directory of all sessions only.
    pub async fn list(&self) -> Result<Vec<SessionInfo>> {
        let ids = self.ids().await?;
        self.known.keep(&ids);
        let stamps = self.storage.stamps(ids.iter().map(|id| self.dir(id)).collect()).await;
        let stamps = stamps.into_iter().chain(std::iter::repeat_with(Vec::new));
        let looks = ids.iter().zip(stamps).map(|(id, stamps)| self.look(id, stamps));
        let mut looks = stream::iter(looks).buffered(AT_ONCE);
        let mut infos = Vec::new();
        while let Some(info) = looks.next().await {
            match info {
                // deleted since the names were read
                Err(SessionError::NotFound(_)) => {}
                info => infos.push(info?),
            }
        }
        infos.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.id.cmp(&b.id)));
        Ok(infos)
    }

    /// One session, damaged or not.
    ///
    /// # Errors
    /// [`SessionError::NotFound`] only.
    pub async fn info(&self, id: &SessionId) -> Result<SessionInfo> {
        let stamps = self.storage.stamps(vec![self.dir(id)]).await.pop();
        self.look(id, stamps.unwrap_or_default()).await
    }

    /// A session's state: as it was read before if its files have these stamps still, read on from there if they
    /// have only grown, and else read whole.
    async fn look(&self, id: &SessionId, stamps: Vec<Stamp>) -> Result<SessionInfo> {
        let (dir, since) = (self.dir(id), self.known.forgotten());
        let (info, seen) = self.known.get(id, &stamps);
        if let Some(info) = info {
            return Ok(info);
        }
        if let Some(seen) = seen
            && let Some(seen) = seen.go_on(&self.storage, &dir, id, stamps.clone()).await
        {
            let info = seen.info();
            self.known.remember(id, Some(seen), since);
            return Ok(info);
        }
        let (tally, walked) = inspect::look(&self.storage, &dir, id).await?;
        let seen = walked.as_ref().ok().and_then(|walked| Seen::new(stamps, tally.clone(), walked));
        self.known.remember(id, seen, since);
        Ok(tally.finish(walked).info)
    }

    /// A session's state and what `loopd verify` says about it, all of it read anew, without a lock.
    ///
    /// # Errors
    /// [`SessionError::NotFound`] only.
    pub async fn inspect(&self, id: &SessionId) -> Result<Inspected> {
        inspect(&self.storage, &self.dir(id), id).await
    }

    /// The baseline of a session's newest epoch, without a lock.
    ///
    /// # Errors
    /// Damage, and the disk's.
    pub async fn baseline(&self, id: &SessionId) -> Result<BaselineContent> {
        let walked = walk(&self.storage, &self.dir(id), id, &mut |_| ControlFlow::Continue(())).await;
        walked.map(|walked| walked.baseline.content().clone()).map_err(|broken| broken.error)
    }

    /// The session that a whole id, an exact name, or the beginning of an id means, in this order.
    ///
    /// # Errors
    /// [`SessionError::NoMatch`] (of an empty text always) and [`SessionError::Ambiguous`].
    pub async fn resolve(&self, text: &str) -> Result<SessionId> {
        if text.is_empty() {
            return Err(SessionError::NoMatch(String::new()));
        }
        let ids = self.ids().await?;
        if let Some(whole) = ids.iter().find(|id| id.as_str() == text) {
            return Ok(whole.clone());
        }
        let named = self.list().await?.into_iter().filter(|info| info.name.as_deref() == Some(text));
        let mut candidates: Vec<SessionId> = named.map(|info| info.id).collect();
        if candidates.is_empty() {
            candidates = ids.into_iter().filter(|id| id.as_str().starts_with(text)).collect();
        }
        match candidates.as_slice() {
            [] => Err(SessionError::NoMatch(text.to_owned())),
            [one] => Ok(one.clone()),
            _ => Err(SessionError::Ambiguous { prefix: text.to_owned(), candidates }),
        }
    }

    /// The session with the newest record, damaged or not: to go on in another one silently would be
    /// worse than to be refused.
    ///
    /// # Errors
    /// The disk's.
    pub async fn latest(&self) -> Result<Option<SessionId>> {
        let newest = self.list().await?.into_iter().find(|info| info.last.is_some());
        Ok(newest.map(|info| info.id))
    }

    /// What each turn of a session cost, over all epochs. Takes no lock.
    ///
    /// # Errors
    /// Damage, and the disk's.
    pub async fn usage(&self, id: &SessionId) -> Result<Vec<TurnUsage>> {
        self.settled(id, None, UsageTable::default, |table, step| {
            match step {
                Step::Epoch(epoch, baseline) => {
                    table.epoch(epoch, count(baseline.content().framing.head.len()));
                }
                Step::Record(found) => table.record(&found.record),
            }
            ControlFlow::Continue(())
        })
        .await
        .map(|(table, _)| table.into_rows())
    }

    /// Walks a session, from `start` on, again when it meets what may be an append that is being written right now.
    pub(super) async fn settled<T>(
        &self,
        id: &SessionId,
        start: Option<&Start>,
        begin: impl Fn() -> T,
        visit: impl FnMut(&mut T, Step<'_>) -> ControlFlow<()>,
    ) -> Result<(T, Walked)> {
        let append = |broken: &Broken| broken.damage.as_ref().is_some_and(|d| d.is_tail());
        match walk_settled(&self.storage, &self.dir(id), id, start, append, begin, visit).await {
            (so_far, Ok(walked)) => Ok((so_far, walked)),
            (_, Err(broken)) => Err(broken.error),
        }
    }

    /// Really deletes a session's files, durably. Nobody may have it open.
    ///
    /// # Errors
    /// [`SessionError::NotFound`], [`SessionError::Locked`], or the disk's.
    pub async fn delete(&self, id: &SessionId) -> Result<()> {
        let (dir, lock) = self.lock(id).await?;
        let (this, id) = (self.clone(), id.clone());
        let task = tokio::task::spawn_local(async move {
            let sessions = this.sessions();
            let away = repair::free_name(&this.storage, &sessions, &format!("{DELETED}{id}-")).await?;
            this.storage.rename(&dir, &away).await.map_err(SessionError::io(&dir))?;
            this.storage.sync_dir(&sessions).await.map_err(SessionError::io(&sessions))?;
            drop(lock);
            this.sweep().await
        });
        task.await.map_err(|e| SessionError::Io(self.sessions(), io::Error::other(e)))?
    }

    /// What can be done about a session. Changes nothing and takes no lock.
    ///
    /// # Errors
    /// [`SessionError::NotFound`].
    pub async fn plan_repair(&self, id: &SessionId) -> Result<Remedy> {
        let mut attempt = 1;
        loop {
            let remedy = repair::plan(&self.storage, &self.dir(id), id).await?;
            if attempt == WRITER_TRIES
                || matches!(remedy, Remedy::None | Remedy::MoveRemains(_) | Remedy::Refused(_))
            {
                return Ok(remedy);
            }
            // perhaps an append that is being written right now
            attempt += 1;
            self.storage.pause(WRITER_PAUSE).await;
        }
    }

    /// Cuts away a torn tail, or moves away a creation that was cut off; tells what it did. What is cut
    /// is saved beside the log. Nobody may have the session open.
    ///
    /// # Errors
    /// [`SessionError::NotFound`], [`SessionError::Locked`], or the disk's.
    pub async fn repair(&self, id: &SessionId) -> Result<Remedy> {
        let (this, id) = (self.clone(), id.clone());
        let task = tokio::task::spawn_local(async move {
            let (dir, lock) = this.lock(&id).await?;
            repair::refresh(&this.storage, &dir, &id).await?;
            let remedy = repair::plan(&this.storage, &dir, &id).await?;
            repair::carry_out(&this.storage, &dir, &remedy).await?;
            drop(lock);
            Ok(remedy)
        });
        task.await.map_err(|e| SessionError::Io(self.sessions(), io::Error::other(e)))?
    }

    /// Copies the good records of a damaged session into a new one, whose id is generated when none is
    /// given, and leaves the damaged one as it is; `None` when nothing is wrong with it.
    ///
    /// # Errors
    /// The damage itself, when not one record before it is good; [`SessionError::Exists`]; or the disk's.
    pub async fn recover(&self, id: &SessionId, new: Option<SessionId>) -> Result<Option<Recovered>> {
        let new = new.map_or_else(|| generate(&self.home), Ok)?;
        if self.ids().await?.contains(&new) {
            return Err(SessionError::Exists(new));
        }
        recover(&self.storage, &self.dir(id), id, new).await
    }

    async fn lock(&self, id: &SessionId) -> Result<(PathBuf, S::Lock)> {
        let dir = self.dir(id);
        let lock = self.storage.lock(&dir).await.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => SessionError::NotFound(id.clone()),
            _ => SessionError::Io(dir.clone(), e),
        })?;
        let lock = lock.ok_or_else(|| SessionError::Locked(id.clone()))?;
        Ok((dir, lock))
    }

    /// Removes what deletions and recoveries that were cut off left behind. For the daemon's start.
    ///
    /// # Errors
    /// The disk's.
    pub async fn sweep(&self) -> Result<()> {
        let sessions = self.sessions();
        let entries = match self.storage.list(&sessions).await {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(SessionError::io(&sessions))?,
        };
        let mut swept = false;
        let left = |name: &str| name.starts_with(DELETED) || name.starts_with(UNFINISHED);
        for entry in entries.iter().filter(|e| e.kind == Kind::Dir && left(&e.name)) {
            let path = sessions.join(&entry.name);
            // a lock shows that somebody is still at work there
            if self.storage.lock(&path).await.map_err(SessionError::io(&path))?.is_some() {
                remove_all(&self.storage, &path).await?;
                swept = true;
            }
        }
        if swept {
            self.storage.sync_dir(&sessions).await.map_err(SessionError::io(&sessions))?;
        }
        Ok(())
    }
}

/// How the directory of a deleted session is named until it is gone; no session id begins like this.
const DELETED: &str = ".deleted-";

pub(super) fn generate(home: &Path) -> Result<SessionId> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).map_err(|e| SessionError::Io(home.to_owned(), io::Error::other(e)))?;
    Ok(SessionId::from_random(bytes))
}

/// Removes a directory with all that is in it, following no symlink.
pub(crate) async fn remove_all<S: Storage>(storage: &S, top: &Path) -> Result<()> {
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.last().cloned() {
        let entries = storage.list(&dir).await.map_err(SessionError::io(&dir))?;
        let before = todo.len();
        for entry in entries {
            let path = dir.join(&entry.name);
            if entry.kind == Kind::Dir {
                todo.push(path);
            } else {
                storage.remove(&path, entry.kind).await.map_err(SessionError::io(&path))?;
            }
        }
        if todo.len() == before {
            storage.remove(&dir, Kind::Dir).await.map_err(SessionError::io(&dir))?;
            todo.pop();
        }
    }
    Ok(())
}
