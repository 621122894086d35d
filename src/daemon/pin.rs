//! A home belongs to one slot of one machine's model server, and says so in `<home>/home.toml`.
//!
//! Invariants:
//! - The file is written when a home is first served, and by `loopd adopt`; nothing else changes it.
//! - A daemon that is configured for another slot, or runs on another machine, changes nothing in the home.

use std::fmt::{self, Display};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::channel::{ChannelError, HomeLock};
use crate::config::DaemonConfig;
use crate::proto::Digest;

use super::EXIT_CONFIG;

/// The file's name in a home.
pub(super) const FILE: &str = "home.toml";
const FORMAT: u32 = 1;
/// More is not a file of ours.
const FILE_BYTES: u64 = 4096;
const MACHINE_ID: &str = "/etc/machine-id";

/// What a home was made for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    format: u32,
    slot: u32,
    /// A digest of the machine's id; absent when it was made on a machine that has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
}

/// Why a home is not served.
#[derive(Debug)]
pub(super) enum PinError {
    /// It was made for another slot.
    OtherSlot {
        /// The home.
        home: PathBuf,
        /// The slot it was made for.
        made: u32,
        /// The slot that is configured.
        configured: u32,
    },
    /// It was made on another machine.
    OtherMachine {
        /// The home.
        home: PathBuf,
    },
    /// `home.toml` is not what loopd writes.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// `home.toml` could not be read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        step: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The home could not be locked.
    Lock(ChannelError),
}

impl PinError {
    /// The exit status: 78 for what a restart does not mend.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::OtherSlot { .. } | Self::OtherMachine { .. } | Self::Damaged { .. } => EXIT_CONFIG,
            Self::Io { .. } | Self::Lock(_) => 1,
        }
    }
}

impl Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OtherSlot { home, made, configured } => write!(
                f,
                "the home {} was made for slot {made}, and slot {configured} is configured: set [daemon] slot (or \
                 --slot) to {made}, or run `loopd adopt` to give the home to slot {configured}",
                home.display()
            ),
            Self::OtherMachine { home } => write!(
                f,
                "the home {} was made on another machine: make sure that no loopd serves it there any more, then \
                 run `loopd adopt` to give it to this one",
                home.display()
            ),
            Self::Damaged { path, why } => write!(
                f,
                "{}: {why}; loopd writes this file itself: run `loopd adopt` to have it written anew",
                path.display()
            ),
            Self::Io { path, step, source } => write!(f, "{}: cannot {step}: {source}", path.display()),
            Self::Lock(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for PinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Lock(e) => Some(e),
            _ => None,
        }
    }
}

impl Pin {
    /// What a home is for that is served here, with `slot`.
    fn here(slot: u32) -> Self {
        Self { format: FORMAT, slot, machine: machine(Path::new(MACHINE_ID)) }
    }

    /// What the home says it was made for; `None` when it does not say.
    fn of(home: &Path) -> Result<Option<Self>, PinError> {
        let path = home.join(FILE);
        let failed = |source| PinError::Io { path: path.clone(), step: "read it", source };
        let damaged = |why: String| PinError::Damaged { path: path.clone(), why };
        let text = match fs::metadata(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed(e)),
            // reading a pipe would wait for its other end
            Ok(found) if !found.is_file() => return Err(damaged("it is no regular file".to_owned())),
            Ok(found) if found.len() > FILE_BYTES => {
                return Err(damaged(format!(
                    "it has {} bytes, and at most {FILE_BYTES} are ours",
                    found.len()
                )));
            }
            Ok(_) => fs::read_to_string(&path).map_err(failed)?,
        };
        let pin: Self = toml::from_str(&text).map_err(|e| damaged(e.message().to_owned()))?;
        if pin.format != FORMAT {
            return Err(damaged(format!("it has format {}, and this loopd knows {FORMAT}", pin.format)));
        }
        Ok(Some(pin))
    }

    /// Whether a home that was made for this may be served by who wants `here`. A machine without an id
    /// cannot be told from another.
    fn allows(&self, here: &Self, home: &Path) -> Result<(), PinError> {
        if let (Some(made), Some(now)) = (&self.machine, &here.machine)
            && made != now
        {
            return Err(PinError::OtherMachine { home: home.to_owned() });
        }
        if self.slot != here.slot {
            let (made, configured) = (self.slot, here.slot);
            return Err(PinError::OtherSlot { home: home.to_owned(), made, configured });
        }
        Ok(())
    }

    /// Writes it, durably, in place of what was there.
    fn write(&self, home: &Path) -> Result<(), PinError> {
        let (path, new) = (home.join(FILE), home.join("home.toml.new"));
        let failed = |step| move |source| PinError::Io { path: home.join(FILE), step, source };
        let text = toml::to_string(self)
            .map_err(|e| failed("write it")(io::Error::new(io::ErrorKind::InvalidData, e)))?;
        // what an earlier attempt left there
        match fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed("make it")(e)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&new).map_err(failed("make it"))?;
        file.write_all(b"# Written by loopd: what this home was made for. `loopd adopt` changes it.\n")
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all())
            .map_err(failed("write it"))?;
        fs::rename(&new, &path).map_err(failed("put it in place"))?;
        File::open(home).and_then(|folder| folder.sync_all()).map_err(failed("make it durable"))
    }
}

