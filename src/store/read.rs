//! Reading files in pieces of bounded size.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::checked::{Checked, check_all};
use super::storage::{Access, Storage, StorageFile};
use crate::proto::count;

/// How much is asked of the disk at once, at most, and of a file's beginning: most files are small.
const PIECE: usize = 256 * 1024;
const FIRST_PIECE: usize = 16 * 1024;

/// The longest line that is read whole; what is longer is no record of ours.
pub(crate) const LONGEST_LINE: usize = 96 * 1024 * 1024;

/// Reads a piece, again when a signal came in between.
async fn piece<F: StorageFile>(file: &F, at: u64, mut buffer: Vec<u8>) -> io::Result<Vec<u8>> {
    let wanted = if at == 0 { FIRST_PIECE } else { PIECE };
    loop {
        if buffer.len() < wanted {
            buffer = vec![0; wanted];
        }
        match file.read_at(at, buffer).await {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => buffer = Vec::new(),
            result => return result,
        }
    }
}

/// A file's bytes; `None` when there are more than `max`.
pub(crate) async fn read_whole<S: Storage>(
    storage: &S,
    path: &Path,
    max: u64,
) -> io::Result<Option<Vec<u8>>> {
    let file = storage.open(path, Access::Read).await?;
    let (mut bytes, mut buffer, mut at) = (Vec::new(), Vec::new(), 0u64);
    loop {
        buffer = piece(&file, at, buffer).await?;
        if buffer.is_empty() {
            return Ok(Some(bytes));
        }
        bytes.extend_from_slice(&buffer);
        at = count(bytes.len());
        if at > max {
            return Ok(None);
        }
    }
}

/// A line as it stands in a file.
#[derive(Debug)]
pub(crate) struct Raw<'a> {
    /// Where it begins.
    pub at: u64,
    /// How long it is, newline included.
    pub len: u64,
    /// Its bytes, newline included unless it is the last and has none; `None` when it is longer than
    /// [`LONGEST_LINE`].
    pub bytes: Option<&'a [u8]>,
    /// What was found out of it already.
    pub checked: Option<Checked>,
}

/// A file's lines, one after the other.
pub(crate) struct Lines<'f, F> {
    file: &'f F,
    buffer: Vec<u8>,
    /// Where the next line begins in `buffer`, and how much behind it has no newline.
    start: usize,
    searched: usize,
    /// Where the next line begins in the file.
    at: u64,
    /// Where `buffer` ends in the file.
    read_to: u64,
    ended: bool,
    spare: Vec<u8>,
    /// Whether lines are checked as they are read, and what came of it for those in `buffer` that were.
    checking: bool,
    checked: VecDeque<Checked>,
}

impl<'f, F: StorageFile> Lines<'f, F> {
    /// The lines from `at` on, where one begins.
    pub(crate) fn new(file: &'f F, at: u64) -> Self {
        Self {
            file,
            buffer: Vec::new(),
            start: 0,
            searched: 0,
            at,
            read_to: at,
            ended: false,
            spare: Vec::new(),
            checking: false,
            checked: VecDeque::new(),
        }
    }

    /// The same, where each of them will be checked.
    pub(crate) fn to_check(file: &'f F, at: u64) -> Self {
        Self { checking: true, ..Self::new(file, at) }
    }

    /// The next line.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Raw<'_>>> {
        let mut dropped = 0u64;
        loop {
            let rest = self.buffer.get(self.start..).unwrap_or_default();
            let unsearched = rest.get(self.searched..).unwrap_or_default();
            let newline = memchr::memchr(b'\n', unsearched).map(|n| self.searched.saturating_add(n));
            let end = newline.map(|n| n.saturating_add(1)).or(self.ended.then_some(rest.len()));
            if let Some(end) = end {
                if end == 0 && dropped == 0 {
                    return Ok(None);
                }
                let (from, at) = (self.start, self.at);
                let len = dropped.saturating_add(count(end));
                self.start = from.saturating_add(end);
                self.searched = 0;
                self.at = at.saturating_add(len);
                let checked = newline.and_then(|_| self.checked.pop_front());
                let bytes = self.buffer.get(from..self.start).filter(|_| dropped == 0);
                return Ok(Some(Raw { at, len, bytes, checked }));
            }
            self.searched = rest.len();
            if self.searched > LONGEST_LINE {
                dropped = dropped.saturating_add(count(self.searched));
                self.start = self.buffer.len();
                self.searched = 0;
            }
            self.fill().await?;
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let read = piece(self.file, self.read_to, std::mem::take(&mut self.spare)).await?;
        self.ended = read.is_empty();
        self.read_to = self.read_to.saturating_add(count(read.len()));
        self.buffer.extend_from_slice(&read);
        self.spare = read;
        if self.checking {
            // what was left in the buffer has no newline, so of all lines in it none was checked
            (self.buffer, self.checked) = check_all(std::mem::take(&mut self.buffer)).await?;
        }
        Ok(())
    }

    /// How far the file was read.
    pub(crate) fn read_to(&self) -> u64 {
        self.read_to
    }
}
