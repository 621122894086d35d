//! Text from elsewhere, made safe for a terminal: what would control it is shown, never obeyed.
//!
//! Invariants: the output of [`Sanitiser`] has no control character but newline and tab, and none that
//! changes the direction of the text; each dangerous character is judged by itself, so that a sequence
//! which is split over several pieces is as harmless as a whole one.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar;

/// Characters that a terminal may obey, or that change the order of what follows, beyond C0 and DEL: the
/// C1 controls (U+009B is CSI in one character), line and paragraph separators, bidirectional
/// embeddings, overrides and isolates, interlinear annotations, and the byte order mark.
fn is_dangerous(c: char) -> bool {
    matches!(c, '\u{80}'..='\u{9f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{feff}')
}

fn push_shown(out: &mut String, c: char) {
    match c {
        '\n' | '\t' => out.push(c),
        '\0'..='\x1f' => out.push(char::from_u32(u32::from(c).saturating_add(0x2400)).unwrap_or('\u{fffd}')),
        '\x7f' => out.push('␡'),
        c if is_dangerous(c) => {
            // writing to a String cannot fail
            let _ = write!(out, "‹U+{:04X}›", u32::from(c));
        }
        c => out.push(c),
    }
}

/// Makes a stream of text safe, piece by piece.
#[derive(Debug, Default)]
pub struct Sanitiser {
    // a carriage return waits for the next piece: before a newline it is only a line's end
    held_return: bool,
}

impl Sanitiser {
    /// The safe form of the next piece.
    pub fn push(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len());
        for c in piece.chars() {
            if self.held_return {
                self.held_return = false;
                if c != '\n' {
                    push_shown(&mut out, '\r');
                }
            }
            match c {
                '\r' => self.held_return = true,
                c => push_shown(&mut out, c),
            }
        }
        out
    }

    /// What is still held back at the end of the text.
    pub fn finish(&mut self) -> &'static str {
        if std::mem::take(&mut self.held_return) { "␍" } else { "" }
    }
}

/// The safe form of a whole text, which may have several lines.
#[must_use]
pub fn block(text: &str) -> String {
    let mut sanitiser = Sanitiser::default();
    let mut out = sanitiser.push(text);
    out.push_str(sanitiser.finish());
    out
}

/// The safe form of a text as one line: line breaks are shown, tabs become spaces.
#[must_use]
pub fn line(text: &str) -> String {
    block(text).replace('\n', "␊").replace('\t', " ")
}

/// A number and its noun: one turn, two turns.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Columns that a safe, single line takes, counted character by character, as most terminals do.
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).fold(0, usize::saturating_add)
}

/// `text` (safe, single line) cut to `columns`, with an ellipsis where something was cut off.
#[must_use]
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0usize;
    for c in text.chars() {
        used = used.saturating_add(c.width().unwrap_or(0));
        if used > columns.saturating_sub(1) {
            break;
        }
        out.push(c);
    }
    if columns > 0 {
        out.push('…');
    }
    out
}

/// `text` (safe) broken into lines of at most `columns`, at spaces where there are some.
#[must_use]
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(1);
    let mut lines = Vec::new();
    let mut current = String::new();
    for word in text.split(' ') {
        let joined = width(&current).saturating_add(1).saturating_add(width(word));
        if !current.is_empty() && joined <= columns {
            current.push(' ');
            current.push_str(word);
            continue;
        }
        if !current.is_empty() {
            lines.push(std::mem::take(&mut current));
        }
        for c in word.chars() {
            if width(&current).saturating_add(c.width().unwrap_or(0)) > columns && !current.is_empty() {
                lines.push(std::mem::take(&mut current));
            }
            current.push(c);
        }
    }
    lines.push(current);
    lines
}