impl Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = self.machine.as_deref().map_or("unknown", |id| id.get(..12).unwrap_or(id));
        write!(f, "slot {}, machine {machine}", self.slot)
    }
}

/// A digest of the machine's id, which itself is nobody's business; `None` when the machine has none.
fn machine(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let id = text.trim();
    // while a machine starts for the first time it is the word "uninitialized"
    let usable = id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    usable.then(|| Digest::of(format!("boxmaker home\n{id}\n").as_bytes()).to_string())
}

/// Makes sure that a home may be served, and marks it as made for this slot and machine when it is new. The
/// lock says that it is the caller's.
pub(super) fn check(daemon: &DaemonConfig, _lock: &HomeLock) -> Result<(), PinError> {
    let here = Pin::here(daemon.slot);
    match Pin::of(&daemon.home)? {
        Some(pin) => pin.allows(&here, &daemon.home),
        None => here.write(&daemon.home),
    }
}

/// `loopd adopt`: gives a home to the slot that is configured and to this machine; the line that says so.
pub(super) fn adopt(daemon: &DaemonConfig) -> Result<String, PinError> {
    let home = &daemon.home;
    // the lock would make the folder
    fs::metadata(home).map_err(|source| PinError::Io { path: home.clone(), step: "adopt it", source })?;
    let _lock = HomeLock::take(home).map_err(PinError::Lock)?;
    let was = match Pin::of(home) {
        Ok(was) => was,
        // this is how a damaged file is mended
        Err(PinError::Damaged { .. }) => None,
        Err(e) => return Err(e),
    };
    let here = Pin::here(daemon.slot);
    here.write(home)?;
    let was = was.map_or_else(|| "nothing was known".to_owned(), |pin| format!("it was for {pin}"));
    Ok(format!("the home {} is now for {here}; {was}", home.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(slot: u32, machine: Option<&str>) -> Pin {
        Pin { format: FORMAT, slot, machine: machine.map(str::to_owned) }
    }

    #[test]
    fn what_is_written_is_read() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(Pin::of(home.path()).unwrap(), None);
        for made in [pin(3, Some("ab")), pin(0, None)] {
            made.write(home.path()).unwrap();
            assert_eq!(Pin::of(home.path()).unwrap(), Some(made));
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "something was left behind");
    }

    #[test]
    fn another_slot_or_machine_is_refused() {
        let (made, home) = (pin(0, Some("ab")), Path::new("/h"));
        made.allows(&pin(0, Some("ab")), home).unwrap();
        let slot = made.allows(&pin(1, Some("ab")), home).unwrap_err();
        let machine = made.allows(&pin(0, Some("cd")), home).unwrap_err();
        assert!(slot.to_string().contains("made for slot 0, and slot 1 is configured"), "{slot}");
        assert!(machine.to_string().contains("made on another machine"), "{machine}");
        assert_eq!((slot.status(), machine.status()), (78, 78));
        // without an id there is nothing to compare
        made.allows(&pin(0, None), home).unwrap();
        pin(0, None).allows(&made, home).unwrap();
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_path() {
        let home = tempfile::tempdir().unwrap();
        let long = "#".repeat(5000);
        for text in
            ["", "format = 1\nslot = -1\n", "format = 2\nslot = 0\n", "format = 1\nslot = 0\nx = 1\n", &long]
        {
            fs::write(home.path().join(FILE), text).unwrap();
            let refused = Pin::of(home.path()).unwrap_err();
            assert!(matches!(refused, PinError::Damaged { .. }), "{text:?}: {refused}");
            assert!(refused.to_string().contains("home.toml: "), "{refused}");
            assert_eq!(refused.status(), 78);
        }
    }

    #[test]
    fn the_machine_is_its_id_and_not_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("machine-id");
        assert_eq!(machine(&file), None);
        fs::write(&file, "uninitialized\n").unwrap();
        assert_eq!(machine(&file), None);
        fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
        let one = machine(&file).unwrap();
        assert!(!one.contains("0123456789abcdef"), "{one}");
        fs::write(&file, "1123456789abcdef0123456789abcdef\n").unwrap();
        assert_ne!(machine(&file).unwrap(), one);
    }
}
