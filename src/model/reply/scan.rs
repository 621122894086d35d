//! Finds tags in text that is still coming.

/// What a search found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The tag of this number in the list, from `before` to `after`.
    Tag { index: usize, before: usize, after: usize },
    /// No tag; the text up to `known` cannot become part of one.
    Nothing { known: usize },
}

/// The first tag in the text; at the same place, the longest.
pub(super) fn find(text: &str, tags: &[&str]) -> Found {
    let hits = tags.iter().enumerate().filter(|(_, tag)| !tag.is_empty()).filter_map(|(index, tag)| {
        let before = text.find(tag)?;
        Some((before, std::cmp::Reverse(tag.len()), index))
    });
    if let Some((before, std::cmp::Reverse(length), index)) = hits.min() {
        return Found::Tag { index, before, after: before.saturating_add(length) };
    }
    let held = tags.iter().map(|tag| overlap(text, tag)).max().unwrap_or(0);
    Found::Nothing { known: text.len().saturating_sub(held) }
}

/// How long the longest end of `text` is that begins `tag`, without being all of it.
fn overlap(text: &str, tag: &str) -> usize {
    let bytes = tag.as_bytes();
    (1..bytes.len())
        .rev()
        .find(|length| bytes.get(..*length).is_some_and(|start| text.as_bytes().ends_with(start)))
        .unwrap_or(0)
}

/// Where a call's body ends and what follows its closing tag begins. With `quoted`, a tag inside a JSON
/// text does not count.
pub(super) fn call_end(body: &str, close: &str, quoted: bool) -> Option<(usize, usize)> {
    let mut from = 0usize;
    let mut quotes = Quotes::default();
    while let Some(at) = body.get(from..)?.find(close) {
        let before = from.saturating_add(at);
        let after = before.saturating_add(close.len());
        quotes.pass(body.get(from..before)?);
        if !(quoted && quotes.inside) {
            return Some((before, after));
        }
        from = after;
    }
    None
}

/// Whether a place is inside a JSON text.
#[derive(Default)]
struct Quotes {
    inside: bool,
    escaped: bool,
}

impl Quotes {
    fn pass(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.inside => self.escaped = true,
                b'"' => self.inside = !self.inside,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_longest_tag_is_found() {
        assert_eq!(find("ab<x>c", &["<y>", "<x>"]), Found::Tag { index: 1, before: 2, after: 5 });
        assert_eq!(find("<xy>", &["<x", "<xy>"]), Found::Tag { index: 1, before: 0, after: 4 });
    }

    #[test]
    fn a_possible_beginning_is_held_back() {
        assert_eq!(find("ab<", &["<x>"]), Found::Nothing { known: 2 });
        assert_eq!(find("ab<x", &["<x>", "<x-long>"]), Found::Nothing { known: 2 });
        assert_eq!(find("ab<y", &["<x>"]), Found::Nothing { known: 4 });
        assert_eq!(find("\u{1f98a}<", &["<x>"]), Found::Nothing { known: 4 });
    }

    #[test]
    fn a_closing_tag_in_a_json_text_does_not_close() {
        let body = r#"{"a": "x </t> \" </t>"}</t>rest"#;
        assert_eq!(call_end(body, "</t>", true), Some((23, 27)));
        assert_eq!(call_end(body, "</t>", false), Some((9, 13)));
        assert_eq!(call_end("{\"a\": 1", "</t>", true), None);
    }
}
