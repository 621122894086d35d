use std::cell::RefCell;
use std::rc::Rc;

use super::*;

/// What was written, for tests to look at.
#[derive(Clone, Default)]
pub(crate) struct Paper(Rc<RefCell<Vec<u8>>>);

impl Paper {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) const PLAIN: Ability = Ability { terminal: false, colour: false, moves: false };
pub(crate) const SCREEN: Ability = Ability { terminal: true, colour: true, moves: true };

pub(crate) fn pen(out_can: Ability, err_can: Ability) -> (Pen, Paper, Paper) {
    let (out, err) = (Paper::default(), Paper::default());
    let pen = Pen::new(Box::new(out.clone()), Some(Box::new(err.clone())), out_can, err_can, Some(40));
    (pen, out, err)
}

pub(crate) fn single() -> (Pen, Paper) {
    let out = Paper::default();
    (Pen::new(Box::new(out.clone()), None, SCREEN, SCREEN, Some(40)), out)
}

#[test]
fn a_program_gets_the_exact_answer() {
    let (mut pen, out, err) = pen(PLAIN, PLAIN);
    pen.reasoning("hm\x1b[1m").unwrap();
    pen.answer("a\x1b[31m\r\n").unwrap();
    pen.answer("b").unwrap();
    pen.note("a note\x07").unwrap();
    pen.progress("10 %").unwrap();
    pen.end_answer().unwrap();
    assert_eq!(out.text(), "a\x1b[31m\r\nb\n");
    assert_eq!(err.text(), "hm␛[1m\na note␇\n");
}

#[test]
fn a_terminal_gets_only_our_own_sequences() {
    let (mut pen, out) = single();
    pen.progress("evaluating\x1b[2J 1 of 2, and a line that is far too long for it").unwrap();
    pen.reasoning("let me\nsee\x1b[8m").unwrap();
    pen.answer("red: \x1b[31").unwrap();
    pen.answer("m\u{9b}1m").unwrap();
    pen.warn("lost").unwrap();
    let text = out.text();
    let ours = ["\r\x1b[K", "\x1b[2m", "\x1b[1;35m", "\x1b[0m"];
    let rest = ours.iter().fold(text.clone(), |text, seq| text.replace(seq, ""));
    assert!(rest.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    insta::assert_snapshot!(text.replace('\x1b', "ESC").replace('\r', "CR"), @r"
    CRESC[KESC[2mevaluating␛[2J 1 of 2, and a line that…ESC[0mCRESC[KESC[2mlet meESC[0m
    ESC[2msee␛[8mESC[0m
    red: ␛[31m‹U+009B›1m
    ESC[1;35mlostESC[0m
    ");
}

#[test]
fn without_colour_there_is_no_style() {
    let can = Ability { terminal: true, colour: false, moves: true };
    let (mut pen, out, err) = pen(can, can);
    pen.reasoning("hm").unwrap();
    pen.answer("yes").unwrap();
    pen.warn("careful").unwrap();
    assert_eq!((out.text().as_str(), err.text().as_str()), ("yes\n", "hm\ncareful\n"));
}
