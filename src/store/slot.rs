//! Saved slots: the files that llama-server writes into its `--slot-save-path`.

use std::io;
use std::path::{Path, PathBuf};

use super::error::{Result, SessionError};
use super::storage::{Access, Kind, Storage, StorageFile};
use super::uring::Uring;
use crate::proto::TokenId;

/// The most ids that are read from one file.
const MAX_IDS: u32 = 4 * 1024 * 1024;
/// The header's words before the ids: magic, version, packed words, -1, 1, number of ids.
const HEADER: usize = 24;
const MAGIC: u32 = u32::from_be_bytes(*b"ggsq");
const VERSION: u32 = 4;

/// The directory of saved slots, which the server writes.
#[derive(Debug, Clone)]
pub struct SlotFiles<S: Storage = Uring> {
    storage: S,
    dir: PathBuf,
}

impl SlotFiles<Uring> {
    /// The directory that the server was given as `--slot-save-path`.
    #[must_use]
    pub fn new(dir: PathBuf) -> Self {
        Self::on(Uring, dir)
    }
}

impl<S: Storage> SlotFiles<S> {
    /// As [`SlotFiles::new`], on any storage.
    #[must_use]
    pub fn on(storage: S, dir: PathBuf) -> Self {
        Self { storage, dir }
    }

    pub(super) fn storage(&self) -> &S {
        &self.storage
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes a saved slot that has served its purpose.
    ///
    /// # Errors
    /// The disk's.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        self.storage.remove(&path, Kind::File).await.map_err(|e| SessionError::Io(path, e))
    }

    /// Where a saved slot is, if that is a plain name.
    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            let why = format!("{name:?} is not the plain name of a saved slot");
            return Err(SessionError::Io(path, io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        Ok(path)
    }

    /// The ids of the tokens in a saved slot's KV cache, from its file's header.
    ///
    /// # Errors
    /// The disk's; a name with a slash; and a file that is no saved slot of the known form.
    pub async fn read_ids(&self, name: &str) -> Result<Vec<TokenId>> {
        let path = self.path(name)?;
        let not = |why: String| {
            Err(SessionError::Io(path.clone(), io::Error::new(io::ErrorKind::InvalidData, why)))
        };
        let failed = |e| SessionError::Io(path.clone(), e);
        let file = self.storage.open(&path, Access::Read).await.map_err(failed)?;
        let header = read_exactly(&file, 0, HEADER).await.map_err(failed)?;
        let words: Vec<u32> = words(&header).collect();
        let [MAGIC, VERSION, _packed, u32::MAX, 1, count] = words.as_slice() else {
            return not(format!("not a saved slot of the known form: it begins with {header:02x?}"));
        };
        if *count > MAX_IDS {
            return not(format!("a saved slot of {count} tokens, more than {MAX_IDS}"));
        }
        let bytes = usize::try_from(*count).unwrap_or(usize::MAX).saturating_mul(4);
        let ids = read_exactly(&file, 24, bytes).await.map_err(failed)?;
        Ok(self::words(&ids).collect())
    }
}

/// Little-endian words.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).filter_map(|word| Some(u32::from_le_bytes(word.try_into().ok()?)))
}

async fn read_exactly<F: StorageFile>(file: &F, mut at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let missing = len.saturating_sub(bytes.len()).min(1024 * 1024);
        let piece = file.read_at(at, vec![0; missing]).await?;
        if piece.is_empty() {
            let why = format!("it ends after {} of {len} bytes", bytes.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        at = at.saturating_add(crate::proto::count(piece.len()));
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}
