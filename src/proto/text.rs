//! Characters that nobody sees.

/// Whether a character shows nothing, or changes how others are shown: controls, line and paragraph
/// separators, bidirectional marks, embeddings, overrides and isolates, zero-width and filling characters, and
/// tags. A text with one can look like another text. The joiners U+200C and U+200D are among them, although
/// some scripts and emoji need them.
#[must_use]
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}
