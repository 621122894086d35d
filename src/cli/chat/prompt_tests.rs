use super::*;

const COLUMNS: usize = 20;

/// A screen whose bottom is written to.
struct Rig {
    screen: vt100::Parser,
    line: PromptLine,
}

impl Rig {
    fn new() -> Self {
        Self { screen: vt100::Parser::new(14, 20, 0), line: PromptLine::default() }
    }

    fn show(&mut self, bytes: &[u8]) {
        self.screen.process(String::from_utf8_lossy(bytes).replace('\n', "\r\n").as_bytes());
    }

    /// As the editor does: draws the prompt, and tells of it.
    fn stand(&mut self, typed: &str, before: usize) {
        let state = State { line: typed.to_owned(), before };
        let drawn = state.drawn(COLUMNS, false);
        self.show(drawn.as_bytes());
        self.line.bottom().standing = Some(state);
    }

    fn write(&mut self, text: &str) {
        let mut out = Vec::new();
        self.line.write(text, COLUMNS, &mut out).unwrap();
        self.show(&out);
    }

    fn waiting(&mut self, rows: &[&str]) {
        let mut out = Vec::new();
        let rows = rows.iter().map(|row| (*row).to_owned()).collect();
        self.line.waiting(rows, COLUMNS, &mut out).unwrap();
        self.show(&out);
    }

    fn contents(&self) -> (String, (u16, u16)) {
        (self.screen.screen().contents(), self.screen.screen().cursor_position())
    }
}

#[test]
fn the_prompt_is_put_back_as_it_was() {
    let screen = |typed: &str, before| {
        let mut rig = Rig::new();
        rig.stand(typed, before);
        rig.write("news\nmore\n");
        rig.contents()
    };
    assert_eq!(screen("abc", 1), ("news\nmore\n> abc".to_owned(), (2, 3)));
    assert_eq!(screen("", 0), ("news\nmore\n> ".to_owned(), (2, 2)));
    let long = "0123456789012345678901234";
    assert_eq!(screen(long, 25), (format!("news\nmore\n> {long}"), (3, 7)));
    assert_eq!(screen(long, 3), (format!("news\nmore\n> {long}"), (2, 5)));
    assert_eq!(screen("one\ntwo", 7), ("news\nmore\n> one\ntwo".to_owned(), (3, 3)));
    assert_eq!(screen("one\ntwo", 1), ("news\nmore\n> one\ntwo".to_owned(), (2, 3)));
}

#[test]
fn a_line_grows_above_the_prompt_token_by_token() {
    for typed in ["", "abc", "0123456789012345678901234", "one\ntwo"] {
        let mut rig = Rig::new();
        rig.stand(typed, typed.len());
        let text = "The quick brown fox jumps over\nthe lazy dog and sleeps there all day!\n日本語日本語日本語日本\nend";
        for (n, c) in text.chars().enumerate() {
            rig.write(&c.to_string());
            if n == 10 {
                rig.waiting(&["1 waits", "2 waits"]);
            }
            if n == 40 {
                rig.waiting(&["2 waits"]);
            }
        }
        let mut plain = vt100::Parser::new(14, 20, 0);
        plain.process(format!("{text}\n2 waits\n> {typed}").replace('\n', "\r\n").as_bytes());
        assert_eq!(rig.contents().0, plain.screen().contents(), "{typed:?}");
    }
}

#[test]
fn progress_is_taken_back_and_styles_have_no_width() {
    let mut rig = Rig::new();
    rig.stand("x", 1);
    rig.write("\r\x1b[K\x1b[2mreading 10 %\x1b[0m");
    rig.write("\r\x1b[K\x1b[2mreading 90 %\x1b[0m");
    assert_eq!(rig.contents().0, "reading 90 %\n> x");
    rig.write("\r\x1b[K");
    assert_eq!(rig.contents().0, "> x");
    rig.write("\x1b[1mHel\x1b[0m");
    rig.write("\x1b[1mlo\x1b[0m");
    assert_eq!(rig.contents().0, "Hello\n> x");
}

#[test]
fn a_taken_line_leaves_no_trace_and_nothing_is_lost_meanwhile() {
    for typed in ["abc", "0123456789012345678901234", "012345678901234567"] {
        let mut rig = Rig::new();
        rig.stand(typed, typed.len());
        rig.write("half a ");
        rig.waiting(&["1 waits"]);
        rig.line.closing();
        rig.write("line");
        // the editor ends the line
        rig.show(b"\n");
        let mut out = Vec::new();
        rig.line.gone(true, COLUMNS, &mut out).unwrap();
        rig.show(&out);
        assert_eq!(rig.contents().0, "half a line\n1 waits", "{typed}");
        rig.write(" and");
        rig.stand("", 0);
        rig.write(" more");
        assert_eq!(rig.contents().0, "half a line and more\n1 waits\n> ", "{typed}");
    }
}

#[test]
fn leaving_takes_the_prompt_away() {
    let mut rig = Rig::new();
    rig.stand("typed", 2);
    rig.write("said");
    rig.waiting(&["1 waits"]);
    let mut out = Vec::new();
    rig.line.leave(COLUMNS, &mut out).unwrap();
    rig.show(&out);
    assert_eq!(rig.contents(), ("said".to_owned(), (1, 0)));
}
