//! A session's records as a person reads them: in the terminal, and as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::call;
use super::layout::{Layout, Style};
use super::lists::{outcome_word, state_word};
use super::markdown;
use super::pen::{self, Ability};
use super::text;
use super::time::minute;
use super::view::tool_result_line;
use crate::proto::{
    AssistantMessage, CallId, Carried, LogRecord, SessionInfo, SessionState, ToolResult, TurnEnd, TurnOutcome,
};

/// What tools were called with, until their results come.
#[derive(Default)]
pub struct Calls(BTreeMap<CallId, String>);

impl Calls {
    /// Keeps what a message calls with.
    pub fn remember(&mut self, message: &AssistantMessage) {
        self.0.extend(message.tool_calls.iter().map(|call| (call.call, call.arguments.clone())));
    }

    /// What the call of a result was made with.
    pub fn arguments(&mut self, result: &ToolResult) -> String {
        self.0.remove(&result.call).unwrap_or_default()
    }
}

/// Text for the terminal; all of it is safe.
pub struct Transcript {
    can: Ability,
    ids: bool,
    calls: Calls,
}

impl Transcript {
    /// For what it is written to, with or without token ids.
    #[must_use]
    pub fn new(can: Ability, ids: bool) -> Self {
        Self { can, ids, calls: Calls::default() }
    }

    fn dim(&self, block: &str) -> String {
        let mut out = Layout::whole(&text::block(block), Style::Dim, self.can.colour, pen::row(self.can));
        if !out.is_empty() && !out.ends_with('\n') {
            out.push('\n');
        }
        out
    }

    /// What stands before the records.
    #[must_use]
    pub fn head(&self, info: &SessionInfo) -> String {
        let mut parts = vec![format!("session {}", info.id)];
        parts.extend(info.name.as_ref().map(|name| format!("\"{}\"", text::line(name))));
        parts.extend(info.model.as_ref().map(|model| text::line(model)));
        if info.state != SessionState::Ok {
            parts.push(state_word(info.state).to_owned());
        }
        let mut head = self.dim(&parts.join(" · "));
        if let Some(reason) = &info.reason {
            head.push_str(&self.dim(&text::line(reason)));
        }
        head
    }

    /// A record; of some kinds nothing is shown.
    #[must_use]
    pub fn record(&mut self, record: &LogRecord) -> String {
        match record {
            LogRecord::UserMessage(m) => {
                let head = self.dim(&format!("turn {} · {}", m.turn, minute(m.time)));
                let place = (self.can.colour, pen::row(self.can));
                let text = text::block(&m.text);
                let lines = text.split('\n').map(|line| Layout::behind("» ", line, Style::Bold, place));
                format!("\n{head}{}", lines.collect::<String>())
            }
            LogRecord::AssistantMessage(m) => self.answer(m),
            LogRecord::ToolResult(r) => {
                let arguments = self.calls.arguments(r);
                self.dim(&tool_result_line(&r.name, &arguments, r.outcome, &r.content))
            }
            LogRecord::Approval(a) => self.dim(&call::decided_line(a.call, a.decision, &a.by)),
            LogRecord::Carried(c) => self.dim(&carried_lines(c).join("\n")),
            LogRecord::Named(n) => self.dim(&format!("named \"{}\"", text::line(&n.name))),
            LogRecord::TurnEnd(end) => end_line(end).map(|line| self.dim(&line)).unwrap_or_default(),
            LogRecord::SessionStart(s) if s.epoch.0 > 0 => self.dim(&format!("epoch {}", s.epoch)),
            LogRecord::SessionStart(_) | LogRecord::ToolStart(_) | LogRecord::Usage(_) => String::new(),
        }
    }

    /// An answer, as it was shown when it came.
    fn styled(&self, text: &str) -> String {
        let mut rows = Layout::new(self.can.colour);
        rows.fit(pen::row(self.can), 0);
        let mut marks = markdown::Markdown::default();
        marks.push(text, &mut |c, style| rows.put(c, style));
        marks.finish(&mut |c, style| rows.put(c, style));
        rows.take()
    }

