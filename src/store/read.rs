//! Reading files in pieces of bounded size.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::checked::{Checked, Checking, threads};
use super::storage::{Access, Storage, StorageFile};
use crate::proto::count;

/// How much is asked of the disk at once, at most, and of a file's beginning: most files are small.
const PIECE: usize = 256 * 1024;
const FIRST_PIECE: usize = 16 * 1024;

/// The longest line that is read whole; what is longer is no record of ours.
pub(crate) const LONGEST_LINE: usize = 96 * 1024 * 1024;

/// Reads a piece, again when a signal came in between.
async fn piece<F: StorageFile>(file: &F, at: u64, mut buffer: Vec<u8>, wanted: usize) -> io::Result<Vec<u8>> {
    loop {
        if buffer.capacity() < wanted {
            // of these zeros none is written before it is needed
            buffer = vec![0; wanted];
        }
        buffer.resize(wanted, 0);
        match file.read_at(at, buffer).await {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => buffer = Vec::new(),
            result => return result,
        }
    }
}

/// How much to ask for next: behind a piece that was not full there is mostly nothing.
fn next_piece(read: usize, wanted: usize) -> usize {
    if read < wanted { FIRST_PIECE } else { PIECE }
}

/// A file's bytes; `None` when there are more than `max`.
pub(crate) async fn read_whole<S: Storage>(
    storage: &S,
    path: &Path,
    max: u64,
) -> io::Result<Option<Vec<u8>>> {
    let file = storage.open(path, Access::Read).await?;
    let (mut bytes, mut buffer, mut at, mut wanted) = (Vec::new(), Vec::new(), 0u64, FIRST_PIECE);
    loop {
        buffer = piece(&file, at, buffer, wanted).await?;
        wanted = next_piece(buffer.len(), wanted);
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

/// A part of a file, of whole lines.
enum Piece {
    /// Some lines; the file's last one may lack its newline.
    Lines(Vec<u8>),
    /// The same, which other threads look at.
    Checking(Checking),
    /// One line of so many bytes, which is too long.
    TooLong(u64),
}

/// A file's lines, one after the other.
pub(crate) struct Lines<'f, F> {
    file: &'f F,
    /// How many pieces are checked at once while another one's lines are given; none where lines are only read.
    at_once: usize,
    /// What was read and comes next.
    ahead: VecDeque<io::Result<Piece>>,
    /// How far the file was read, and whether that is its end.
    read_to: u64,
    ended: bool,
    /// How much to ask for next.
    wanted: usize,
    /// The piece whose lines are given, where its next one begins in it and in the file, and what came of checking it.
    piece: Vec<u8>,
    start: usize,
    at: u64,
    checked: std::vec::IntoIter<Checked>,
    /// Buffers to read into: new ones cost as much as the reading.
    spare: Vec<Vec<u8>>,
}

impl<'f, F: StorageFile> Lines<'f, F> {
    /// The lines from `at` on, where one begins.
    pub(crate) fn new(file: &'f F, at: u64) -> Self {
        Self {
            file,
            at_once: 0,
            ahead: VecDeque::new(),
            read_to: at,
            ended: false,
            wanted: if at == 0 { FIRST_PIECE } else { PIECE },
            piece: Vec::new(),
            start: 0,
            at,
            checked: Vec::new().into_iter(),
            spare: Vec::new(),
        }
    }

    /// The same, where each of them will be checked.
    pub(crate) fn to_check(file: &'f F, at: u64) -> Self {
        // one processor has nothing to do at once with others
        let at_once = Some(threads()).filter(|threads| *threads > 1).unwrap_or_default();
        Self { at_once, ..Self::new(file, at) }
    }

    /// The next line.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Raw<'_>>> {
        while self.start >= self.piece.len() {
            let Some(piece) = self.turn_over().await? else {
                return Ok(None);
            };
            (self.start, self.checked) = (0, Vec::new().into_iter());
            match piece {
                Piece::Lines(lines) => self.piece = lines,
                Piece::Checking(checking) => {
                    let (lines, checked) = checking.done().await?;
                    (self.piece, self.checked) = (lines, checked.into_iter());
                }
                Piece::TooLong(len) => {
                    let at = self.at;
                    self.at = at.saturating_add(len);
                    return Ok(Some(Raw { at, len, bytes: None, checked: None }));
                }
            }
            // the others are checked while these lines are given
            self.read_ahead(self.at_once).await;
        }
        let rest = self.piece.get(self.start..).unwrap_or_default();
        let end = memchr::memchr(b'\n', rest).map_or(rest.len(), |newline| newline.saturating_add(1));
        let (from, at, len) = (self.start, self.at, count(end));
        self.start = from.saturating_add(end);
        self.at = at.saturating_add(len);
        let bytes = self.piece.get(from..self.start);
        Ok(Some(Raw { at, len, bytes, checked: self.checked.next() }))
    }

    /// The next piece, in place of the one whose lines were given.
    async fn turn_over(&mut self) -> io::Result<Option<Piece>> {
        let used = std::mem::take(&mut self.piece);
        if used.capacity() > 0 {
            self.spare.push(used);
        }
        self.read_ahead(self.at_once.max(1)).await;
        self.ahead.pop_front().transpose()
    }

    /// Reads so far that there are so many pieces, unless the file ends. What cannot be read is told in its turn.
    async fn read_ahead(&mut self, pieces: usize) {
        while self.ahead.len() < pieces && !self.ended {
            let read = self.read().await;
            self.ended |= read.is_err();
            self.ahead.extend(read.transpose());
        }
    }

    async fn read(&mut self) -> io::Result<Option<Piece>> {
        let mut lines = self.piece(self.read_to).await?;
        let mut searched = 0;
        let whole = loop {
            let unsearched = lines.get(searched..).unwrap_or_default();
            if let Some(newline) = memchr::memrchr(b'\n', unsearched) {
                break searched.saturating_add(newline).saturating_add(1);
            }
            searched = lines.len();
            let to = self.read_to.saturating_add(count(searched));
            if searched > LONGEST_LINE {
                return self.pass_over(to).await.map(Some);
            }
            let more = self.piece(to).await?;
            self.ended = more.is_empty();
            if self.ended {
                break searched;
            }
            lines.extend_from_slice(&more);
            self.spare.push(more);
        };
        self.read_to = self.read_to.saturating_add(count(whole));
        // a line of which only the beginning was read is read again, with the next piece
        lines.truncate(whole);
        if lines.is_empty() {
            return Ok(None);
        }
        let to_check = self.at_once > 0 && !self.ended;
        Ok(Some(if to_check {
            Checking::begin(lines).map_or_else(Piece::Lines, Piece::Checking)
        } else {
            Piece::Lines(lines)
        }))
    }

    async fn piece(&mut self, at: u64) -> io::Result<Vec<u8>> {
        let read = piece(self.file, at, self.spare.pop().unwrap_or_default(), self.wanted).await?;
        self.wanted = next_piece(read.len(), self.wanted);
        Ok(read)
    }

    /// Reads to the end of a line that has none before `to`.
    async fn pass_over(&mut self, mut to: u64) -> io::Result<Piece> {
        let from = self.read_to;
        loop {
            let more = self.piece(to).await?;
            self.ended = more.is_empty();
            let newline = memchr::memchr(b'\n', &more).map(|newline| newline.saturating_add(1));
            to = to.saturating_add(count(newline.unwrap_or(more.len())));
            self.spare.push(more);
            if newline.is_some() || self.ended {
                self.read_to = to;
                return Ok(Piece::TooLong(to.saturating_sub(from)));
            }
        }
    }

    /// How far the file was read.
    pub(crate) fn read_to(&self) -> u64 {
        self.read_to
    }
}

