//! What can be checked of a line by itself: its checksum, its record, its digest. Of a long log that is done on all
//! processors at once; only what ties the lines together is left for their reader.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::proto::{Digest, Line, LineError};

/// As many bytes are worth a task on another thread, which costs some ten microseconds.
const WORTH_IT: usize = 32 * 1024;
/// The most threads at once: beyond them the reading takes longer than the checking.
const MOST: usize = 4;

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

/// Checks all whole lines of `bytes`, which begin with one, and gives the bytes back. Checks none when they are too few to
/// be worth it.
pub(super) async fn check_all(bytes: Vec<u8>) -> io::Result<(Vec<u8>, VecDeque<Checked>)> {
    let whole = memchr::memrchr(b'\n', &bytes).map_or(0, |last| last.saturating_add(1));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST);
    let threads = threads.min(whole / WORTH_IT);
    if threads < 2 {
        return Ok((bytes, VecDeque::new()));
    }
    let parts = parts(bytes.get(..whole).unwrap_or_default(), threads);
    let bytes = Arc::new(bytes);
    let check = |part: Range<usize>| {
        let bytes = Arc::clone(&bytes);
        tokio::task::spawn_blocking(move || {
            let lines = bytes.get(part).unwrap_or_default().split_inclusive(|byte| *byte == b'\n');
            lines.map(Checked::new).collect::<Vec<_>>()
        })
    };
    let tasks: Vec<_> = parts.into_iter().map(check).collect();
    let mut checked = VecDeque::new();
    for task in tasks {
        checked.extend(task.await.map_err(io::Error::other)?);
    }
    Ok((Arc::unwrap_or_clone(bytes), checked))
}

/// Cuts lines into so many parts of about the same length, each of whole lines.
fn parts(lines: &[u8], count: usize) -> Vec<Range<usize>> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for n in 1..=count {
        let least = (lines.len() / count).saturating_mul(n);
        let rest = lines.get(least..).unwrap_or_default();
        let to = match memchr::memchr(b'\n', rest) {
            Some(newline) if n < count => least.saturating_add(newline).saturating_add(1),
            _ => lines.len(),
        };
        if to > from {
            parts.push(from..to);
            from = to;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_lines_and_together_all_of_them() {
        let line = |length: usize| [vec![b'x'; length], vec![b'\n']].concat();
        for lengths in [vec![1; 100], vec![1000, 1, 1, 1], vec![1, 1, 1, 1000], vec![0; 5], vec![70_000]] {
            let lines: Vec<u8> = lengths.iter().flat_map(|length| line(*length)).collect();
            for count in 1..6 {
                let parts = parts(&lines, count);
                let ends: Vec<usize> = parts.iter().map(|part| part.end).collect();
                assert!(parts.len() <= count && parts[0].start == 0 && ends.last() == Some(&lines.len()));
                assert!(
                    parts.iter().skip(1).map(|part| part.start).eq(ends[..ends.len() - 1].iter().copied())
                );
                assert!(ends.iter().all(|end| lines[end - 1] == b'\n'), "{lengths:?} {count}: {parts:?}");
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn many_lines_are_checked_as_one_is() {
        let mut bytes: Vec<u8> =
            (0..4000).flat_map(|n| format!("{n} is no record of ours\n").into_bytes()).collect();
        bytes.extend_from_slice(b"and no line");
        let (same, checked) = check_all(bytes.clone()).await.unwrap();
        assert_eq!(same, bytes);
        if std::thread::available_parallelism().unwrap().get() > 1 {
            let lines = bytes.split_inclusive(|byte| *byte == b'\n').take(4000).map(Checked::new);
            assert!(
                lines
                    .map(|one| (one.digest, one.line))
                    .eq(checked.into_iter().map(|one| (one.digest, one.line)))
            );
        }
    }
}
