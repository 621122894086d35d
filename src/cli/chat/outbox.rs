//! The messages that were typed and are not yet known to be saved by the daemon: a file of this user's, one a session.
//!
//! Invariants: a message is in the file, synced, before it is shown as waiting or sent; one that was sent is marked
//! before with the newest turn, so that after a lost daemon or client the log can tell whether it arrived. None is
//! lost, and none is sent twice.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::state::private;
use crate::proto::SessionId;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// What the user wrote.
    pub text: String,
    /// It may have been sent: then it is the turn after this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// The messages of one session, in order.
pub struct Outbox {
    // none: another chat has them, or there is no place for a file
    file: Option<Place>,
    waiting: Vec<Waiting>,
}

struct Place {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Outbox {
    /// Those of a session, kept under `state`, and why they are only in memory, if they are.
    pub fn open(state: &Path, session: &SessionId) -> (Self, Option<String>) {
        match Place::open(state, session).and_then(|place| Ok((place.read()?, place))) {
            Ok((waiting, place)) => (Self { file: Some(place), waiting }, None),
            Err(e) => (Self { file: None, waiting: Vec::new() }, Some(e.to_string())),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Waiting] {
        &self.waiting
    }

    /// The one that comes next.
    pub fn first(&self) -> Option<&Waiting> {
        self.waiting.first()
    }

    /// Adds one, at the end or, if it is to be sent at once, `ahead` of the others.
    ///
    /// # Errors
    /// When it cannot be saved; then it is not there.
    pub fn add(&mut self, text: &str, ahead: bool) -> io::Result<()> {
        let at = if ahead { 0 } else { self.waiting.len() };
        let message = Waiting { text: text.to_owned(), after: None };
        self.change(|waiting| waiting.insert(at, message))
    }

    /// Takes one away, counted from 0.
    ///
    /// # Errors
    /// When that cannot be saved; then it is still there.
    pub fn remove(&mut self, at: usize) -> io::Result<Option<Waiting>> {
        let gone = self.waiting.get(at).cloned();
        if gone.is_some() {
            self.change(|waiting| drop(waiting.remove(at)))?;
        }
        Ok(gone)
    }

    /// Says of the first that it may have been sent behind a turn, or that it was not.
    ///
    /// # Errors
    /// When that cannot be saved.
    pub fn mark(&mut self, after: Option<u64>) -> io::Result<()> {
        self.change(|waiting| {
            if let Some(first) = waiting.first_mut() {
                first.after = after;
            }
        })
    }

    /// Whether they outlive this chat.
    pub fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Keeps them in memory only from now on, with one more ahead of them.
    pub fn keep_no_more(&mut self, text: &str) {
        self.file = None;
        self.waiting.insert(0, Waiting { text: text.to_owned(), after: None });
    }

    fn change(&mut self, change: impl FnOnce(&mut Vec<Waiting>)) -> io::Result<()> {
        let mut changed = self.waiting.clone();
        change(&mut changed);
        if let Some(place) = &self.file {
            place.write(&changed)?;
        }
        self.waiting = changed;
        Ok(())
    }
}

impl Place {
    fn open(state: &Path, session: &SessionId) -> io::Result<Self> {
        let dir = private(state.join("bxctl").join("waiting"))?;
        let lock = dir.join(format!("{session}.lock"));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| io::Error::other("another bxctl chat is in this session"))?;
        Ok(Self { path: dir.join(format!("{session}.json")), _lock: lock })
    }

    fn read(&self) -> io::Result<Vec<Waiting>> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|e| io::Error::other(format!("{} cannot be read: {e}", self.path.display()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Under another name first, so that it is never there in part.
    fn write(&self, waiting: &[Waiting]) -> io::Result<()> {
        let tmp = self.path.with_extension("json.tmp");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&tmp)?;
        file.write_all(&serde_json::to_vec(waiting)?)?;
        file.sync_all()?;
        fs::rename(&tmp, &self.path)?;
        let dir = self.path.parent().unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_outlives_the_chat() {
        let dir = tempfile::tempdir().unwrap();
        let session = "s1".parse().unwrap();
        let (mut outbox, why) = Outbox::open(dir.path(), &session);
        assert_eq!((outbox.all(), why), (&[][..], None));
        outbox.add("one", false).unwrap();
        outbox.add("two\nlines", false).unwrap();
        outbox.add("zero", true).unwrap();
        outbox.mark(Some(7)).unwrap();
        assert_eq!(outbox.remove(1).unwrap().unwrap().text, "one");
        assert_eq!(outbox.remove(5).unwrap(), None);

        // a second chat has none of it, and says so
        let (mut second, why) = Outbox::open(dir.path(), &session);
        assert!(second.all().is_empty() && why.unwrap().contains("another bxctl chat"));
        second.add("only here", false).unwrap();
        drop(outbox);

        let (outbox, why) = Outbox::open(dir.path(), &session);
        let texts: Vec<_> = outbox.all().iter().map(|w| (w.text.as_str(), w.after)).collect();
        assert_eq!((texts, why), (vec![("zero", Some(7)), ("two\nlines", None)], None));
        let file = dir.path().join("bxctl/waiting/s1.json");
        assert_eq!(std::os::unix::fs::MetadataExt::mode(&fs::metadata(file).unwrap()) & 0o777, 0o600);
        assert!(Outbox::open(dir.path(), &"s2".parse().unwrap()).0.all().is_empty());
    }

    #[test]
    fn what_cannot_be_saved_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let (mut outbox, _) = Outbox::open(dir.path(), &"s1".parse().unwrap());
        fs::create_dir(dir.path().join("bxctl/waiting/s1.json")).unwrap();
        assert!(outbox.add("one", false).is_err());
        assert!(outbox.all().is_empty());
    }
}
