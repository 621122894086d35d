//! A record as a line of a log.
//!
//! ```text
//! {"prev":"<64 hex>","type":"<kind>", …the record's fields… ,"crc":"<8 hex>"}\n
//! {"prev":"<64 hex>","back":<bytes>,"more":<n>,"type":"<kind>", … ,"crc":"<8 hex>"}\n
//! ```
//!
//! `prev` is the SHA-256 of the line before, newline included. `crc` is the CRC-32 (IEEE) of all bytes
//! before `,"crc":`, so that damage to the last line, which no `prev` covers yet, is found as well.
//! `back` and `more` stand on lines written together in one durable append: how many bytes of it are
//! before the line, and how many further lines behind it; each is absent where it is 0. So a whole line
//! behind a damaged one tells whether both were written together, and with them whether anyone can have
//! been told about the damaged one. The order of the envelope's keys is fixed, and a line written in any
//! other way is refused.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    Approval, AssistantMessage, Carried, Digest, LogRecord, Named, SessionStart, ToolResult, ToolStart,
    TurnEnd, UsageRecord, UserMessage, written,
};

const PREV: &[u8] = b"{\"prev\":\"";
const BACK: &[u8] = b",\"back\":";
const MORE: &[u8] = b",\"more\":";
const TYPE: &[u8] = b",\"type\":\"";
const CRC: &[u8] = b",\"crc\":\"";
const END: &[u8] = b"\"}\n";
/// `,"crc":"` + 8 digits + `"}` + newline
const TRAILER: usize = CRC.len() + 8 + END.len();

/// Where a line stands in the durable append that wrote it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Bytes of the same append before it.
    pub back: u64,
    /// Further lines of the same append behind it.
    pub more: u32,
}

/// A line, read.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The digest of the line before.
    pub prev: Digest,
    /// Its place in the append that wrote it.
    pub place: Place,
    /// The record.
    pub record: LogRecord,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineError {
    /// It does not end in a newline.
    Unterminated {
        /// How long it is.
        bytes: usize,
    },
    /// It is empty, or holds NUL bytes, or does not end as a line does.
    NotALine(String),
    /// Its checksum is another.
    Checksum {
        /// What the line says.
        stored: String,
        /// What its bytes give.
        computed: String,
    },
    /// Its checksum is right, but it does not begin as this version's lines do.
    Envelope(String),
    /// A kind of record that this version does not know.
    UnknownKind(String),
    /// A whole line, but not a record of its kind.
    Record(String),
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unterminated { bytes } => write!(f, "{bytes} bytes without a newline at the end"),
            Self::NotALine(why) => write!(f, "not a record: {why}"),
            Self::Checksum { stored, computed } => {
                write!(f, "its checksum says {stored}, its bytes give {computed}")
            }
            Self::Envelope(why) => write!(f, "a line of another form, written by another version: {why}"),
            Self::UnknownKind(kind) => {
                write!(f, "a record of the unknown kind {kind:?}, written by a newer version")
            }
            Self::Record(why) => write!(f, "not a whole record: {why}"),
        }
    }
}

impl std::error::Error for LineError {}

/// Encodes a record as one line, newline included, and reads the result back to be sure that it can be
/// read.
///
/// # Errors
/// A record that would not come back the same.
pub fn encode_line(prev: Digest, place: Place, record: &LogRecord) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = Vec::with_capacity(512);
    line.extend_from_slice(PREV);
    line.extend_from_slice(&prev.to_hex());
    line.push(b'"');
    for (key, value) in [(BACK, place.back), (MORE, u64::from(place.more))] {
        if value > 0 {
            line.extend_from_slice(key);
            line.extend_from_slice(value.to_string().as_bytes());
        }
    }
    line.extend_from_slice(TYPE);
    line.extend_from_slice(record.kind().as_bytes());
    line.push(b'"');
    match record {
        LogRecord::SessionStart(r) => fields(&mut line, r),
        LogRecord::Carried(r) => fields(&mut line, r),
        LogRecord::UserMessage(r) => fields(&mut line, r),
        LogRecord::AssistantMessage(r) => fields(&mut line, r),
        LogRecord::ToolStart(r) => fields(&mut line, r),
        LogRecord::ToolResult(r) => fields(&mut line, r),
        LogRecord::Approval(r) => fields(&mut line, r),
        LogRecord::Named(r) => fields(&mut line, r),
        LogRecord::Usage(r) => fields(&mut line, r),
        LogRecord::TurnEnd(r) => fields(&mut line, r),
    }?;
    let crc = crc32fast::hash(&line);
    line.extend_from_slice(CRC);
    line.extend_from_slice(&hex(crc));
    line.extend_from_slice(END);
    match Line::decode(&line) {
        Ok(read) if read.record == *record && read.place == place && read.prev == prev => Ok(line),
        Ok(_) => Err(serde::ser::Error::custom("the record reads back as another one")),
        Err(e) => Err(serde::ser::Error::custom(format!("the record cannot be read back: {e}"))),
    }
}

