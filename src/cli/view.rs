//! A turn's events as a person reads them.

use std::collections::BTreeMap;
use std::io;

use super::asking::question;
use super::call;
use super::pen::Pen;
use super::text;
use crate::proto::{
    ApprovalWanted, CallId, Certainty, Event, EventKind, Phase, Snapshot, ToolOutcome, TurnId, TurnOutcome,
};

/// Shows events with a [`Pen`].
#[derive(Debug, Default)]
pub struct View {
    own: Option<TurnId>,
    seen: Snapshot,
    calls: BTreeMap<CallId, String>,
    totals: Totals,
    loss_told: bool,
    last_state: String,
}

/// What a turn's completions cost together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Totals {
    completions: u64,
    cache_n: u64,
    prompt_n: u64,
    predicted_n: u64,
    lost_n: u64,
    context_n: u64,
    n_ctx: u64,
    millis: u64,
    thinking_capped: bool,
}

impl View {
    /// Says which turn this client began: its message need not be shown again.
    pub fn own_turn(&mut self, turn: TurnId) {
        self.own = Some(turn);
    }

    /// Shows an event.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn event(&mut self, pen: &mut Pen, event: &Event) -> io::Result<()> {
        match &event.kind {
            EventKind::TurnStart { text, retry } => self.start(pen, event.turn, text, *retry)?,
            EventKind::Queued { place } => {
                self.state(pen, &format!("waiting: {} ahead", text::counted(*place, "turn")))?;
            }
            EventKind::Waiting { why } => self.state(pen, &format!("waiting: {why}"))?,
            EventKind::Prefill { done, total, cached } => {
                let percent = done.saturating_mul(100).checked_div(*total).unwrap_or(100);
                let left = total.saturating_sub(*cached);
                let new = done.saturating_sub(*cached);
                pen.progress(&format!("reading {percent} %: {new} of {left} tokens, {cached} from cache"))?;
            }
            EventKind::Summary { done, most } => {
                pen.progress(&format!("summarising the conversation: {done} of at most {most} tokens"))?;
            }
            EventKind::Rebased { outcome, epoch, detail } => {
                let detail = text::line(detail);
                match outcome {
                    TurnOutcome::Done => pen.note(&format!("epoch {epoch}: {detail}"))?,
                    _ => pen.warn(&format!("no new epoch: {detail}"))?,
                }
            }
            EventKind::Text { text } => pen.answer(text)?,
            EventKind::Reasoning { text } => pen.reasoning(text)?,
            EventKind::ToolCall { call, name, arguments } => {
                pen.progress(&format!("{} …", tool_line(name, arguments)))?;
                self.calls.insert(*call, arguments.clone());
            }
            EventKind::ApprovalWanted { wanted } => ask(pen, wanted)?,
            EventKind::Approval { call, decision, by } => {
                pen.note(&call::decided_line(*call, *decision, by))?;
            }
            EventKind::ToolResult { call, name, outcome, content } => {
                let arguments = self.calls.remove(call).unwrap_or_default();
                let line = tool_result_line(name, &arguments, *outcome, content);
                let line = text::cut(&line, pen.width());
                pen.note(&line)?;
            }
            EventKind::Usage { usage, lost_n, context_n, n_ctx, millis, .. } => {
                pen.end_answer()?;
                let t = &mut self.totals;
                t.completions = t.completions.saturating_add(1);
                t.cache_n = t.cache_n.saturating_add(usage.cache_n);
                t.prompt_n = t.prompt_n.saturating_add(usage.prompt_n);
                t.predicted_n = t.predicted_n.saturating_add(usage.predicted_n);
                t.lost_n = t.lost_n.saturating_add(*lost_n);
                t.millis = t.millis.saturating_add(*millis);
                t.thinking_capped |= usage.thinking_capped;
                (t.context_n, t.n_ctx) = (*context_n, *n_ctx);
            }
            EventKind::TurnEnd { outcome, detail, certainty } => {
                self.end(pen, *outcome, detail.as_deref(), *certainty)?;
            }
            EventKind::Notice { code, message } => {
                self.loss_told |= code == "cache_lost";
                pen.warn(&format!("note: {}", text::line(message)))?;
            }
            EventKind::Error { message, .. } => pen.warn(&format!("error: {}", text::line(message)))?,
            EventKind::Snapshot { snapshot } => return self.snapshot(pen, event.turn, snapshot),
        }
        self.seen.apply(&event.kind);
        Ok(())
    }

    /// A state that lasts: rewritten in place on a terminal, else a line when it changes.
    fn state(&mut self, pen: &mut Pen, state: &str) -> io::Result<()> {
        if pen.takes_back() {
            return pen.progress(state);
        }
        // in a log, how long it has waited by now is no news
        let what = state.split("; waiting for it").next().unwrap_or(state);
        if self.last_state == what {
            return Ok(());
        }
        what.clone_into(&mut self.last_state);
        pen.note(&text::line(state))
    }

    fn start(&mut self, pen: &mut Pen, turn: Option<TurnId>, text: &str, retry: bool) -> io::Result<()> {
        self.totals = Totals::default();
        self.loss_told = false;
        self.last_state.clear();
        if turn.is_some() && turn == self.own {
            return Ok(());
        }
        self.foreign_message(pen, text, if retry { " (asked again)" } else { "" })
    }

    fn foreign_message(&self, pen: &mut Pen, text: &str, remark: &str) -> io::Result<()> {
        pen.say("")?;
        text.split('\n').try_for_each(|line| pen.message("» ", line))?;
        if remark.is_empty() { Ok(()) } else { pen.note(remark.trim_start()) }
    }

    fn snapshot(&mut self, pen: &mut Pen, turn: Option<TurnId>, now: &Snapshot) -> io::Result<()> {
        if now.phase != Phase::Idle {
            let fresh = self.seen.phase == Phase::Idle;
            if fresh && !(turn.is_some() && turn == self.own) {
                self.foreign_message(pen, &now.user_text, "")?;
            }
            let more = (
                now.reasoning.strip_prefix(self.seen.reasoning.as_str()),
                now.text.strip_prefix(self.seen.text.as_str()),
            );
            match more {
                (Some(reasoning), Some(text)) => {
                    pen.reasoning(reasoning)?;
                    pen.answer(text)?;
                }
                _ => {
                    pen.end_answer()?;
                    pen.warn("some of the stream was missed; here is the running answer from its start")?;
                    pen.reasoning(&now.reasoning)?;
                    pen.answer(&now.text)?;
                }
            }
        }
        if let Some(wanted) = now.approval.as_ref().filter(|_| now.approval != self.seen.approval) {
            ask(pen, wanted)?;
        }
        self.seen.clone_from(now);
        Ok(())
    }

    fn end(
        &mut self,
        pen: &mut Pen,
        outcome: TurnOutcome,
        detail: Option<&str>,
        certainty: Certainty,
    ) -> io::Result<()> {
        pen.end_answer()?;
        let why = detail.map(|detail| format!(": {}", text::line(detail))).unwrap_or_default();
        match outcome {
            TurnOutcome::Done => {}
            TurnOutcome::Cancelled => pen.warn(&format!("cancelled{why}"))?,
            TurnOutcome::Failed => pen.warn(&format!("failed{why}"))?,
            TurnOutcome::Limit => pen.warn(&format!("stopped at a limit{why}"))?,
        }
        if certainty == Certainty::Unknown {
            pen.warn("the disk failed: whether this turn's end is saved is unknown until the session is opened again")?;
        }
        let totals = std::mem::take(&mut self.totals);
        if totals.completions > 0 {
            for line in totals.lines(pen.width()) {
                pen.note(&line)?;
            }
        }
        if totals.thinking_capped {
            pen.note("the thinking was closed at its limit of tokens")?;
        }
        if totals.lost_n > 0 && !std::mem::take(&mut self.loss_told) {
            let lost = totals.lost_n;
            pen.warn(&format!(
                "{lost} tokens were evaluated again: the model server no longer had them in its cache"
            ))?;
        }
        Ok(())
    }
}