    fn answer(&mut self, m: &AssistantMessage) -> String {
        self.calls.remember(m);
        let mut out = String::new();
        if let Some(reasoning) = &m.reasoning {
            out.push_str(&self.dim(reasoning));
        }
        if !m.text.is_empty() {
            out.push_str(&self.styled(&text::block(&m.text)));
            if !out.ends_with('\n') {
                out.push('\n');
            }
        }
        if self.ids {
            for (what, list) in [("prompt ids", &m.prompt_ids), ("sampled ids", &m.ids)] {
                let numbers: Vec<String> = list.0.iter().map(u32::to_string).collect();
                out.push_str(&self.dim(&format!("{what} ({}): {}", list.len(), numbers.join(" "))));
            }
        }
        out
    }
}

/// What an epoch began with; the turns themselves stand above, in the epoch before.
pub fn carried_lines(carried: &Carried) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(summary) = &carried.summary {
        lines.push(format!("summary of the turns up to {}: {}", summary.through, summary.text));
    }
    match (carried.exchanges.first(), carried.exchanges.last()) {
        (Some(first), Some(last)) if first.turn == last.turn => {
            lines.push(format!("turn {} goes on in the context as it was", first.turn));
        }
        (Some(first), Some(last)) => {
            lines.push(format!("turns {} to {} go on in the context as they were", first.turn, last.turn));
        }
        _ => {}
    }
    lines
}

/// How a turn ended, where it is worth a line.
pub fn end_line(end: &TurnEnd) -> Option<String> {
    if end.outcome == TurnOutcome::Done && end.detail.is_none() {
        return None;
    }
    let detail = end.detail.as_ref().map(|detail| format!(": {}", text::line(detail))).unwrap_or_default();
    Some(format!("{}{detail}", outcome_word(Some(end.outcome))))
}

/// Markdown; what people and the model wrote is as they wrote it.
#[derive(Default)]
pub struct Markdown {
    calls: Calls,
}

impl Markdown {
    /// What stands before the records.
    #[must_use]
    pub fn head(&self, info: &SessionInfo) -> String {
        let title = info.name.clone().unwrap_or_else(|| format!("Session {}", info.id));
        let mut out = format!("# {}\n\n- Session: `{}`\n", text::line(&title), info.id);
        if let Some(model) = &info.model {
            let _ = writeln!(out, "- Model: {}", text::line(model));
        }
        if let Some(started) = info.started {
            let _ = writeln!(out, "- Started: {}", minute(started));
        }
        if info.state != SessionState::Ok {
            let reason = info.reason.as_ref().map(|reason| format!(": {}", text::line(reason)));
            let _ = writeln!(out, "- State: {}{}", state_word(info.state), reason.unwrap_or_default());
        }
        out
    }

    /// A record; of some kinds nothing is written.
    #[must_use]
    pub fn record(&mut self, record: &LogRecord) -> String {
        match record {
            LogRecord::UserMessage(m) => {
                format!("\n## Turn {} ({})\n\n**User:**\n\n{}\n", m.turn, minute(m.time), quote(&m.text))
            }
            LogRecord::AssistantMessage(m) => {
                self.calls.remember(m);
                let mut out = String::new();
                if let Some(reasoning) = &m.reasoning {
                    let _ = write!(
                        out,
                        "\n<details><summary>Reasoning</summary>\n\n{}\n</details>\n",
                        fence(reasoning)
                    );
                }
                if !m.text.is_empty() {
                    let _ = write!(out, "\n{}\n", m.text);
                }
                out
            }
            LogRecord::ToolResult(r) => {
                let (name, arguments) = call::shown(&r.name, &self.calls.arguments(r));
                let line = text::line(&name).replace('`', "'");
                let how = call::outcome_name(r.outcome);
                format!("\nTool `{line}` ({how}):\n\n{}\n{}", fence(&arguments), fence(&r.content))
            }
            LogRecord::TurnEnd(end) => end_line(end).map(|line| format!("\n*{line}*\n")).unwrap_or_default(),
            LogRecord::SessionStart(s) if s.epoch.0 > 0 => format!("\n---\n\n## Epoch {}\n", s.epoch),
            LogRecord::Carried(c) => {
                carried_lines(c).iter().map(|line| format!("\n{}\n", quote(line))).collect()
            }
            _ => String::new(),
        }
    }
}

