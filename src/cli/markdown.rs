//! Markdown, lightly: headings and bold words are bold, code has a colour, and every character stays as it was written.
//!
//! Invariant: each piece that comes out ends without a style, whatever is open, so that anything can be written
//! between two pieces; no style outlives its line, but that of a code block.

/// The style of bold words and headings.
const BOLD: &str = "1";
/// The style of code.
const CODE: &str = "36";
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

/// Text in runs of one style each.
#[derive(Default)]
struct Runs {
    out: String,
    style: &'static str,
}

impl Runs {
    fn push(&mut self, c: char, style: &'static str) {
        let style = if c == '\n' { "" } else { style };
        if style != self.style {
            self.end();
            if !style.is_empty() {
                self.out.push_str("\x1b[");
                self.out.push_str(style);
                self.out.push('m');
            }
            self.style = style;
        }
        self.out.push(c);
    }

    fn end(&mut self) {
        if !self.style.is_empty() {
            self.out.push_str("\x1b[0m");
            self.style = "";
        }
    }
}

impl Markdown {
    /// The next piece, which must be safe already.
    pub fn push(&mut self, piece: &str) -> String {
        let mut runs = Runs::default();
        piece.chars().for_each(|c| self.take(c, &mut runs));
        runs.end();
        runs.out
    }

    /// What is still held back at the end of the text, which is over.
    pub fn finish(&mut self) -> String {
        let mut runs = Runs::default();
        self.flush(&mut runs);
        runs.end();
        *self = Self::default();
        runs.out
    }

    fn style(&self) -> &'static str {
        match self {
            Self { block: true, .. } | Self { fence: true, .. } | Self { code: true, .. } => CODE,
            Self { heading: true, .. } | Self { bold: true, .. } => BOLD,
            _ => "",
        }
    }

    fn take(&mut self, c: char, runs: &mut Runs) {
        if c == '\n' {
            self.flush(runs);
            runs.push(c, "");
            self.block ^= self.fence;
            *self = Self { block: self.block, ..Self::default() };
            return;
        }
        let Some(mut prefix) = self.prefix.take() else {
            return self.inline(c, runs);
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
        prefix.chars().for_each(|c| self.inline(c, runs));
    }

    fn inline(&mut self, c: char, runs: &mut Runs) {
        if self.block || self.fence {
            return runs.push(c, CODE);
        }
        if c == '*' && !self.code && self.stars < 2 {
            self.stars = self.stars.saturating_add(1);
            if self.stars == 2 && self.bold {
                self.write_stars(runs);
                self.bold = false;
            }
            return;
        }
        if self.stars == 2 && !c.is_whitespace() {
            self.bold = true;
        }
        self.write_stars(runs);
        if c == '`' {
            // the marks belong to the code
            let style = self.style();
            self.code = !self.code;
            runs.push(c, if self.code { CODE } else { style });
            return;
        }
        runs.push(c, self.style());
    }

    fn write_stars(&mut self, runs: &mut Runs) {
        for _ in 0..std::mem::take(&mut self.stars) {
            runs.push('*', self.style());
        }
    }

    fn flush(&mut self, runs: &mut Runs) {
        if let Some(prefix) = self.prefix.take() {
            prefix.chars().for_each(|c| self.inline(c, runs));
        }
        self.write_stars(runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn styled(text: &str) -> String {
        let mut markdown = Markdown::default();
        let mut out = markdown.push(text);
        out.push_str(&markdown.finish());
        out.replace("\x1b[0m", "]").replace("\x1b[1m", "B[").replace("\x1b[36m", "C[")
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
            "C[```rust]\nC[let x = **p;]\n\nC[# no]\nC[```]\nB[**b**]"
        );
        assert_eq!(styled("**never closed\nnext"), "B[**never closed]\nnext");
    }

    proptest! {
        #[test]
        fn no_character_is_changed_and_no_piece_leaves_a_style(pieces in proptest::collection::vec("[ab *`#\n]{0,6}", 0..8)) {
            let mut markdown = Markdown::default();
            let mut out = String::new();
            for piece in &pieces {
                let styled = markdown.push(piece);
                prop_assert!(styled.rfind("\x1b[0m") >= styled.rfind("\x1b[1m").max(styled.rfind("\x1b[36m")));
                out.push_str(&styled);
            }
            out.push_str(&markdown.finish());
            let plain = ["\x1b[0m", "\x1b[1m", "\x1b[36m"].iter().fold(out, |out, style| out.replace(style, ""));
            prop_assert_eq!(plain, pieces.concat());
        }
    }
}