/// Eight lower-case hexadecimal digits.
fn hex(number: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    for (digit, shift) in digits.iter_mut().zip([28, 24, 20, 16, 12, 8, 4, 0]) {
        let nibble = u8::try_from((number >> shift) & 15).unwrap_or_default();
        *digit = nibble.wrapping_add(if nibble < 10 { b'0' } else { b'a' - 10 });
    }
    digits
}

/// Appends `,"a":…,"b":…`, without the braces.
fn fields<T: Serialize>(line: &mut Vec<u8>, record: &T) -> Result<(), serde_json::Error> {
    let at = line.len();
    serde_json::to_writer(&mut *line, record)?;
    if let Some(brace) = line.get_mut(at) {
        *brace = b',';
    }
    line.pop();
    Ok(())
}

impl Line {
    /// Reads one line, newline included.
    ///
    /// # Errors
    /// What is wrong with it; nothing is skipped or guessed.
    pub fn decode(line: &[u8]) -> Result<Self, LineError> {
        let Envelope { prev, place, kind, body } = Envelope::read(line)?;
        let record = match kind {
            b"session_start" => LogRecord::SessionStart(parse::<SessionStart>(body)?),
            b"carried" => LogRecord::Carried(parse::<Carried>(body)?),
            b"user_message" => LogRecord::UserMessage(parse::<UserMessage>(body)?),
            b"assistant_message" => LogRecord::AssistantMessage(parse::<AssistantMessage>(body)?),
            b"tool_start" => LogRecord::ToolStart(parse::<ToolStart>(body)?),
            b"tool_result" => LogRecord::ToolResult(parse::<ToolResult>(body)?),
            b"approval" => LogRecord::Approval(parse::<Approval>(body)?),
            b"named" => LogRecord::Named(parse::<Named>(body)?),
            b"usage" => LogRecord::Usage(parse::<UsageRecord>(body)?),
            b"turn_end" => LogRecord::TurnEnd(parse::<TurnEnd>(body)?),
            other => return Err(LineError::UnknownKind(String::from_utf8_lossy(other).into_owned())),
        };
        Ok(Self { prev, place, record })
    }

    /// Whether a line is as its writer wrote it: its checksum is right.
    #[must_use]
    pub fn is_intact(line: &[u8]) -> bool {
        !matches!(
            Envelope::read(line),
            Err(LineError::Unterminated { .. } | LineError::NotALine(_) | LineError::Checksum { .. })
        )
    }

    /// Where an intact line says that it stands: what can be known of a line behind a damaged one, and of
    /// one with a record that this version does not know.
    #[must_use]
    pub fn place_of(line: &[u8]) -> Option<Place> {
        Envelope::read(line).ok().map(|envelope| envelope.place)
    }
}

impl Line {
    /// Whether a line, damaged as it may be, still shows that it was the first of an append: so whatever
    /// stands before it belongs to another one.
    #[must_use]
    pub fn begins_an_append(line: &[u8]) -> bool {
        let behind = line.strip_prefix(PREV).and_then(|rest| rest.split_at_checked(64));
        behind.is_some_and(|(hex, rest)| {
            let rest = rest.strip_prefix(b"\"").unwrap_or_default();
            Digest::from_hex(hex).is_some() && (rest.starts_with(TYPE) || rest.starts_with(MORE))
        })
    }
}