/// Parts in lines of at most `columns`, with `between` two that share one; a part is never broken.
#[must_use]
pub fn parts(parts: impl IntoIterator<Item = String>, between: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line)
                if [line.as_str(), between, &part].into_iter().map(width).sum::<usize>() <= columns =>
            {
                line.push_str(between);
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// JSON text in which the dangerous characters that JSON leaves as they are (DEL, C1, bidirectional
/// overrides, …) are written as escapes: the same value, and harmless on a terminal. They can only
/// stand inside strings, so replacing them anywhere is right.
#[must_use]
pub fn json_safe(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\x7f' || is_dangerous(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_would_control_a_terminal_is_shown() {
        for (given, shown) in [
            ("plain\ttext\n", "plain\ttext\n"),
            ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
            ("\x1b]0;title\x07", "␛]0;title␇"),
            ("\x1b]8;;http://x\x1b\\link", "␛]8;;http://x␛\\link"),
            ("\u{9b}31m", "‹U+009B›31m"),
            ("\u{9d}52;c;aGk=\u{9c}", "‹U+009D›52;c;aGk=‹U+009C›"),
            ("a\u{202e}b\u{2066}c", "a‹U+202E›b‹U+2066›c"),
            ("a\u{2028}b", "a‹U+2028›b"),
            ("nul\0del\x7f", "nul␀del␡"),
            ("a\r\nb\rc\r", "a\nb␍c␍"),
            ("\x08\x08\x0b\x0c\x0e", "␈␈␋␌␎"),
            ("größe 🙂 日本", "größe 🙂 日本"),
        ] {
            assert_eq!(block(given), shown, "{given:?}");
        }
        assert_eq!(line("a\nb\tc"), "a␊b c");
    }

    #[test]
    fn a_sequence_split_over_pieces_is_shown_too() {
        let mut sanitiser = Sanitiser::default();
        let pieces = ["\x1b", "[", "2", "J", "x\r", "\ny\r", "z"];
        let out: String = pieces.iter().map(|p| sanitiser.push(p)).collect();
        assert_eq!(out, "␛[2Jx\ny␍z");
        assert_eq!(sanitiser.finish(), "");
    }

    #[test]
    fn cutting_and_wrapping_keep_to_the_width() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語日本語", 5), "日本…");
        assert_eq!(cut("abc", 0), "");
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrap("", 3), [""]);
    }

    #[test]
    fn json_keeps_its_value() {
        let value = serde_json::json!({"t": "a\u{9b}b\x7f\u{202e}\u{1b}ü"});
        let safe = json_safe(&value.to_string());
        assert!(safe.chars().all(|c| !c.is_control() && !is_dangerous(c)), "{safe}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }

    proptest! {
        #[test]
        fn nothing_dangerous_ever_comes_out(pieces in prop::collection::vec(any::<String>(), 0..8)) {
            let mut sanitiser = Sanitiser::default();
            let mut out: String = pieces.iter().map(|p| sanitiser.push(p)).collect();
            out.push_str(sanitiser.finish());
            prop_assert!(out.chars().all(|c| c == '\n' || c == '\t' || !(c.is_control() || is_dangerous(c))));
            // how the text was split makes no difference
            prop_assert_eq!(&out, &block(&pieces.concat()));
        }

        #[test]
        fn controls_among_text_never_come_out(text in "[\\x00-\\x20\\x7f-\\xa0\u{2020}-\u{2070}a\u{feff}]{0,40}") {
            let out = block(&text);
            prop_assert!(out.chars().all(|c| c == '\n' || c == '\t' || !(c.is_control() || is_dangerous(c))));
            prop_assert!(!line(&text).contains(['\n', '\t']));
        }

        #[test]
        fn cut_is_never_wider(text in any::<String>(), columns in 0usize..50) {
            prop_assert!(width(&cut(&line(&text), columns)) <= columns);
        }

        #[test]
        fn wrapped_lines_are_never_wider(text in "[a-z ü日]{0,60}", columns in 2usize..20) {
            for line in wrap(&text, columns) {
                prop_assert!(width(&line) <= columns);
            }
        }
    }
}
