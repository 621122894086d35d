use proptest::prelude::*;

use super::*;

/// What a terminal that is wide enough shows of it, row by row.
fn screen(written: &str) -> String {
    let mut screen = vt100::Parser::new(60, 200, 0);
    screen.process(written.replace('\n', "\r\n").as_bytes());
    let rows: Vec<String> = screen.screen().rows(0, 200).map(|row| row.trim_end().to_owned()).collect();
    rows.join("\n").trim_end().to_owned()
}

/// A text that comes in these pieces, on a terminal with so many columns.
fn laid(pieces: &[&str], columns: usize) -> String {
    let mut layout = Layout::new(false);
    let mut written = String::new();
    for piece in pieces {
        layout.fit(Some(columns - 1), 0);
        piece.chars().for_each(|c| layout.put(c, Style::Plain));
        written.push_str(&layout.take());
    }
    screen(&written)
}

#[test]
fn rows_are_broken_between_words() {
    assert_eq!(laid(&["one two three"], 9), "one two\nthree");
    assert_eq!(laid(&["one two t", "hr", "ee"], 11), "one two\nthree");
    assert_eq!(laid(&["one two  ", "\nthree"], 8), "one two\nthree");
    assert_eq!(laid(&["one two   three"], 8), "one two\nthree");
    assert_eq!(
        laid(&["a text that is longer than one row of the narrow screen", "and done."], 30),
        "a text that is longer than\none row of the narrow\nscreenand done."
    );
    // what came at once is written at once, and taken back when it does not fit
    let mut layout = Layout::new(false);
    layout.fit(Some(7), 0);
    "one tw".chars().for_each(|c| layout.put(c, Style::Plain));
    assert_eq!(layout.take(), "one tw");
    "oo".chars().for_each(|c| layout.put(c, Style::Plain));
    assert_eq!(layout.take(), "o\x1b[3D\x1b[K\ntwoo");
}

#[test]
fn what_comes_as_a_whole_is_written_without_moves() {
    let note = Layout::whole("one two three four five", Style::Dim, true, Some(11));
    assert_eq!(note, "\x1b[2mone two \x1b[0m\n\x1b[2mthree four \x1b[0m\n\x1b[2mfive\x1b[0m");
    let message = Layout::behind("> ", "one two\nthree four", Style::Bold, (false, Some(9)));
    assert_eq!(message, "> one two\n  three \n  four\n");
}

#[test]
fn a_long_word_is_left_in_one_piece() {
    let url = "https://example.org/a/long/one";
    assert_eq!(laid(&["see ", url, " now"], 12), format!("see\n{url}\nnow"));
    assert_eq!(laid(&["- ", url, " now"], 12), format!("- {url}\n  now"));
}

#[test]
fn lists_and_quotations_hang() {
    assert_eq!(laid(&["- one two three"], 11), "- one two\n  three");
    assert_eq!(laid(&["  12. one two three"], 16), "  12. one two\n      three");
    assert_eq!(laid(&["> one two three"], 11), "> one two\n> three");
    assert_eq!(laid(&["12 one two three"], 11), "12 one two\nthree");
    assert_eq!(laid(&["- one two three\nfour five six"], 11), "- one two\n  three\nfour five\nsix");
}

#[test]
fn scripts_without_spaces_are_broken_too_but_not_before_what_closes() {
    assert_eq!(laid(&["日本語の文字。次"], 8), "日本語\nの文\n字。次");
    assert_eq!(laid(&["ab 日本"], 8), "ab 日本");
}

#[test]
fn code_and_tables_are_left_to_the_terminal() {
    let table = "| a b c | d e f | g h i |";
    assert_eq!(laid(&[table], 12), table);
    let mut layout = Layout::new(false);
    layout.fit(Some(7), 0);
    "let x = a long line".chars().for_each(|c| layout.put(c, Style::Block));
    assert_eq!(layout.take(), "let x = a long line");
}

#[test]
fn a_word_that_is_taken_back_keeps_its_style() {
    let mut layout = Layout::new(true);
    layout.fit(Some(7), 0);
    for (c, style) in "one ".chars().map(|c| (c, Style::Plain)).chain("two".chars().map(|c| (c, Style::Bold)))
    {
        layout.put(c, style);
    }
    assert_eq!(layout.take(), "one \x1b[1mtwo\x1b[0m");
    layout.put('o', Style::Code);
    assert_eq!(layout.take(), "\x1b[3D\x1b[K\n\x1b[1mtwo\x1b[0m\x1b[35mo\x1b[0m");
}

#[test]
fn a_change_of_the_width_repeats_nothing() {
    let mut layout = Layout::new(false);
    layout.fit(Some(40), 0);
    "one two three".chars().for_each(|c| layout.put(c, Style::Plain));
    let _ = layout.take();
    layout.fit(Some(7), 0);
    " four five".chars().for_each(|c| layout.put(c, Style::Plain));
    assert_eq!(screen(&layout.take()), " four\n five");
    // nor does a row that somebody else has ended
    layout.fit(Some(7), 1);
    "ly ones".chars().for_each(|c| layout.put(c, Style::Plain));
    assert_eq!(screen(&layout.take()), "ly ones");
}

proptest! {
    #[test]
    fn every_word_is_there_and_no_row_is_too_long(
        text in "[ab日é\n>-]{1,7}( [ab日é\n>-]{1,7}){0,20}",
        cuts in prop::collection::vec(1usize..9, 1..40),
        columns in 12usize..40,
    ) {
        let chars: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        let mut rest = chars.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece.iter().collect::<String>());
            rest = after;
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let shown = laid(&pieces, columns);
        let letters = |text: &str| text.chars().filter(|c| !" \n>".contains(*c)).collect::<String>();
        prop_assert_eq!(letters(&shown), letters(&text));
        for row in shown.lines() {
            prop_assert!(text::width(row) < columns, "{row:?}");
        }
        // how the text came makes no difference
        prop_assert_eq!(shown, laid(&[&text], columns));
    }
}
