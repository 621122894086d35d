//! The API key: read from a file of its own, held so that it cannot be printed by mistake.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{ConfigError, Environment, ModelConfig};

/// The longest API key, in bytes.
pub const MAX_API_KEY_BYTES: u64 = 4_096;

/// A text that `Debug` and `Display` do not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself, for the one place that sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// The API key, and what to warn of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The key.
    pub key: Secret,
    /// In words, when others can read the file too.
    pub warning: Option<String>,
}

impl ModelConfig {
    /// Reads the API key from `api_key_file`, if there is one. A relative name is one of systemd's
    /// credentials. Blocks for as long as a small file takes: for the start of the program.
    ///
    /// # Errors
    /// The file cannot be read or holds no key; the words never repeat what it holds.
    pub fn read_api_key(&self, environment: &Environment) -> Result<Option<ApiKey>, ConfigError> {
        self.api_key_file.as_deref().map(|path| read(path, environment)).transpose()
    }
}

fn read(path: &Path, environment: &Environment) -> Result<ApiKey, ConfigError> {
    let path = locate(path, environment)?;
    let refuse = |why: String| ConfigError::ApiKey(path.display().to_string(), why);
    // Not blocking, so that a pipe put in the file's place cannot hold up the start.
    let mut file = File::options()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(&path)
        .map_err(|e| refuse(format!("cannot be opened: {e}")))?;
    let metadata = file.metadata().map_err(|e| refuse(format!("cannot be examined: {e}")))?;
    if !metadata.is_file() {
        return Err(refuse("is not a regular file".to_owned()));
    }
    let mut bytes = Vec::new();
    file.by_ref()
        .take(MAX_API_KEY_BYTES.saturating_add(3))
        .read_to_end(&mut bytes)
        .map_err(|e| refuse(format!("cannot be read: {e}")))?;
    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.is_empty() {
        return Err(refuse("is empty".to_owned()));
    }
    if crate::proto::count(text.len()) > MAX_API_KEY_BYTES {
        return Err(refuse(format!("is longer than a key can be ({MAX_API_KEY_BYTES} bytes)")));
    }
    if !text.iter().all(u8::is_ascii_graphic) {
        return Err(refuse(
            "holds more than a key: allowed is one line of visible ASCII characters without spaces"
                .to_owned(),
        ));
    }
    let warning = (metadata.mode() & 0o004 != 0).then(|| {
        let path = path.display();
        format!("[model] api_key_file: {path} can be read by everybody on this machine; chmod o-r {path}")
    });
    Ok(ApiKey { key: Secret(String::from_utf8_lossy(text).into_owned()), warning })
}

fn locate(path: &Path, environment: &Environment) -> Result<PathBuf, ConfigError> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    // The name isn't repeated: somebody may have put the key itself there.
    match &environment.credentials_directory {
        Some(directory) => Ok(directory.join(path)),
        None => Err(ConfigError::ApiKey(
            "the relative name in it".to_owned(),
            "means one of systemd's credentials, but CREDENTIALS_DIRECTORY is not set; \
             use LoadCredential= in the unit, or an absolute path"
                .to_owned(),
        )),
    }
}
