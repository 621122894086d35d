//! What can be wrong with a configuration, in words that name the place and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// One thing that is wrong in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The table and key, as `[limits] turn_seconds`; empty where the text is not TOML.
    pub key: String,
    /// What was found there. Never a secret: a URL with a password in it is not repeated.
    pub found: String,
    /// What is allowed there.
    pub allowed: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.path.display(), self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.found)?;
        if !self.allowed.is_empty() {
            write!(f, "; {}", self.allowed)?;
        }
        Ok(())
    }
}

/// Why there is no configuration. The words never contain a secret.
#[derive(Debug)]
pub enum ConfigError {
    /// The file that was asked for by name is not there.
    Missing(PathBuf),
    /// A file could not be read.
    Io(PathBuf, io::Error),
    /// The configuration file is larger than [`super::MAX_FILE_BYTES`].
    TooLarge(PathBuf),
    /// The configuration file is not UTF-8: path and line.
    NotUtf8(PathBuf, usize),
    /// All that is wrong in the file, in the order of its lines; never empty.
    Invalid(Vec<Problem>),
    /// An option of the command line that cannot be.
    Override {
        /// The option, as `--slot`.
        flag: &'static str,
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: String,
    },
    /// Nothing says where the home is.
    NoHome,
    /// A default that follows from the environment cannot be used.
    Derived {
        /// The key that would set it, as `[daemon] socket`.
        key: &'static str,
        /// What is wrong with the default.
        why: String,
    },
    /// The file of the API key cannot be used: the file, and why.
    ApiKey(String, String),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(path) => write!(
                f,
                "{}: there is no such file; leave --config out to start with the defaults",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "{}: cannot be read: {error}", path.display()),
            Self::TooLarge(path) => write!(
                f,
                "{}: is larger than {} bytes; is it a configuration file?",
                path.display(),
                super::MAX_FILE_BYTES
            ),
            Self::NotUtf8(path, line) => {
                write!(f, "{}:{line}: not UTF-8; save the file as UTF-8", path.display())
            }
            Self::Invalid(problems) => {
                for (n, problem) in problems.iter().enumerate() {
                    if n > 0 {
                        f.write_str("\n")?;
                    }
                    problem.fmt(f)?;
                }
                Ok(())
            }
            Self::Override { flag, found, allowed } => write!(f, "{flag}: {found}; {allowed}"),
            Self::NoHome => f.write_str(
                "no home: none of STATE_DIRECTORY, XDG_STATE_HOME and HOME is set to an absolute path; \
                 set [daemon] home or --home",
            ),
            Self::Derived { key, why } => write!(f, "{key}: the default cannot be used: {why}; set {key}"),
            Self::ApiKey(file, why) => write!(f, "[model] api_key_file: {file}: {why}"),
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}
