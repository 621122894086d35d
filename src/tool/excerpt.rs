//! Output of any length, kept as its beginning and its end, and shown as text.

use std::collections::VecDeque;

/// How a NUL is shown: it would end the text early for programs written in C.
const NUL_SHOWN: char = '\u{2400}';

/// The first `chars` characters of a text, and a sign where more was there.
pub fn beginning(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars).and_then(|(at, _)| text.get(..at)) {
        Some(start) => format!("{start}…"),
        None => text.to_owned(),
    }
}

/// A text in one line, for messages about what somebody else wrote: control characters are shown as they are written in
/// a program's text, and what turns the direction of writing too.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => line.extend(c.escape_unicode()),
            c if c.is_control() => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    line
}

/// The beginning and the end of a stream, in bounded memory.
#[derive(Debug)]
pub struct Capture {
    head: Vec<u8>,
    head_limit: usize,
    tail: VecDeque<u8>,
    tail_limit: usize,
    total: u64,
}

/// What of a stream is shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Excerpt {
    /// The text, with a line that says what is left out where it is.
    pub text: String,
    /// Bytes of the stream that are not in `text`.
    pub left_out: u64,
    /// Bytes that are not UTF-8 and stand as U+FFFD.
    pub invalid: u64,
    /// NUL bytes, which stand as U+2400.
    pub nul: u64,
}

impl Capture {
    /// Keeps the first and the last half of `limit` bytes.
    pub fn halves(limit: usize) -> Self {
        Self::new(limit - limit / 2, limit / 2)
    }

    /// Keeps the last `limit` bytes.
    pub fn end(limit: usize) -> Self {
        Self::new(0, limit)
    }

    fn new(head_limit: usize, tail_limit: usize) -> Self {
        Self { head: Vec::new(), head_limit, tail: VecDeque::new(), tail_limit, total: 0 }
    }

    /// Takes more of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(len(bytes));
        let room = self.head_limit.saturating_sub(self.head.len());
        let (head, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.head.extend_from_slice(head);
        let from = rest.len().saturating_sub(self.tail_limit);
        let rest = rest.get(from..).unwrap_or_default();
        let over = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    /// How long the stream was.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether something of the stream is no longer here, or would not be after `more` bytes.
    pub fn overflows(&self, more: usize) -> bool {
        let limit = self.head_limit.saturating_add(self.tail_limit);
        self.total.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
            > u64::try_from(limit).unwrap_or(u64::MAX)
    }

    /// The bytes that are here; the whole stream as long as it does not overflow.
    pub fn kept(&self) -> Vec<u8> {
        let (front, back) = self.tail.as_slices();
        [self.head.as_slice(), front, back].concat()
    }

    /// The stream as text of at most `limit` bytes, besides the line that says what is left out.
    pub fn excerpt(&self, limit: usize) -> Excerpt {
        let kept = self.kept();
        if !self.overflows(0) {
            let whole = Decoded::of(&kept);
            if whole.bytes <= limit {
                return Excerpt::new(&whole, &Decoded::default(), self.total);
            }
        }
        let (head_limit, tail_limit) =
            if self.head_limit == 0 { (0, limit) } else { (limit - limit / 2, limit / 2) };
        let overflowed = self.overflows(0);
        let (front, back) = match overflowed {
            true => kept.split_at_checked(self.head.len()).unwrap_or((&kept, &[])),
            false => (kept.as_slice(), kept.as_slice()),
        };
        let mut head = Decoded::of(front);
        if overflowed {
            head.drop_cut_end(front);
        }
        head.keep_first(head_limit);
        let mut tail = Decoded::of(if overflowed { after_cut(back) } else { back });
        tail.keep_last(tail_limit);
        Excerpt::new(&head, &tail, self.total)
    }
}

impl Excerpt {
    fn new(head: &Decoded, tail: &Decoded, total: u64) -> Self {
        let left_out = total.saturating_sub(head.used()).saturating_sub(tail.used());
        let mut text = String::with_capacity(head.bytes + tail.bytes + 64);
        text.extend(head.chars.iter().map(|shown| shown.as_char));
        if left_out > 0 {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&format!("[… {left_out} bytes left out …]\n"));
        }
        text.extend(tail.chars.iter().map(|shown| shown.as_char));
        let count = |what: fn(&Shown) -> u64| head.chars.iter().chain(&tail.chars).map(what).sum();
        Self {
            text,
            left_out,
            invalid: count(|shown| if shown.valid { 0 } else { u64::from(shown.from) }),
            nul: count(|shown| u64::from(shown.valid && shown.as_char == NUL_SHOWN && shown.from == 1)),
        }
    }
}

/// Bytes as characters, each with the bytes that it stands for.
#[derive(Debug, Default)]
struct Decoded {
    chars: Vec<Shown>,
    /// How long the text is.
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
struct Shown {
    as_char: char,
    from: u8,
    valid: bool,
}

impl Decoded {
    fn of(bytes: &[u8]) -> Self {
        let mut chars = Vec::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            chars.extend(chunk.valid().chars().map(|c| Shown {
                as_char: if c == '\0' { NUL_SHOWN } else { c },
                from: u8::try_from(c.len_utf8()).unwrap_or(4),
                valid: true,
            }));
            if let Ok(from @ 1..) = u8::try_from(chunk.invalid().len()) {
                chars.push(Shown { as_char: char::REPLACEMENT_CHARACTER, from, valid: false });
            }
        }
        let bytes = chars.iter().map(|shown| shown.as_char.len_utf8()).sum();
        Self { chars, bytes }
    }

