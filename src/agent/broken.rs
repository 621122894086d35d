//! The end of a turn that the daemon did not live to end.

use crate::proto::{
    AssistantMessage, Finish, LogRecord, Sequence, Timestamp, ToolOutcome, ToolResult, TurnEnd, TurnId,
    TurnOutcome,
};

/// The records that close an open turn, in order; none when no turn is open. Calls without a result get
/// one that says that nothing is known: a tool is never run a second time by itself. `why` is why the turn has
/// no end, when that is known.
#[must_use]
pub fn closing_records(
    sequence: &Sequence,
    records: &[LogRecord],
    now: Timestamp,
    why: Option<String>,
) -> Vec<LogRecord> {
    let Some(turn) = sequence.open_turn() else {
        return Vec::new();
    };
    let during = why.as_deref().unwrap_or("the daemon stopped while this tool ran");
    let mut closing = answers(sequence, turn, now, during);
    let (outcome, detail) = if answered(records) {
        (TurnOutcome::Done, None)
    } else {
        let why = why.unwrap_or_else(|| {
            "the daemon stopped, or the disk refused, in the middle of the turn".to_owned()
        });
        (TurnOutcome::Failed, Some(format!("interrupted: {why}")))
    };
    closing.push(LogRecord::TurnEnd(TurnEnd { time: now, turn, outcome, detail, millis: None }));
    closing
}

/// A result for each call of an open turn that has none. `why` says why nothing is known of one that was
/// started.
#[must_use]
pub fn answers(sequence: &Sequence, turn: TurnId, now: Timestamp, why: &str) -> Vec<LogRecord> {
    let answer = |(call, name, started)| {
        let (outcome, content) = if started {
            let content = format!("Interrupted: {why}, so its outcome is unknown. It was not run again.");
            (ToolOutcome::Interrupted, content)
        } else {
            (ToolOutcome::Error, "Not run: the turn ended before this tool was started.".to_owned())
        };
        LogRecord::ToolResult(ToolResult {
            time: now,
            turn,
            call,
            name,
            outcome,
            content,
            truncated_bytes: 0,
            millis: 0,
        })
    };
    sequence.unanswered().into_iter().map(answer).collect()
}

/// Whether the newest turn has its answer, and lacks only its end.
fn answered(records: &[LogRecord]) -> bool {
    let last = records.iter().rev().find(|record| {
        matches!(
            record,
            LogRecord::AssistantMessage(_) | LogRecord::UserMessage(_) | LogRecord::ToolResult(_)
        )
    });
    matches!(last, Some(LogRecord::AssistantMessage(AssistantMessage { finish: Finish::Stop, .. })))
}
