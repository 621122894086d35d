//! The one reader of logs: everything that opens, lists, shows, verifies or repairs goes through it.

use std::io;

use super::checked::Checked;
use super::read::Lines;
use super::storage::StorageFile;
use crate::proto::{Digest, Epoch, Line, LineError, LogRecord, Place, Sequence, SessionId, count};

/// What must be true of an epoch's log.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// The session, named by its directory.
    pub session: SessionId,
    /// The epoch, named by the file.
    pub epoch: Epoch,
    /// The digest of the baseline's file.
    pub baseline: Digest,
    /// From epoch 1 on, the digest of the last line of the epoch before.
    pub previous: Option<Digest>,
    /// What the records of earlier epochs came to.
    pub sequence: Sequence,
}

/// A place between two appends: what is before it is whole.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    /// Bytes before it.
    pub bytes: u64,
    /// Lines before it.
    pub lines: u64,
    /// The digest of the last line before it; of the baseline when there is none.
    pub last: Digest,
    /// What the records before it came to.
    pub sequence: Sequence,
}

/// What became of reading a log.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// The end of the last whole append.
    pub good: Mark,
    /// What is wrong behind it.
    pub damage: Option<Damage>,
    /// The file's size, as far as it was read.
    pub size: u64,
}

/// Damage, and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub why: String,
    /// What it means.
    pub kind: DamageKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DamageKind {
    /// All of it can be one unfinished append, which nobody was told about.
    Tail,
    /// Something behind it, or the line itself, was written in a later append, or the line was never
    /// written by us: acknowledged records may be lost in it.
    Middle {
        /// Whole lines behind the damaged one.
        good_after: u64,
    },
    /// The first line names another baseline.
    Baseline {
        /// The digest that it names.
        named: Digest,
    },
}

/// What is wrong with a line, before it is known what that means.
struct Fault {
    why: String,
    /// Whether lost or half-written bytes explain it.
    torn: bool,
    baseline: Option<Digest>,
}

impl Fault {
    fn torn(why: String) -> Self {
        Self { why, torn: true, baseline: None }
    }

    fn wrong(why: impl Into<String>) -> Self {
        Self { why: why.into(), torn: false, baseline: None }
    }
}

/// A record that was read.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Its line's length, newline included.
    pub bytes: u64,
    /// The record.
    pub record: LogRecord,
}

/// Whether to go on reading.
pub(crate) use std::ops::ControlFlow as Flow;

/// Reads a log and gives each record of each whole append to `visit`, until that says to stop; to the end of the append in
/// which it says so.
pub(crate) async fn scan<F: StorageFile>(
    file: &F,
    expected: &Expected,
    visit: &mut dyn FnMut(Found) -> Flow<()>,
) -> io::Result<Scanned> {
    let sequence = expected.sequence.clone();
    let begin = Mark { bytes: 0, lines: 0, last: expected.baseline, sequence };
    scan_from(file, expected, begin, visit).await
}

/// As [`scan`], of what stands behind a place between two appends that an earlier one has reached.
pub(crate) async fn scan_from<F: StorageFile>(
    file: &F,
    expected: &Expected,
    begin: Mark,
    visit: &mut dyn FnMut(Found) -> Flow<()>,
) -> io::Result<Scanned> {
    let mut lines = Lines::to_check(file, begin.bytes);
    let mut scanner = Scanner::new(expected, begin);
    while let Some(raw) = lines.next().await? {
        let (at, line) = (raw.at, scanner.here.lines.saturating_add(1));
        let checked = match raw.bytes {
            Some(bytes) => scanner.line(at, raw.len, raw.checked.unwrap_or_else(|| Checked::new(bytes))),
            None => Err(Fault::torn(format!("not a record: {} bytes in one line", raw.len))),
        };
        match checked {
            Ok(false) => {}
            Ok(true) => {
                // whoever stops inside an append is given the rest of it
                let mut stops = false;
                for found in scanner.batch.drain(..) {
                    stops |= visit(found).is_break();
                }
                if stops {
                    return Ok(Scanned { good: scanner.end(), damage: None, size: lines.read_to() });
                }
            }
            Err(fault) => {
                let kind = scanner.judge(&fault, &mut lines).await?;
                if kind != DamageKind::Tail {
                    // its append was acknowledged, so the whole lines before it are good
                    let _ = scanner.batch.drain(..).try_for_each(visit);
                    scanner.before = None;
                }
                let damage = Some(Damage { line, why: fault.why, kind });
                return Ok(Scanned { good: scanner.end(), damage, size: lines.read_to() });
            }
        }
    }
    let damage = scanner.unfinished();
    Ok(Scanned { good: scanner.end(), damage, size: lines.read_to() })
}

struct Scanner<'e> {
    expected: &'e Expected,
    /// Where the reading stands, perhaps inside an append.
    here: Mark,
    /// Inside one: where it began. Most appends are one line, and for them nothing is copied.
    before: Option<Mark>,
    /// Records of the append that is being read.
    batch: Vec<Found>,
    /// Further lines that belong to it.
    more: u32,
}

