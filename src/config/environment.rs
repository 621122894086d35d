//! What the process's environment says about places, read once, so that tests need not change it.

use std::path::{Path, PathBuf};

use super::ConfigError;
use super::read::absolute;
use super::url::{ModelUrl, check_socket_path};

/// Where a daemon of the whole system has its socket, when its unit says `RuntimeDirectory=boxmaker`.
const SYSTEM_SOCKET: &str = "/run/boxmaker/loopd.sock";
const SYSTEM_FILE: &str = "/etc/boxmaker/loopd.toml";

/// The places that the environment names. Relative ones count as not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `$STATE_DIRECTORY`: systemd's `StateDirectory=`, the first of it.
    pub state_directory: Option<PathBuf>,
    /// `$RUNTIME_DIRECTORY`: systemd's `RuntimeDirectory=`, the first of it.
    pub runtime_directory: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`: systemd's `LoadCredential=`.
    pub credentials_directory: Option<PathBuf>,
    /// `$XDG_STATE_HOME`.
    pub xdg_state_home: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`.
    pub xdg_config_home: Option<PathBuf>,
    /// `$HOME`.
    pub home: Option<PathBuf>,
}

impl Environment {
    /// That of this process.
    #[must_use]
    pub fn of_process() -> Self {
        let first = |name: &str| {
            let value = std::env::var_os(name)?;
            std::env::split_paths(&value).next().filter(|path| path.is_absolute())
        };
        let whole = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Self {
            state_directory: first("STATE_DIRECTORY"),
            runtime_directory: first("RUNTIME_DIRECTORY"),
            credentials_directory: whole("CREDENTIALS_DIRECTORY"),
            xdg_state_home: whole("XDG_STATE_HOME"),
            xdg_config_home: whole("XDG_CONFIG_HOME"),
            home: whole("HOME"),
        }
    }

    /// The home that the daemon has when nothing else names one.
    ///
    /// # Errors
    /// The environment names no place for it, or one that cannot be.
    pub fn default_home(&self) -> Result<PathBuf, ConfigError> {
        let under = |base: &Option<PathBuf>, rest: &str| base.as_ref().map(|base| base.join(rest));
        let home = self
            .state_directory
            .clone()
            .or_else(|| under(&self.xdg_state_home, "boxmaker"))
            .or_else(|| under(&self.home, ".local/state/boxmaker"))
            .ok_or(ConfigError::NoHome)?;
        absolute(&home).map_err(|why| ConfigError::Derived {
            key: "[daemon] home",
            why: format!("{}: {why}", home.display()),
        })
    }

    /// Where sockets are: systemd's runtime directory, else the home.
    fn run_directory<'a>(&'a self, home: &'a Path) -> &'a Path {
        self.runtime_directory.as_deref().unwrap_or(home)
    }

    /// The daemon's socket when nothing else names one.
    ///
    /// # Errors
    /// A Unix socket cannot have that path.
    pub fn socket_for(&self, home: &Path) -> Result<PathBuf, ConfigError> {
        usable_socket("[daemon] socket", self.run_directory(home).join("loopd.sock"))
    }

    /// The model server's address when nothing else names one.
    pub(super) fn model_url_for(&self, home: &Path) -> Result<ModelUrl, ConfigError> {
        usable_socket("[model] url", self.run_directory(home).join("llama.sock")).map(ModelUrl::Unix)
    }

    /// Where the configuration is looked for, the first that exists counts.
    #[must_use]
    pub fn config_files(&self) -> Vec<PathBuf> {
        let own = match (&self.xdg_config_home, &self.home) {
            (Some(base), _) => Some(base.clone()),
            (None, Some(home)) => Some(home.join(".config")),
            (None, None) => None,
        };
        let own = own.map(|base| base.join("boxmaker/loopd.toml"));
        own.into_iter().chain([PathBuf::from(SYSTEM_FILE)]).collect()
    }
}

fn usable_socket(key: &'static str, path: PathBuf) -> Result<PathBuf, ConfigError> {
    let why = absolute(&path).and_then(|path| check_socket_path(&path));
    match why {
        Ok(()) => Ok(path),
        Err(why) => Err(ConfigError::Derived { key, why: format!("{}: {why}", path.display()) }),
    }
}

/// The socket that a client tries when it was told none: that of a daemon with the same environment, or,
/// where only a daemon of the whole system has one, that one's. No file is read.
///
/// # Errors
/// The environment names no place for it.
pub fn default_socket() -> Result<PathBuf, ConfigError> {
    client_socket(&Environment::of_process(), Path::new(SYSTEM_SOCKET))
}

fn client_socket(environment: &Environment, system: &Path) -> Result<PathBuf, ConfigError> {
    let own = environment.default_home().and_then(|home| environment.socket_for(&home));
    // in a folder that this user may not enter it is there, for all that can be known
    let system_is_there = system.try_exists().unwrap_or(true);
    match own {
        Ok(own) if own.exists() || !system_is_there => Ok(own),
        Err(error) if !system_is_there => Err(error),
        _ => Ok(system.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_prefers_its_own_daemon_to_the_systems() {
        let dir = tempfile::tempdir().unwrap();
        let (own, system) = (dir.path().join("boxmaker/loopd.sock"), dir.path().join("system.sock"));
        let environment =
            Environment { xdg_state_home: Some(dir.path().to_owned()), ..Environment::default() };
        assert_eq!(client_socket(&environment, &system).unwrap(), own);
        // what cannot be looked at is not taken for absent
        let hidden = Path::new("/dev/null/loopd.sock");
        assert_eq!(client_socket(&environment, hidden).unwrap(), hidden);
        assert!(matches!(client_socket(&Environment::default(), &system), Err(ConfigError::NoHome)));
        std::fs::write(&system, "").unwrap();
        assert_eq!(client_socket(&environment, &system).unwrap(), system);
        assert_eq!(client_socket(&Environment::default(), &system).unwrap(), system);
        std::fs::create_dir(dir.path().join("boxmaker")).unwrap();
        std::fs::write(&own, "").unwrap();
        assert_eq!(client_socket(&environment, &system).unwrap(), own);
    }
}