/// Shows what would run.
fn ask(pen: &mut Pen, wanted: &ApprovalWanted) -> io::Result<()> {
    pen.end_answer()?;
    question(wanted).iter().try_for_each(|line| pen.say(line))
}

impl Totals {
    /// The status line, broken between its parts where it is too long.
    fn lines(&self, width: usize) -> Vec<String> {
        let Self { cache_n, prompt_n, predicted_n, context_n, n_ctx, millis, .. } = self;
        let context = match context_n.saturating_mul(100).checked_div(*n_ctx) {
            Some(percent) => format!("context {percent} % of {n_ctx}"),
            None => format!("context {context_n}"),
        };
        let parts = [
            format!("{cache_n} from cache"),
            format!("{prompt_n} evaluated"),
            format!("{predicted_n} generated"),
            context,
            format!("{}.{} s", millis / 1000, millis % 1000 / 100),
        ];
        text::parts(parts, " · ", width)
    }
}

/// A tool call as one line.
#[must_use]
pub fn tool_line(name: &str, arguments: &str) -> String {
    let (name, arguments) = call::shown(name, arguments);
    format!("⚙ {} {}", text::line(&name), text::line(&arguments))
}

/// A finished tool call as one line.
#[must_use]
pub fn tool_result_line(name: &str, arguments: &str, outcome: ToolOutcome, content: &str) -> String {
    let how = call::outcome_name(outcome).replace('_', " ");
    // what went wrong is worth more of the line than the arguments
    let (name, arguments) = call::shown(name, arguments);
    let shown = if outcome == ToolOutcome::Ok { &arguments } else { content };
    format!("⚙ {} {how}: {}", text::line(&name), text::line(shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pen::tests as pens;
    use crate::proto::{Finish, Usage};

    fn event(turn: u64, kind: EventKind) -> Event {
        Event { session: "s1".parse().unwrap(), turn: Some(TurnId(turn)), seq: 1, kind }
    }

    fn text(piece: &str) -> EventKind {
        EventKind::Text { text: piece.to_owned() }
    }

    fn usage(lost_n: u64) -> EventKind {
        EventKind::Usage {
            usage: Usage { cache_n: 1200, prompt_n: 14, predicted_n: 7, ..Usage::default() },
            new_n: 13,
            lost_n,
            context_n: 1221,
            n_ctx: 2048,
            finish: Finish::Stop,
            millis: 3210,
        }
    }

    fn end(outcome: TurnOutcome, detail: Option<&str>) -> EventKind {
        EventKind::TurnEnd { outcome, detail: detail.map(str::to_owned), certainty: Certainty::Durable }
    }

    #[test]
    fn a_turn_with_a_tool_and_a_loss() {
        let (mut pen, out, err) = pens::pen(pens::PLAIN, pens::PLAIN);
        let mut view = View::default();
        view.own_turn(TurnId(2));
        for kind in [
            EventKind::TurnStart { text: "hello".into(), retry: false },
            EventKind::Queued { place: 1 },
            EventKind::Waiting { why: "the model is loading".into() },
            EventKind::Waiting { why: "the model is loading".into() },
            EventKind::Prefill { done: 10, total: 20, cached: 5 },
            EventKind::Reasoning { text: "think".into() },
            text("I look."),
            usage(0),
            EventKind::ToolCall { call: CallId(1), name: "ls".into(), arguments: "{\"p\":\n1}".into() },
            EventKind::ToolResult {
                call: CallId(1),
                name: "ls".into(),
                outcome: ToolOutcome::Ok,
                content: "a\nb".into(),
            },
            text("Two\n"),
            usage(300),
            end(TurnOutcome::Done, None),
        ] {
            view.event(&mut pen, &event(2, kind)).unwrap();
        }
        assert_eq!(out.text(), "I look.\nTwo\n");
        insta::assert_snapshot!(err.text(), @r#"
        waiting: 1 turn ahead
        waiting: the model is loading
        think
        ⚙ ls ok: {"p":␊1}
        2400 from cache · 28 evaluated
        14 generated · context 59 % of 2048
        6.4 s
        300 tokens were evaluated again: the model server no longer had them in its cache
        "#);
    }

    #[test]
    fn a_snapshot_goes_on_where_the_stream_stopped() {
        let (mut pen, out, err) = pens::pen(pens::PLAIN, pens::PLAIN);
        let mut view = View::default();
        let snapshot = |text: &str| EventKind::Snapshot {
            snapshot: Snapshot {
                phase: Phase::Generating,
                user_text: "question".into(),
                text: text.into(),
                ..Snapshot::default()
            },
        };
        view.event(&mut pen, &event(1, snapshot("One"))).unwrap();
        view.event(&mut pen, &event(1, text(" two"))).unwrap();
        view.event(&mut pen, &event(1, snapshot("One two three"))).unwrap();
        view.event(&mut pen, &event(1, text(" four"))).unwrap();
        assert_eq!(out.text(), "One two three four");
        view.event(&mut pen, &event(1, snapshot("Another"))).unwrap();
        assert_eq!(out.text(), "One two three four\nAnother");
        assert!(err.text().contains("» question\n"), "{}", err.text());
        assert!(err.text().contains("some of the stream was missed"));
    }

    #[test]
    fn other_endings_say_why() {
        let (mut pen, _, err) = pens::pen(pens::PLAIN, pens::PLAIN);
        let mut view = View::default();
        view.own_turn(TurnId(1));
        view.event(&mut pen, &event(1, end(TurnOutcome::Failed, Some("the server\nstopped\x1b[2J"))))
            .unwrap();
        view.event(&mut pen, &event(1, end(TurnOutcome::Limit, Some("turn_tokens")))).unwrap();
        view.event(&mut pen, &event(1, end(TurnOutcome::Cancelled, None))).unwrap();
        assert_eq!(
            err.text(),
            "failed: the server␊stopped␛[2J\nstopped at a limit: turn_tokens\ncancelled\n"
        );
    }
}