#[cfg(test)]
mod tests {
    use super::super::storage::Appended;
    use super::*;

    /// So many bytes, of which one read gives no more than so many; behind `broken` they cannot be read.
    struct Bytes {
        bytes: Vec<u8>,
        at_once: usize,
        broken: usize,
    }

    impl StorageFile for Bytes {
        async fn read_at(&self, at: u64, mut buffer: Vec<u8>) -> io::Result<Vec<u8>> {
            let at = usize::try_from(at).unwrap();
            if at >= self.broken {
                return Err(io::Error::other("broken"));
            }
            let there = self.bytes[at..].len().min(self.at_once).min(buffer.len()).min(self.broken - at);
            buffer.truncate(there);
            buffer.copy_from_slice(&self.bytes[at..at + there]);
            Ok(buffer)
        }

        async fn append(&self, _: u64, _: Vec<u8>) -> Appended {
            unreachable!()
        }

        async fn reserve(&self, _: u64, _: u64) -> io::Result<()> {
            unreachable!()
        }

        async fn truncate(&self, _: u64) -> io::Result<()> {
            unreachable!()
        }

        async fn sync(&self) -> io::Result<()> {
            unreachable!()
        }

        async fn refresh(&self) -> io::Result<()> {
            unreachable!()
        }
    }

