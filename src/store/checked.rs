//! What can be checked of a line by itself: its checksum, its record, its digest. Of a long log that is done on all
//! processors at once; only what ties the lines together is left for their reader.

use std::io;
use std::sync::LazyLock;

use tokio::task::JoinHandle;

use crate::proto::{Digest, Line, LineError};

/// As many bytes are worth a task on another thread, which costs some ten microseconds.
const WORTH_IT: usize = 32 * 1024;
/// The most threads at once: beyond them the reading takes longer than the checking.
const MOST: usize = 4;

/// How many threads check lines at once. To ask the system takes longer than to check a few lines.
pub(super) fn threads() -> usize {
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST));
    *THREADS
}

/// A line, checked by itself.
#[derive(Debug)]
pub(super) struct Checked {
    /// The digest of its bytes.
    pub digest: Digest,
    /// What it says, or what is wrong with it.
    pub line: Result<Line, LineError>,
}

impl Checked {
    /// Checks a line.
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self { digest: Digest::of(bytes), line: Line::decode(bytes) }
    }
}

/// Lines that are being checked on another thread.
pub(super) struct Checking(JoinHandle<(Vec<u8>, Vec<Checked>)>);

impl Checking {
    /// Begins to check all of `lines`; gives them back when they are too few to be worth it.
    pub(super) fn begin(lines: Vec<u8>) -> Result<Self, Vec<u8>> {
        if lines.len() < WORTH_IT {
            return Err(lines);
        }
        Ok(Self(tokio::task::spawn_blocking(move || {
            let checked = each(&lines).map(Checked::new).collect();
            (lines, checked)
        })))
    }

    /// The lines, and what came of each.
    pub(super) async fn done(self) -> io::Result<(Vec<u8>, Vec<Checked>)> {
        self.0.await.map_err(io::Error::other)
    }
}

/// Each line, newline included.
fn each(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr::memchr_iter(b'\n', lines).map(move |newline| {
        let end = newline.saturating_add(1);
        lines.get(std::mem::replace(&mut start, end)..end).unwrap_or_default()
    })
}
