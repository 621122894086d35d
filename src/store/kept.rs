//! Saved slots that are kept, so that a session's cache comes back after its slot was another's, or the
//! server was restarted.
//!
//! A kept slot is two files in the server's folder: `<session>.<16 hex of its SHA-256>.kv`, which the server
//! wrote, and the same with `.json`, its [`SlotManifest`]. The manifest is written last, when the other is
//! on the disk; a `.kv` without one counts for nothing. Losing a kept slot costs time, never a record.

use std::io;
use std::path::PathBuf;

use sha2::Digest as _;

use super::create::write_new;
use super::error::{Result, SessionError};
use super::slot::SlotFiles;
use super::storage::{Access, Kind, Storage, StorageFile};
use crate::proto::{Digest, Epoch, ModelIdentity, SessionId, SlotManifest, Timestamp, TokenId, count};

/// How much is read and hashed before others get their turn.
const PIECE: usize = 1024 * 1024;
/// The longest manifest, in bytes.
const MAX_MANIFEST: usize = 64 * 1024;

/// A kept slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its files' common name, without `.kv` and `.json`.
    stem: String,
    /// What is known of it.
    pub manifest: SlotManifest,
}

impl Kept {
    /// The file's name, for the server.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.kv", self.stem)
    }

    fn manifest_file(&self) -> String {
        format!("{}.json", self.stem)
    }
}

/// The name under which the server is to write a session's slot.
#[must_use]
pub fn new_name(session: &SessionId) -> String {
    format!("{session}.new")
}

fn holder_name(slot: u32) -> String {
    format!("slot-{slot}.holder")
}

impl<S: Storage> SlotFiles<S> {
    /// Keeps the file that the server has just written as [`new_name`], in place of the session's earlier
    /// ones: checks that it has the length that the server says and holds the tokens of `list`, as far as that is
    /// known, syncs it, and writes its manifest.
    ///
    /// # Errors
    /// The disk's, or the file is not what it should be; then nothing new is kept.
    pub async fn keep(
        &self,
        (session, epoch): (&SessionId, Epoch),
        written: u64,
        list: Option<&[TokenId]>,
        (slot, model): (u32, &ModelIdentity),
    ) -> Result<Kept> {
        let new = new_name(session);
        let path = self.path(&new)?;
        let ids = self.read_ids(&new).await?;
        let whole = match list {
            // the token sampled last was not evaluated; one that was cancelled, or failed, left more
            Some(list) => !list.is_empty() && common(&ids, list).saturating_add(1) >= list.len(),
            // what an earlier run of the daemon left there: it may only take the place of what it goes on from
            None => match self.find(session, epoch).await? {
                Some(earlier) => ids.starts_with(&self.read_ids(&earlier.file()).await?),
                None => !ids.is_empty(),
            },
        };
        if !whole {
            return Err(not(path, "it does not hold the tokens that the session has"));
        }
        let file = self.storage().open(&path, Access::Write).await.map_err(SessionError::io(&path))?;
        file.sync().await.map_err(SessionError::io(&path))?;
        let (bytes, sha256) = hash(&file).await.map_err(SessionError::io(&path))?;
        if bytes != written {
            return Err(not(path, "its length is not what the server says that it wrote"));
        }
        let manifest = SlotManifest {
            format: SlotManifest::FORMAT,
            session: session.clone(),
            epoch,
            saved: Timestamp::now(),
            bytes,
            sha256,
            tokens: count(ids.len()),
            slot,
            model: model.clone(),
        };
        let hex: String = sha256.to_string().chars().take(16).collect();
        let kept = Kept { stem: format!("{session}.{hex}"), manifest };
        let earlier = self.of(session).await?;
        if let Some(same) = earlier.iter().find(|earlier| earlier.stem == kept.stem) {
            self.remove(&new).await?;
            return Ok(same.clone());
        }
        let place = self.path(&kept.file())?;
        // what a save that was cut off left under this name has no manifest
        let _ = self.storage().remove(&place, Kind::File).await;
        self.storage().rename(&path, &place).await.map_err(SessionError::io(&place))?;
        let json = serde_json::to_vec(&kept.manifest).map_err(SessionError::Encode)?;
        let beside = self.path(&kept.manifest_file())?;
        write_new(self.storage(), &beside, json).await.map_err(SessionError::io(&beside))?;
        self.storage().sync_dir(self.dir()).await.map_err(SessionError::io(self.dir()))?;
        // only now that the new one is there for good
        for earlier in earlier {
            self.drop_kept(&earlier).await?;
        }
        Ok(kept)
    }