impl<'e> Scanner<'e> {
    fn new(expected: &'e Expected, here: Mark) -> Self {
        Self { expected, here, before: None, batch: Vec::new(), more: 0 }
    }

    /// The end of the last whole append.
    fn good(&self) -> &Mark {
        self.before.as_ref().unwrap_or(&self.here)
    }

    /// The same, when all is read.
    fn end(self) -> Mark {
        self.before.unwrap_or(self.here)
    }

    /// Takes a line; true when it ends an append.
    fn line(&mut self, at: u64, length: u64, checked: Checked) -> Result<bool, Fault> {
        let Line { prev, place, record } = checked.line.map_err(|e| match e {
            LineError::Unterminated { .. } | LineError::NotALine(_) | LineError::Checksum { .. } => {
                Fault::torn(e.to_string())
            }
            LineError::Envelope(_) | LineError::UnknownKind(_) | LineError::Record(_) => {
                Fault::wrong(e.to_string())
            }
        })?;
        if self.here.lines == 0 {
            self.start(&record)?;
        }
        if prev != self.here.last {
            let before = if self.here.lines == 0 { "the baseline" } else { "the line before" };
            return Err(Fault::wrong(format!(
                "its \"prev\" is not the digest of {before}: a line was lost, moved or changed"
            )));
        }
        let back = at.saturating_sub(self.good().bytes);
        let fits = match self.more {
            0 => place.back == 0,
            more => place == Place { back, more: more.saturating_sub(1) },
        };
        if !fits {
            return Err(Fault::wrong("its \"back\" and \"more\" do not fit the lines before it"));
        }
        if self.more == 0 && place.more > 0 {
            self.before = Some(self.here.clone());
        }
        let in_order = self.here.sequence.check(&record);
        in_order.map_err(|e| Fault::wrong(format!("a record out of order: {e}")))?;
        self.here.bytes = at.saturating_add(length);
        self.here.lines = self.here.lines.saturating_add(1);
        self.here.last = checked.digest;
        self.batch.push(Found { bytes: length, record });
        self.more = place.more;
        if self.more == 0 {
            self.before = None;
        }
        Ok(self.more == 0)
    }

    /// Checks that the first line belongs to this file.
    fn start(&self, record: &LogRecord) -> Result<(), Fault> {
        let LogRecord::SessionStart(start) = record else {
            return Err(Fault::wrong(format!("{} where session_start must be", record.kind())));
        };
        let Expected { session, epoch, baseline, previous, .. } = self.expected;
        if start.session != *session {
            let named = &start.session;
            return Err(Fault::wrong(format!("the log of session {named} in the directory of {session}")));
        }
        if start.epoch != *epoch {
            return Err(Fault::wrong(format!(
                "the log of epoch {} in the file of epoch {epoch}",
                start.epoch
            )));
        }
        if start.baseline != *baseline {
            let why =
                format!("it names the baseline {}, but the file's digest is {baseline}", start.baseline);
            return Err(Fault { why, torn: false, baseline: Some(start.baseline) });
        }
        if start.previous != *previous {
            return Err(Fault::wrong(
                "its \"previous\" is not the digest of the last line of the epoch before",
            ));
        }
        Ok(())
    }

    /// Decides what a fault means, by what stands behind it.
    ///
    /// One append is in flight at a time, so a whole line that another append wrote shows that the append
    /// of the damaged line had ended, and was acknowledged; and so does one that is damaged itself, but still
    /// shows that it began an append.
    async fn judge<F: StorageFile>(&self, fault: &Fault, lines: &mut Lines<'_, F>) -> io::Result<DamageKind> {
        if let Some(named) = fault.baseline {
            return Ok(DamageKind::Baseline { named });
        }
        let (mut good_after, mut same_append) = (0u64, true);
        while let Some(raw) = lines.next().await? {
            let Some(line) = raw.bytes.filter(|line| Line::is_intact(line)) else {
                same_append &= !raw.bytes.is_some_and(Line::begins_an_append);
                continue;
            };
            good_after = good_after.saturating_add(1);
            let begins = |place: Place| (place.back > 0).then(|| raw.at.checked_sub(place.back)).flatten();
            same_append &= Line::place_of(line).and_then(begins) == Some(self.good().bytes);
        }
        if fault.torn && same_append {
            return Ok(DamageKind::Tail);
        }
        Ok(DamageKind::Middle { good_after })
    }

    /// At the file's end: whether an append lacks lines.
    fn unfinished(&self) -> Option<Damage> {
        if self.more == 0 && self.here.lines > 0 {
            return None;
        }
        let why = match self.batch.len() {
            0 => "the log is empty".to_owned(),
            there => format!(
                "an append of {} lines ends after {there}",
                u64::from(self.more).saturating_add(count(there))
            ),
        };
        let line = self.good().lines.saturating_add(1);
        Some(Damage { line, why, kind: DamageKind::Tail })
    }
}
