//! Markdown, lightly: headings and bold words are bold, code has a colour, and every character stays as it was written.
//!
//! Invariant: no style outlives its line, but that of a code block.

use super::layout::Style;

/// The longest run of `#` that makes a heading.
const DEEPEST: usize = 6;
/// What begins and ends a code block.
const FENCE: &str = "```";

/// Styles a text that comes in pieces.
#[derive(Debug)]
pub struct Markdown {
    /// The beginning of a line, as long as it may be the mark of a heading or of a code block.
    prefix: Option<String>,
    /// Asterisks of which it is not known yet what they are.
    stars: usize,
    bold: bool,
    code: bool,
    heading: bool,
    /// In a code block; and in the line that begins or ends one.
    block: bool,
    fence: bool,
}

impl Default for Markdown {
    fn default() -> Self {
        Self {
            prefix: Some(String::new()),
            stars: 0,
            bold: false,
            code: false,
            heading: false,
            block: false,
            fence: false,
        }
    }
}

impl Markdown {
    /// The next piece, which must be safe already; `put` gets each character and its style.
    pub fn push(&mut self, piece: &str, put: &mut impl FnMut(char, Style)) {
        piece.chars().for_each(|c| self.take(c, put));
    }

    /// Gives what is still held back at the end of the text, which is over.
    pub fn finish(&mut self, put: &mut impl FnMut(char, Style)) {
        self.flush(put);
        *self = Self::default();
    }

    fn style(&self) -> Style {
        match self {
            Self { fence: true, .. } => Style::Fence,
            Self { block: true, .. } => Style::Block,
            Self { code: true, .. } => Style::Code,
            Self { heading: true, .. } | Self { bold: true, .. } => Style::Bold,
            _ => Style::Plain,
        }
    }

    fn take(&mut self, c: char, put: &mut impl FnMut(char, Style)) {
        if c == '\n' {
            self.flush(put);
            put(c, Style::Plain);
            self.block ^= self.fence;
            *self = Self { block: self.block, ..Self::default() };
            return;
        }
        let Some(mut prefix) = self.prefix.take() else {
            return self.inline(c, put);
        };
        prefix.push(c);
        let hashes = prefix.trim_end_matches(' ').len();
        let all = |mark: char| prefix.chars().all(|c| c == mark);
        if prefix == FENCE {
            self.fence = true;
        } else if all('`') || (!self.block && all('#') && hashes <= DEEPEST) {
            self.prefix = Some(prefix);
            return;
        } else if !self.block
            && hashes > 0
            && prefix.ends_with(' ')
            && prefix.trim_end().chars().all(|c| c == '#')
        {
            self.heading = true;
        }
        prefix.chars().for_each(|c| self.inline(c, put));
    }

    fn inline(&mut self, c: char, put: &mut impl FnMut(char, Style)) {
        if self.block || self.fence {
            return put(c, self.style());
        }
        if c == '*' && !self.code && self.stars < 2 {
            self.stars = self.stars.saturating_add(1);
            if self.stars == 2 && self.bold {
                self.write_stars(put);
                self.bold = false;
            }
            return;
        }
        if self.stars == 2 && !c.is_whitespace() {
            self.bold = true;
        }
        self.write_stars(put);
        if c == '`' {
            // the marks belong to the code
            let style = self.style();
            self.code = !self.code;
            put(c, if self.code { Style::Code } else { style });
            return;
        }
        put(c, self.style());
    }

    fn write_stars(&mut self, put: &mut impl FnMut(char, Style)) {
        for _ in 0..std::mem::take(&mut self.stars) {
            put('*', self.style());
        }
    }

    fn flush(&mut self, put: &mut impl FnMut(char, Style)) {
        if let Some(prefix) = self.prefix.take() {
            prefix.chars().for_each(|c| self.inline(c, put));
        }
        self.write_stars(put);
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::Layout;
    use super::*;
    use proptest::prelude::*;

    fn styled(text: &str) -> String {
        let mut layout = Layout::new(true);
        let mut markdown = Markdown::default();
        markdown.push(text, &mut |c, style| layout.put(c, style));
        markdown.finish(&mut |c, style| layout.put(c, style));
        let marks = [("0", "]"), ("1", "B["), ("35", "C["), ("2", "F[")];
        marks.iter().fold(layout.take(), |out, (number, mark)| out.replace(&format!("\x1b[{number}m"), mark))
    }

    #[test]
    fn what_is_marked_is_styled() {
        assert_eq!(styled("a **b** c"), "a B[**b**] c");
        assert_eq!(styled("2 ** 3 * 4"), "2 ** 3 * 4");
        assert_eq!(styled("use `x*y` here\n`open"), "use C[`x*y`] here\nC[`open]");
        assert_eq!(styled("## Title\ntext"), "B[## Title]\ntext");
        assert_eq!(styled("#nothing\n####### seven"), "#nothing\n####### seven");
        assert_eq!(
            styled("```rust\nlet x = **p;\n\n# no\n```\n**b**"),
            "F[```rust]\nlet x = **p;\n\n# no\nF[```]\nB[**b**]"
        );
        assert_eq!(styled("**never closed\nnext"), "B[**never closed]\nnext");
    }

    proptest! {
        #[test]
        fn no_character_is_changed(pieces in proptest::collection::vec("[ab *`#\n]{0,6}", 0..8)) {
            let mut markdown = Markdown::default();
            let mut out = String::new();
            pieces.iter().for_each(|piece| markdown.push(piece, &mut |c, _| out.push(c)));
            markdown.finish(&mut |c, _| out.push(c));
            prop_assert_eq!(out, pieces.concat());
        }
    }
}