    /// Remembers whose tokens the slot holds, for the next run of the daemon. Not synced: the server does not
    /// outlive a power cut either.
    ///
    /// # Errors
    /// The disk's.
    pub async fn remember(&self, slot: u32, session: &SessionId, epoch: Epoch) -> Result<()> {
        let path = self.path(&holder_name(slot))?;
        let _ = self.storage().remove(&path, Kind::File).await;
        write_new(self.storage(), &path, format!("{session} {epoch}").into_bytes())
            .await
            .map_err(SessionError::io(&path))
    }

    /// Whose tokens the slot held when that was last remembered.
    pub async fn remembered(&self, slot: u32) -> Option<(SessionId, Epoch)> {
        let path = self.path(&holder_name(slot)).ok()?;
        let file = self.storage().open(&path, Access::Read).await.ok()?;
        // an epoch has ten digits at most
        let text = file.read_at(0, vec![0; SessionId::MAX_BYTES.saturating_add(11)]).await.ok()?;
        let (session, epoch) = std::str::from_utf8(&text).ok()?.split_once(' ')?;
        Some((session.parse().ok()?, Epoch(epoch.parse().ok()?)))
    }

    /// The kept slot of a session's epoch; none when there is none that can be read.
    ///
    /// # Errors
    /// The disk's.
    pub async fn find(&self, session: &SessionId, epoch: Epoch) -> Result<Option<Kept>> {
        let kept = self.of(session).await?.into_iter().filter(|kept| kept.manifest.epoch == epoch);
        Ok(kept.max_by_key(|kept| kept.manifest.tokens))
    }

    /// Any session's kept slot that begins with so many tokens of `list`, the shortest of them; none when there is
    /// none that can be read.
    ///
    /// # Errors
    /// The disk's.
    pub async fn find_holding(&self, list: &[TokenId], tokens: u64) -> Result<Option<Kept>> {
        let mut found: Option<Kept> = None;
        for kept in self.all().await? {
            let shorter = found.as_ref().is_none_or(|found| kept.manifest.tokens < found.manifest.tokens);
            if kept.manifest.tokens >= tokens
                && shorter
                && let Ok(ids) = self.read_ids(&kept.file()).await
                && count(common(&ids, list)) >= tokens
            {
                found = Some(kept);
            }
        }
        Ok(found)
    }

    /// Reads a kept slot from its first byte to its last. Gives how many tokens of `list` it holds, when it is
    /// whole; or says why not, and then it must not be given to the server.
    ///
    /// # Errors
    /// The disk's.
    pub async fn verify(&self, kept: &Kept, list: &[TokenId]) -> Result<std::result::Result<u64, String>> {
        let path = self.path(&kept.file())?;
        let file = self.storage().open(&path, Access::Read).await.map_err(SessionError::io(&path))?;
        let (bytes, sha256) = hash(&file).await.map_err(SessionError::io(&path))?;
        if (bytes, sha256) != (kept.manifest.bytes, kept.manifest.sha256) {
            return Ok(Err(format!(
                "{} is damaged: its bytes are not those that were saved",
                path.display()
            )));
        }
        let ids = self.read_ids(&kept.file()).await?;
        Ok(Ok(count(common(&ids, list))))
    }

    /// Removes the session's kept slots.
    ///
    /// # Errors
    /// The disk's.
    pub async fn forget(&self, session: &SessionId) -> Result<()> {
        for kept in self.of(session).await? {
            self.drop_kept(&kept).await?;
        }
        Ok(())
    }

