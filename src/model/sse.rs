//! Server-sent events: bytes in, the `data` of whole events out.

/// The longest event, in bytes. The last event of a stream repeats the whole prompt as text.
pub const MAX_EVENT_BYTES: usize = 32 << 20;

/// Collects bytes of a stream until events are whole.
#[derive(Debug, Default)]
pub(super) struct EventReader {
    /// Bytes that came and were not yet read as lines.
    buffer: Vec<u8>,
    /// Where in `buffer` the next line begins.
    start: usize,
    /// Up to where `buffer` was already searched for a line's end.
    searched: usize,
    /// The `data` lines of the event that is being read.
    data: Option<Vec<u8>>,
}

/// An event or a line is longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl EventReader {
    /// Adds bytes from the connection.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.searched = self.searched.saturating_sub(self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether an event has begun and is not whole.
    pub(super) fn inside_event(&self) -> bool {
        self.data.is_some() || self.start < self.buffer.len()
    }

    /// The data of the next whole event, if there is one. Comments, empty events and fields other than
    /// `data` are skipped.
    pub(super) fn next_event(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let unseen = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(at) = memchr::memchr(b'\n', unseen) else {
                self.searched = self.buffer.len();
                if self.buffer.len().saturating_sub(self.start) > MAX_EVENT_BYTES {
                    return Err(TooLong);
                }
                return Ok(None);
            };
            let end = self.searched.saturating_add(at);
            let line = self.buffer.get(self.start..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                self.skip_to(end);
                if let Some(data) = self.data.take() {
                    return Ok(Some(data));
                }
                continue;
            }
            if let Some(value) = line.strip_prefix(b"data:") {
                let value = value.strip_prefix(b" ").unwrap_or(value);
                let data = match &mut self.data {
                    Some(data) => {
                        data.push(b'\n');
                        data
                    }
                    none => none.insert(Vec::with_capacity(value.len())),
                };
                data.extend_from_slice(value);
                if data.len() > MAX_EVENT_BYTES {
                    return Err(TooLong);
                }
            }
            self.skip_to(end);
        }
    }

    fn skip_to(&mut self, newline: usize) {
        self.start = newline.saturating_add(1);
        self.searched = self.start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(reader: &mut EventReader) -> Vec<String> {
        let mut events = Vec::new();
        while let Some(data) = reader.next_event().unwrap() {
            events.push(String::from_utf8(data).unwrap());
        }
        events
    }

    const STREAM: &str =
        ":\n\ndata: {\"a\":1}\n\nevent: x\ndata:two\r\ndata: lines\r\n\r\n:ping\n\n\ndata: \u{1f98a}\n\n";

    #[test]
    fn comments_fields_and_line_ends_are_understood() {
        let mut reader = EventReader::default();
        reader.push(STREAM.as_bytes());
        assert_eq!(all(&mut reader), ["{\"a\":1}", "two\nlines", "\u{1f98a}"]);
        assert!(!reader.inside_event());
        reader.push(b"data: half");
        assert!(all(&mut reader).is_empty() && reader.inside_event());
        reader.push(b"\n");
        assert!(all(&mut reader).is_empty() && reader.inside_event());
    }

    #[test]
    fn an_endless_line_is_an_error() {
        let mut reader = EventReader::default();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..32 {
            reader.push(&block);
            assert_eq!(reader.next_event(), Ok(None));
        }
        reader.push(&block);
        assert_eq!(reader.next_event(), Err(TooLong));
    }

    #[test]
    fn an_endless_event_of_short_lines_is_an_error() {
        let mut reader = EventReader::default();
        let block = "data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(1 << 14);
        let failed = (0..64).any(|_| {
            reader.push(block.as_bytes());
            reader.next_event().is_err()
        });
        assert!(failed);
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_same_events(cuts in prop::collection::vec(0..STREAM.len(), 0..20)) {
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let mut reader = EventReader::default();
            let mut events = Vec::new();
            for pair in cuts.windows(2) {
                reader.push(&STREAM.as_bytes()[pair[0]..pair[1]]);
                events.extend(all(&mut reader));
            }
            prop_assert_eq!(events, ["{\"a\":1}", "two\nlines", "\u{1f98a}"]);
        }
    }
}
