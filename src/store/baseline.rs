//! A frozen baseline: the content, the file's bytes, their digest.

use std::path::Path;

use super::error::BaselineError;
use super::read::read_whole;
use super::storage::Storage;
use super::uring::Uring;
use crate::proto::{BASELINE_FORMAT, BaselineContent, Digest};

/// The largest baseline file, in bytes.
pub const MAX_BASELINE_BYTES: u64 = 16 * 1024 * 1024;

/// Everything before the first message, frozen: what is shown is the file's bytes, for ever.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    content: BaselineContent,
    json: String,
    hash: Digest,
}

impl Baseline {
    /// Fixes a content's bytes.
    ///
    /// # Errors
    /// [`BaselineError::Freeze`]: a content that would not read back the same, is of another format, is
    /// too large, or holds credentials in its URL.
    pub fn freeze(content: BaselineContent) -> Result<Self, BaselineError> {
        let refuse = |why: String| Err(BaselineError::Freeze(why));
        if content.format != BASELINE_FORMAT {
            return refuse(format!(
                "its format is {}, this version writes {BASELINE_FORMAT}",
                content.format
            ));
        }
        let authority = content.model.url.split_once("://").map(|(_, rest)| rest.split('/').next());
        if authority.flatten().is_some_and(|authority| authority.contains('@')) {
            return refuse("the model's URL holds credentials; they belong in model.api_key_file".to_owned());
        }
        let json = Self::encode(&content).map_err(|e| BaselineError::Freeze(e.to_string()))?;
        if !u64::try_from(json.len()).is_ok_and(|len| len <= MAX_BASELINE_BYTES) {
            return refuse(format!("{} bytes, more than {MAX_BASELINE_BYTES}", json.len()));
        }
        match Self::decode(&json) {
            Ok(read) if read == content => Ok(Self { content, hash: Digest::of(json.as_bytes()), json }),
            Ok(_) => refuse("it would read back as another one".to_owned()),
            Err(e) => refuse(format!("it could not be read back: {e}")),
        }
    }

    fn encode(content: &BaselineContent) -> Result<String, serde_json::Error> {
        let mut json = serde_json::to_string_pretty(content)?;
        json.push('\n');
        Ok(json)
    }

    /// Reads a file's text. Only the bytes that [`Baseline::freeze`] writes are one.
    fn decode(json: &str) -> Result<BaselineContent, String> {
        let content: BaselineContent = serde_json::from_str(json).map_err(|e| e.to_string())?;
        if content.format != BASELINE_FORMAT {
            return Err(format!(
                "its format is {}, this version reads {BASELINE_FORMAT}: written by another version of loopd",
                content.format
            ));
        }
        match Self::encode(&content) {
            Ok(same) if same == json => Ok(content),
            _ => Err("its bytes are not those that loopd writes for its content".to_owned()),
        }
    }

    /// The file's bytes.
    #[must_use]
    pub fn to_json(&self) -> &str {
        &self.json
    }

    /// The SHA-256 of the file's bytes.
    #[must_use]
    pub fn hash(&self) -> Digest {
        self.hash
    }

    /// What it holds.
    #[must_use]
    pub fn content(&self) -> &BaselineContent {
        &self.content
    }

    /// Reads a baseline's file.
    ///
    /// # Errors
    /// The disk's, or what is wrong with the content, with the path.
    pub async fn load(path: &Path) -> Result<Self, BaselineError> {
        Self::load_from(&Uring, path).await
    }

    /// As [`Baseline::load`], from any storage.
    ///
    /// # Errors
    /// As [`Baseline::load`].
    pub async fn load_from<S: Storage>(storage: &S, path: &Path) -> Result<Self, BaselineError> {
        let content = |why: String| BaselineError::Content { path: path.to_owned(), why };
        let bytes = read_whole(storage, path, MAX_BASELINE_BYTES)
            .await
            .map_err(|e| BaselineError::Io(path.to_owned(), e))?
            .ok_or_else(|| content(format!("more than {MAX_BASELINE_BYTES} bytes")))?;
        let hash = Digest::of(&bytes);
        let json = String::from_utf8(bytes).map_err(|e| content(format!("not UTF-8: {}", e.utf8_error())))?;
        let decoded = Self::decode(&json).map_err(content)?;
        Ok(Self { content: decoded, json, hash })
    }
}
