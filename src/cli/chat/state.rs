//! Where a chat keeps what it remembers about the user.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;

/// Where programs keep such things.
#[must_use]
pub fn dir() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
}

/// A folder that is made, if need be, so that only its owner can enter it.
///
/// # Errors
/// When it cannot be made.
pub fn private(dir: PathBuf) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    Ok(dir)
}