fn quote(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|line| format!("> {line}")).collect();
    lines.join("\n")
}

/// A code block whose fence is longer than any in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.saturating_add(1).max(3));
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("{fence}\n{text}{end}{fence}\n")
}

#[cfg(test)]
mod tests {
    use super::super::pen::tests::{PLAIN, SCREEN};
    use super::*;
    use crate::proto::{
        Digest, Epoch, Finish, SessionStart, Timestamp, TokenIds, ToolCall, ToolOutcome, TurnId, UserMessage,
    };

    fn records() -> Vec<LogRecord> {
        let time: Timestamp = "2026-01-31T23:59:59.999Z".parse().unwrap();
        let turn = TurnId(1);
        let answer = |text: &str, calls: Vec<ToolCall>| {
            LogRecord::AssistantMessage(AssistantMessage {
                time,
                turn,
                text: text.to_owned(),
                reasoning: (!calls.is_empty()).then(|| "I need a tool.\nYes.".to_owned()),
                finish: if calls.is_empty() { Finish::Stop } else { Finish::ToolCalls },
                tool_calls: calls,
                prompt_ids: TokenIds(vec![1, 2, 300]),
                ids: TokenIds(vec![7]),
            })
        };
        let call = ToolCall { call: CallId(1), name: "run`".into(), arguments: "{\"a\": 1}".into() };
        vec![
            LogRecord::SessionStart(SessionStart {
                time,
                session: "s1".parse().unwrap(),
                epoch: Epoch(0),
                slot: 0,
                baseline: Digest::of(b""),
                previous: None,
                origin: None,
            }),
            LogRecord::UserMessage(UserMessage { time, turn, text: "What\n\x1b[2Jnow?".into() }),
            answer("", vec![call]),
            LogRecord::ToolResult(ToolResult {
                time,
                turn,
                call: CallId(1),
                name: "run`".into(),
                outcome: ToolOutcome::Error,
                content: "no ```` such\nthing".into(),
                truncated_bytes: 0,
                millis: 5,
            }),
            answer("It *failed*\u{9b}m.", vec![]),
            LogRecord::TurnEnd(TurnEnd {
                time,
                turn,
                outcome: TurnOutcome::Limit,
                detail: Some("turn_requests: 2".into()),
                millis: Some(10),
            }),
        ]
    }

    fn info() -> SessionInfo {
        SessionInfo {
            id: "s1".parse().unwrap(),
            name: Some("my\x1b[1m day".into()),
            title: None,
            state: SessionState::Interrupted,
            started: Some("2026-01-31T23:00:00.000Z".parse().unwrap()),
            last: None,
            messages: 3,
            turns: 1,
            context_n: 300,
            epoch: crate::proto::Epoch(0),
            model: Some("tiny".into()),
            reason: Some("turn 1 has no end".into()),
        }
    }

    #[test]
    fn in_the_terminal() {
        let mut transcript = Transcript::new(PLAIN, true);
        let mut out = transcript.head(&info());
        out.extend(records().iter().map(|record| transcript.record(record)));
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()));
        insta::assert_snapshot!(out);
    }

    #[test]
    fn as_markdown() {
        let mut markdown = Markdown::default();
        let mut out = markdown.head(&info());
        out.extend(records().iter().map(|record| markdown.record(record)));
        insta::assert_snapshot!(out.replace('\x1b', "ESC").replace('\u{9b}', "CSI"));
    }

    #[test]
    fn dimming_stays_within_its_line() {
        let dimmed = Transcript::new(SCREEN, false).dim("a\nb");
        assert_eq!(dimmed, "\x1b[2ma\x1b[0m\n\x1b[2mb\x1b[0m\n");
    }
}