/// What stands around a record's fields.
struct Envelope<'a> {
    prev: Digest,
    place: Place,
    kind: &'a [u8],
    /// The fields' text, without braces.
    body: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Checks the envelope and the checksum.
    fn read(line: &'a [u8]) -> Result<Self, LineError> {
        let Some((b'\n', rest)) = line.split_last() else {
            return Err(LineError::Unterminated { bytes: line.len() });
        };
        if let Some(nul) = memchr::memchr(0, rest) {
            let count = memchr::memchr_iter(0, rest).count();
            return Err(LineError::NotALine(format!(
                "{count} NUL bytes, the first at byte {nul} of the line"
            )));
        }
        let not = |why: &str| Err(LineError::NotALine(why.to_owned()));
        if rest.is_empty() {
            return not("an empty line");
        }
        let Some((summed, trailer)) =
            line.len().checked_sub(TRAILER).and_then(|at| line.split_at_checked(at))
        else {
            return not("too short to be a line");
        };
        let stored = trailer.strip_prefix(CRC).and_then(|t| t.strip_suffix(END));
        let Some(stored) = stored else {
            return not("it does not end in a checksum");
        };
        let computed = crc32fast::hash(summed);
        if stored != hex(computed) {
            let (stored, computed) =
                (String::from_utf8_lossy(stored).into_owned(), format!("{computed:08x}"));
            return Err(LineError::Checksum { stored, computed });
        }
        let odd = |why: &str| Err(LineError::Envelope(why.to_owned()));
        let Some((hex, rest)) = summed.strip_prefix(PREV).and_then(|r| r.split_at_checked(64)) else {
            return odd("it does not begin with \"prev\"");
        };
        let Some(prev) = Digest::from_hex(hex) else {
            return odd("its \"prev\" is not a SHA-256 digest");
        };
        let Some(rest) = rest.strip_prefix(b"\"") else {
            return odd("its \"prev\" is not a SHA-256 digest");
        };
        let (back, rest) = Self::number(rest, BACK)?;
        let (more, rest) = Self::number(rest, MORE)?;
        let more =
            u32::try_from(more).map_err(|_| LineError::Envelope("its \"more\" is too great".to_owned()))?;
        let kind = rest
            .strip_prefix(TYPE)
            .and_then(|r| r.windows(2).position(|end| end == b"\",").and_then(|at| r.split_at_checked(at)));
        let Some((kind, body)) = kind else {
            return odd("it has no \"type\" in its place");
        };
        Ok(Self { prev, place: Place { back, more }, kind, body: body.get(2..).unwrap_or_default() })
    }

    /// Reads an optional number of the envelope; 0 when its key is not there.
    fn number<'b>(rest: &'b [u8], key: &[u8]) -> Result<(u64, &'b [u8]), LineError> {
        let Some(numbered) = rest.strip_prefix(key) else {
            return Ok((0, rest));
        };
        let end = numbered.iter().position(|b| !b.is_ascii_digit()).unwrap_or(numbered.len());
        let (digits, rest) = numbered.split_at_checked(end).unwrap_or_default();
        let value = std::str::from_utf8(digits).ok().and_then(|d| d.parse::<u64>().ok());
        match value {
            // only the one form that is written
            Some(value) if value > 0 && !digits.starts_with(b"0") => Ok((value, rest)),
            _ => {
                let key = String::from_utf8_lossy(key);
                let key = key.trim_matches([',', ':']);
                Err(LineError::Envelope(format!("its {key} is not a count")))
            }
        }
    }
}

/// Parses the fields' text of one kind of record, which lacks its opening and closing brace.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, LineError> {
    if let Some(record) = written::members(body) {
        return Ok(record);
    }
    let mut text = Vec::with_capacity(body.len().saturating_add(2));
    text.push(b'{');
    text.extend_from_slice(body);
    text.push(b'}');
    serde_json::from_slice(&text).map_err(|e| LineError::Record(e.to_string()))
}