    /// Removes the kept slots that were saved longest ago, until all together have at most `budget` bytes,
    /// and what saves that were cut off left behind. The slot of `spare` stays. Gives the sessions that lost
    /// theirs.
    ///
    /// # Errors
    /// The disk's.
    pub async fn evict(&self, budget: u64, spare: Option<&SessionId>) -> Result<Vec<SessionId>> {
        let mut all = self.all().await?;
        self.sweep(&all).await?;
        all.sort_by_key(|kept| kept.manifest.saved);
        let mut total = all.iter().map(|kept| kept.manifest.bytes).fold(0, u64::saturating_add);
        let mut evicted = Vec::new();
        for kept in all {
            if total <= budget {
                break;
            }
            if Some(&kept.manifest.session) != spare {
                self.drop_kept(&kept).await?;
                total = total.saturating_sub(kept.manifest.bytes);
                evicted.push(kept.manifest.session);
            }
        }
        Ok(evicted)
    }

    async fn sweep(&self, all: &[Kept]) -> Result<()> {
        let entries = self.storage().list(self.dir()).await.map_err(SessionError::io(self.dir()))?;
        let ours = |name: &str| {
            name.ends_with(".new")
                || name.ends_with(".kv")
                || (name.starts_with("ids-") && name.ends_with(".bin"))
        };
        for entry in entries.into_iter().filter(|e| e.kind == Kind::File && ours(&e.name)) {
            if !all.iter().any(|kept| kept.file() == entry.name) {
                self.remove(&entry.name).await?;
            }
        }
        Ok(())
    }

    async fn drop_kept(&self, kept: &Kept) -> Result<()> {
        // the manifest first: a file without one counts for nothing
        self.remove(&kept.manifest_file()).await?;
        match self.remove(&kept.file()).await {
            Err(SessionError::Io(_, e)) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    async fn of(&self, session: &SessionId) -> Result<Vec<Kept>> {
        // a name may begin with another session's, since that may have a dot: the manifest decides
        let named = self.manifests(|stem| stem.starts_with(session.as_str())).await?;
        Ok(named.into_iter().filter(|kept| kept.manifest.session == *session).collect())
    }

    async fn all(&self) -> Result<Vec<Kept>> {
        self.manifests(|_| true).await
    }

    /// The kept slots whose files' common name is `wanted`: each costs a file to read.
    async fn manifests(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<Kept>> {
        let entries = self.storage().list(self.dir()).await.map_err(SessionError::io(self.dir()))?;
        let mut all = Vec::new();
        for entry in entries.into_iter().filter(|e| e.kind == Kind::File) {
            let Some(stem) = entry.name.strip_suffix(".json").filter(|stem| wanted(stem)) else { continue };
            let path = self.path(&entry.name)?;
            let file = self.storage().open(&path, Access::Read).await.map_err(SessionError::io(&path))?;
            let text = file.read_at(0, vec![0; MAX_MANIFEST]).await.map_err(SessionError::io(&path))?;
            // one that cannot be read is of another version, or cut off: its slot counts for nothing
            let Ok(manifest) = serde_json::from_slice::<SlotManifest>(&text) else { continue };
            if manifest.format == SlotManifest::FORMAT {
                all.push(Kept { stem: stem.to_owned(), manifest });
            }
        }
        Ok(all)
    }
}

/// How many tokens two lists have in common at their beginning.
#[must_use]
pub fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn not(path: PathBuf, why: &str) -> SessionError {
    SessionError::Io(path, io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
}

/// A file's length and SHA-256.
async fn hash<F: StorageFile>(file: &F) -> io::Result<(u64, Digest)> {
    let mut sha = sha2::Sha256::new();
    let (mut at, mut buffer) = (0u64, vec![0; PIECE]);
    loop {
        buffer.resize(PIECE, 0);
        buffer = file.read_at(at, buffer).await?;
        if buffer.is_empty() {
            return Ok((at, Digest::from_bytes(sha.finalize().into())));
        }
        sha.update(&buffer);
        at = at.saturating_add(count(buffer.len()));
    }
}