    /// Goes through all lines, and checks that they are the file's; gives how many were checked ahead.
    async fn compare(file: &Bytes, from: usize, mut lines: Lines<'_, Bytes>) -> usize {
        let (mut at, mut ahead) = (from, 0);
        for line in file.bytes[from..].split_inclusive(|byte| *byte == b'\n') {
            let raw = lines.next().await.unwrap().expect("a line");
            assert_eq!((raw.at, raw.len), (count(at), count(line.len())));
            let too_long = line.len() > LONGEST_LINE;
            assert!(raw.bytes.is_none() == too_long && raw.bytes.is_none_or(|bytes| bytes == line));
            if let Some(checked) = raw.checked {
                let again = Checked::new(line);
                assert!((checked.digest, checked.line) == (again.digest, again.line));
                ahead += 1;
            }
            at += line.len();
        }
        assert!(lines.next().await.unwrap().is_none() && lines.next().await.unwrap().is_none());
        assert_eq!(lines.read_to(), count(file.bytes.len()));
        ahead
    }

    #[tokio::test(flavor = "current_thread")]
    async fn lines_of_every_length_are_given_as_they_are() {
        let line = |length: usize| [vec![b'x'; length], vec![b'\n']].concat();
        let lengths = [
            vec![],
            vec![0],
            vec![0; 5],
            vec![1; 4000],
            vec![500; 3000],
            vec![FIRST_PIECE - 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 1, 1],
            vec![1, 2 * PIECE, 700, 700],
        ];
        for lengths in lengths {
            let lines: Vec<u8> = lengths.iter().flat_map(|length| line(*length)).collect();
            for (end, at_once) in [("", usize::MAX), ("", 9000), ("no newline", 70_000)] {
                let file = Bytes { bytes: [&lines, end.as_bytes()].concat(), at_once, broken: usize::MAX };
                let second = lengths.first().map_or(0, |length| length + 1);
                for from in [0, second] {
                    assert_eq!(compare(&file, from, Lines::new(&file, count(from))).await, 0);
                    for at_once in [1, 3] {
                        let lines = Lines { at_once, ..Lines::new(&file, count(from)) };
                        let ahead = compare(&file, from, lines).await;
                        let worth_it = lengths.len() == 3000 && file.at_once > PIECE;
                        assert!(!worth_it || ahead > 2000, "{ahead} of 3000");
                    }
                }
            }
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_line_that_is_too_long_is_passed_over() {
        let mut bytes = vec![b'x'; LONGEST_LINE + 2 * PIECE];
        let (before, after) = (20, LONGEST_LINE + 2 * PIECE - 9);
        (bytes[before], bytes[after]) = (b'\n', b'\n');
        let mut file = Bytes { bytes, at_once: usize::MAX, broken: usize::MAX };
        compare(&file, 0, Lines::to_check(&file, 0)).await;
        // it is the last one, and has no newline
        file.bytes.truncate(after);
        compare(&file, 0, Lines::to_check(&file, 0)).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn what_cannot_be_read_is_told_when_its_turn_comes() {
        let lines = b"a line of the file\n".repeat(100_000);
        for broken in [0, FIRST_PIECE, 1_000_000] {
            let file = Bytes { bytes: lines.clone(), at_once: usize::MAX, broken };
            for at_once in 0..4 {
                let mut lines = Lines { at_once, ..Lines::new(&file, 0) };
                let mut whole = 0;
                let error = loop {
                    match lines.next().await {
                        Ok(line) => whole = line.expect("an error first").at,
                        Err(e) => break e,
                    }
                };
                assert_eq!(error.to_string(), "broken");
                assert!(whole + 300 * 1024 > count(broken), "{whole} bytes of {broken} were given");
            }
        }
    }
}