    fn used(&self) -> u64 {
        self.chars.iter().map(|shown| u64::from(shown.from)).sum()
    }

    /// Takes off a character whose last bytes are beyond the cut.
    fn drop_cut_end(&mut self, bytes: &[u8]) {
        let incomplete = |bytes: &[u8]| {
            std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none() && e.valid_up_to() == 0)
        };
        let at_end = (1..=3)
            .any(|n| bytes.len().checked_sub(n).and_then(|from| bytes.get(from..)).is_some_and(incomplete));
        if at_end && self.chars.last().is_some_and(|shown| !shown.valid) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(shown) = self.chars.pop() {
            self.bytes -= shown.as_char.len_utf8();
        }
    }

    fn keep_first(&mut self, limit: usize) {
        while self.bytes > limit {
            self.pop();
        }
    }

    fn keep_last(&mut self, limit: usize) {
        let mut gone = 0;
        for shown in &self.chars {
            if self.bytes <= limit {
                break;
            }
            self.bytes -= shown.as_char.len_utf8();
            gone += 1;
        }
        self.chars.drain(..gone);
    }
}

/// Without the rest of a character whose first bytes are before the cut.
fn after_cut(bytes: &[u8]) -> &[u8] {
    let rest = bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
    bytes.get(rest..).unwrap_or_default()
}

fn len(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(limit: usize, stream: &[u8]) -> Excerpt {
        let mut capture = Capture::halves(limit);
        capture.push(stream);
        capture.excerpt(limit)
    }

    #[test]
    fn what_fits_is_whole_and_the_rest_is_cut_in_the_middle() {
        assert_eq!(shown(8, b"12345678").text, "12345678");
        let cut = shown(8, b"1234567890");
        assert_eq!(cut.text, "1234\n[\u{2026} 2 bytes left out \u{2026}]\n7890");
        assert_eq!(cut.left_out, 2);
        let mut end = Capture::end(4);
        end.push(b"1234567890");
        assert_eq!(end.excerpt(4).text, "[\u{2026} 6 bytes left out \u{2026}]\n7890");
        assert_eq!(end.excerpt(2).text, "[\u{2026} 8 bytes left out \u{2026}]\n90");
    }

    #[test]
    fn characters_are_never_cut_and_never_broken_by_a_read() {
        let cut = shown(10, "äöüßéàçñ".as_bytes());
        assert_eq!((cut.text.as_str(), cut.left_out), ("äö\n[… 8 bytes left out …]\nçñ", 8));
        assert_eq!(cut.invalid, 0);
        let mut capture = Capture::halves(100);
        for byte in "a€𝄞".as_bytes() {
            capture.push(&[*byte]);
        }
        assert_eq!(capture.excerpt(100).text, "a€𝄞");
    }

    #[test]
    fn what_is_not_text_is_counted() {
        let odd = shown(100, b"a\xff\xfeb\0c\xe2\x82");
        assert_eq!(odd.text, "a\u{fffd}\u{fffd}b\u{2400}c\u{fffd}");
        assert_eq!((odd.invalid, odd.nul, odd.left_out), (4, 1, 0));
        // replacement characters are longer than what they stand for, and the limit holds all the same
        let binary = shown(90, &[0xff; 90]);
        assert_eq!((binary.left_out, binary.invalid), (60, 30));
        assert_eq!(shown(9, "\u{2400}".as_bytes()).nul, 0);
    }

    proptest! {
        #[test]
        fn any_stream_in_any_pieces_is_accounted_for(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..12),
            limit in 0usize..120,
            less in 0usize..120,
        ) {
            let stream = pieces.concat();
            let mut capture = Capture::halves(limit);
            for piece in &pieces {
                capture.push(piece);
            }
            prop_assert_eq!(capture.total(), len(&stream));
            prop_assert_eq!(capture.overflows(0), stream.len() > limit);
            let limit = less.min(limit);
            let shown = capture.excerpt(limit);
            let marker = if shown.left_out > 0 { format!("[… {} bytes left out …]\n", shown.left_out) } else { String::new() };
            prop_assert!(shown.text.len() <= limit + marker.len() + 1);
            prop_assert!(shown.left_out <= len(&stream));
            if shown.left_out == 0 {
                prop_assert_eq!(shown.text, String::from_utf8_lossy(&stream).replace('\0', "\u{2400}"));
            }
        }

        #[test]
        fn valid_text_stays_valid_text(text in "[a-zäß€𝄞]{0,80}", limit in 0usize..60) {
            let shown = shown(limit, text.as_bytes());
            prop_assert_eq!(shown.invalid, 0);
            if shown.left_out > 0 {
                let marker = format!("[… {} bytes left out …]\n", shown.left_out);
                let (head, tail) = shown.text.split_once(&marker).unwrap();
                let head = head.trim_end_matches('\n');
                prop_assert!(text.starts_with(head) && text.ends_with(tail));
                prop_assert_eq!(len(text.as_bytes()), len(head.as_bytes()) + len(tail.as_bytes()) + shown.left_out);
            }
        }
    }
}
