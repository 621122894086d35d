//! Where things are: as the command line says, else the file, else the environment.

use std::path::{Path, PathBuf};

use super::read::{Table, absolute, quoted};
use super::url::{self, ModelUrl, UrlError};
use super::{ConfigError, Environment, MAX_SLOT, Overrides};

/// The places that the file names.
pub(super) struct Places {
    home: Option<PathBuf>,
    socket: Option<PathBuf>,
    url: Option<ModelUrl>,
}

/// The places that count.
pub(super) struct Resolved {
    pub(super) home: PathBuf,
    pub(super) socket: PathBuf,
    pub(super) slot: u32,
    pub(super) url: ModelUrl,
}

impl Places {
    pub(super) fn read(daemon: &Table<'_, '_>, model: &Table<'_, '_>) -> Self {
        let address = |text: &str| text.parse().map_err(|why: UrlError| why.to_string());
        Self {
            home: daemon.path("home"),
            socket: daemon.parsed("socket", "allowed is the absolute path of a socket", socket),
            url: model.parsed("url", url::ALLOWED_URL, address),
        }
    }

    pub(super) fn resolve(
        self,
        slot: u32,
        overrides: &Overrides,
        environment: &Environment,
    ) -> Result<Resolved, ConfigError> {
        let home = match (&overrides.home, self.home) {
            (Some(path), _) => overridden_path("--home", path)?,
            (None, Some(home)) => home,
            (None, None) => environment.default_home()?,
        };
        let socket = match (&overrides.socket, self.socket) {
            (Some(path), _) => overridden_socket(path)?,
            (None, Some(socket)) => socket,
            (None, None) => environment.socket_for(&home)?,
        };
        let url = match (&overrides.model_url, self.url) {
            (Some(text), _) => text.parse().map_err(|why: UrlError| ConfigError::Override {
                flag: "--model-url",
                found: why.to_string(),
                allowed: url::ALLOWED_URL.to_owned(),
            })?,
            (None, Some(url)) => url,
            (None, None) => environment.model_url_for(&home)?,
        };
        Ok(Resolved { home, socket, slot: overridden_slot(overrides)?.unwrap_or(slot), url })
    }
}

fn overridden_socket(path: &Path) -> Result<PathBuf, ConfigError> {
    let path = overridden_path("--socket", path)?;
    match url::check_socket_path(&path) {
        Ok(()) => Ok(path),
        Err(why) => Err(ConfigError::Override {
            flag: "--socket",
            found: format!("found {}: {why}", quoted(&path.to_string_lossy())),
            allowed: "allowed is the path of a socket".to_owned(),
        }),
    }
}

fn overridden_path(flag: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    let refuse = |why: String| ConfigError::Override {
        flag,
        found: format!("found {}: {why}", quoted(&path.to_string_lossy())),
        allowed: "allowed is a path".to_owned(),
    };
    let path = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
    absolute(&path).map_err(refuse)
}

fn overridden_slot(overrides: &Overrides) -> Result<Option<u32>, ConfigError> {
    match overrides.slot {
        Some(slot) if slot > MAX_SLOT => Err(ConfigError::Override {
            flag: "--slot",
            found: format!("found {slot}"),
            allowed: format!("allowed is a whole number from 0 to {MAX_SLOT}"),
        }),
        slot => Ok(slot),
    }
}

fn socket(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let checked = absolute(path).and_then(|path| url::check_socket_path(&path).map(|()| path));
    checked.map_err(|why| format!("found {}: {why}", quoted(text)))
}
