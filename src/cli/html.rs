//! A session as one self-contained HTML page: no script, nothing fetched, and nothing in it that what was said could
//! change the page with.

use std::fmt::Write as _;

use super::call;
use super::chart;
use super::lists::state_word;
use super::text;
use super::time::minute;
use super::transcript::{Calls, carried_lines, end_line};
use crate::proto::{AssistantMessage, LogRecord, SessionInfo, SessionState, ToolResult, TurnUsage};

const STYLE: &str = include_str!("page.css");

/// Writes the page, piece by piece.
#[derive(Default)]
pub struct Page {
    calls: Calls,
    turn_open: bool,
}

impl Page {
    /// What stands before the records.
    #[must_use]
    pub fn head(&self, info: &SessionInfo, usage: &[TurnUsage]) -> String {
        let title = info.name_or_title().map_or_else(|| format!("Session {}", info.id), str::to_owned);
        let title = safe(&title);
        let mut facts = vec![format!("session <code>{}</code>", info.id)];
        facts.extend(info.model.as_ref().map(|model| safe(model)));
        facts.extend(info.started.map(|time| format!("begun {}", minute(time))));
        facts.push(text::counted(info.turns, "turn"));
        if info.state != SessionState::Ok {
            let reason = info.reason.as_ref().map(|reason| format!(": {}", safe(reason)));
            facts.push(format!("{}{}", state_word(info.state), reason.unwrap_or_default()));
        }
        let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        out.push_str("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n");
        out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
        out.push_str("<meta name=\"color-scheme\" content=\"light dark\">\n");
        // writing to a String cannot fail
        let _ = write!(out, "<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n");
        let _ = write!(
            out,
            "<header>\n<h1>{title}</h1>\n<p class=\"facts\">{}</p>\n</header>\n",
            facts.join(" · ")
        );
        out.push_str(&chart::figure(usage));
        out
    }

    /// A record; of some kinds nothing is written.
    #[must_use]
    pub fn record(&mut self, record: &LogRecord) -> String {
        match record {
            LogRecord::UserMessage(m) => {
                let end = self.close();
                self.turn_open = true;
                format!(
                    "{end}<section id=\"turn-{0}\">\n<h2>Turn {0} <time>{1}</time></h2>\n<div class=\"user\">{2}</div>\n",
                    m.turn,
                    minute(m.time),
                    safe(&m.text)
                )
            }
            LogRecord::AssistantMessage(m) => self.answer(m),
            LogRecord::ToolResult(r) => self.result(r),
            LogRecord::TurnEnd(end) => end_line(end)
                .map(|line| format!("<p class=\"end\">{}</p>\n", safe(&line)))
                .unwrap_or_default(),
            LogRecord::SessionStart(s) if s.epoch.0 > 0 => {
                format!("{}<hr>\n<p class=\"end\">Epoch {}</p>\n", self.close(), s.epoch)
            }
            LogRecord::Carried(c) => {
                carried_lines(c).iter().map(|line| format!("<p class=\"end\">{}</p>\n", safe(line))).collect()
            }
            _ => String::new(),
        }
    }

    /// What stands behind the records.
    #[must_use]
    pub fn foot(&mut self) -> String {
        format!("{}</main>\n</body>\n</html>\n", self.close())
    }

    fn close(&mut self) -> &'static str {
        if std::mem::take(&mut self.turn_open) { "</section>\n" } else { "" }
    }

    fn answer(&mut self, m: &AssistantMessage) -> String {
        self.calls.remember(m);
        let mut out = String::new();
        if let Some(reasoning) = &m.reasoning {
            let reasoning = safe(reasoning);
            let _ = writeln!(
                out,
                "<details><summary>Reasoning</summary><div class=\"plain\">{reasoning}</div></details>"
            );
        }
        if !m.text.is_empty() {
            let _ = writeln!(out, "<div class=\"answer\">{}</div>", marked_up(&m.text));
        }
        out
    }

    fn result(&mut self, r: &ToolResult) -> String {
        let (name, arguments) = call::shown(&r.name, &self.calls.arguments(r));
        format!(
            "<details><summary>Tool <code>{}</code> <span class=\"{1}\">{1}</span></summary><pre>{2}</pre><pre>{3}</pre></details>\n",
            safe(&name),
            call::outcome_name(r.outcome),
            safe(&arguments),
            safe(&r.content)
        )
    }
}

/// Text as HTML that can only be text.
pub fn safe(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text::block(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Code blocks, headings, bold words and code of Markdown; all else stays as it was written.
fn marked_up(text: &str) -> String {
    let mut out = String::new();
    let mut code = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            out.push_str(if code { "</pre>" } else { "<pre>" });
            code = !code;
        } else if code {
            out.push_str(&safe(line));
        } else if line.starts_with('#') && line.trim_start_matches('#').starts_with(' ') {
            let heading = line.trim_start_matches('#').trim();
            let _ = writeln!(out, "<strong class=\"heading\">{}</strong>", inline(heading));
        } else {
            out.push_str(&inline(line));
        }
    }
    if code {
        out.push_str("</pre>");
    }
    out
}

/// Bold words and code in one line.
fn inline(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(['`', '*']) {
        let (before, marked) = rest.split_at_checked(at).unwrap_or((rest, ""));
        out.push_str(&safe(before));
        let (mark, tag) = if marked.starts_with('`') { ("`", "code") } else { ("**", "strong") };
        let inner = marked.strip_prefix(mark).and_then(|rest| rest.split_once(mark));
        match inner.filter(|(inner, _)| !inner.is_empty()) {
            Some((inner, after)) => {
                let _ = write!(out, "<{tag}>{}</{tag}>", safe(inner));
                rest = after;
            }
            None => {
                let (mark, after) = marked.split_at_checked(1).unwrap_or((marked, ""));
                out.push_str(mark);
                rest = after;
            }
        }
    }
    out.push_str(&safe(rest));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_only_text() {
        for evil in [
            "<script>alert(1)</script>",
            "\"><img src=x onerror=y>",
            "`</code><b>`",
            "**<i>**",
            "# <h1>",
            "```\n</pre><script>\n",
        ] {
            let html = marked_up(evil);
            let ours = [
                "<pre>",
                "</pre>",
                "<code>",
                "</code>",
                "<strong>",
                "</strong>",
                "<strong class=\"heading\">",
            ];
            let rest = ours.iter().fold(html.clone(), |html, tag| html.replace(tag, ""));
            assert!(!rest.contains(['<', '>', '"']), "{html}");
        }
        assert_eq!(safe("a\x1b[2J\u{202e}&'"), "a␛[2J‹U+202E›&amp;&#39;");
    }

    #[test]
    fn light_markdown() {
        assert_eq!(marked_up("a **b** `c*`\n"), "a <strong>b</strong> <code>c*</code>\n");
        assert_eq!(marked_up("2 * 3 ** 4 `x"), "2 * 3 ** 4 `x");
        assert_eq!(
            marked_up("## T\n```rust\nx<y\n```\nz"),
            "<strong class=\"heading\">T</strong>\n<pre>x&lt;y\n</pre>z"
        );
    }
}
