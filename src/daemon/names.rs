//! What may be a session's name.

use crate::proto::is_unseen;

/// A name as it is kept, without the spaces around it.
///
/// # Errors
/// It is empty, too long, or has a character that nobody sees: two sessions could then look alike.
pub(super) fn checked(name: &str, most_bytes: usize) -> Result<String, String> {
    let name = name.trim();
    if name.is_empty() {
        return Err("a session's name cannot be empty".to_owned());
    }
    if name.len() > most_bytes {
        return Err(format!(
            "a session's name can have {most_bytes} bytes at most; this one has {}",
            name.len()
        ));
    }
    match unseen(name) {
        Some(c) => Err(format!(
            "a session's name cannot hold U+{:04X}, which nobody sees or which changes how the rest is shown; leave it out",
            u32::from(c)
        )),
        None => Ok(name.to_owned()),
    }
}

/// The first character that may not be there. A joiner may, between two characters that are not ASCII: some
/// scripts and emoji need it.
fn unseen(name: &str) -> Option<char> {
    let mut before = None;
    let mut rest = name.chars().peekable();
    while let Some(c) = rest.next() {
        let joins = |c: char| !c.is_ascii() && !is_unseen(c);
        let joiner = matches!(c, '\u{200c}' | '\u{200d}')
            && before.is_some_and(joins)
            && rest.peek().copied().is_some_and(joins);
        if is_unseen(c) && !joiner {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sees_is_refused_and_named() {
        for (name, code) in [
            ("a\u{202e}b", "U+202E"),
            ("a\u{200b}b", "U+200B"),
            ("a\u{200d}b", "U+200D"),
            ("\u{200c}é", "U+200C"),
            ("é\u{200d}\u{200d}é", "U+200D"),
            ("a\u{feff}", "U+FEFF"),
            ("a\u{2066}b", "U+2066"),
            ("a\u{ad}b", "U+00AD"),
            ("a\u{e0041}", "U+E0041"),
            ("a\u{2028}b", "U+2028"),
            ("a\u{7}b", "U+0007"),
            ("a\nb", "U+000A"),
            ("a\u{9b}b", "U+009B"),
        ] {
            let why = checked(name, 200).unwrap_err();
            assert!(why.contains(code), "{name:?}: {why}");
        }
    }

    #[test]
    fn names_in_any_script_are_kept() {
        for name in ["Küche", "台所", "می\u{200c}خواهم", "👩\u{200d}👩\u{200d}👧", "a b", "e\u{301}"]
        {
            assert_eq!(checked(&format!("  {name} "), 200).as_deref(), Ok(name));
        }
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
        assert!(checked(" \t ", 200).unwrap_err().contains("empty"));
        assert!(checked("ü", 1).unwrap_err().contains("1 bytes at most; this one has 2"));
    }
}
