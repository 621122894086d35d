//! The end of a turn that the daemon did not live to end.

use crate::proto::{
    AssistantMessage, Finish, LogRecord, Sequence, Timestamp, ToolOutcome, ToolResult, TurnEnd, TurnOutcome,
};

/// The records that close an open turn, in order; none when no turn is open. Calls without a result get
/// one that says that nothing is known: a tool is never run a second time by itself.
#[must_use]
pub fn closing_records(sequence: &Sequence, records: &[LogRecord], now: Timestamp) -> Vec<LogRecord> {
    let Some(turn) = sequence.open_turn() else {
        return Vec::new();
    };
    let mut closing = Vec::new();
    for (call, name, started) in sequence.unanswered() {
        let (outcome, content) = if started {
            let why = "Interrupted: the daemon stopped while this tool ran, so its outcome is unknown. It was not run again.";
            (ToolOutcome::Interrupted, why)
        } else {
            (ToolOutcome::Error, "Not run: the daemon stopped before this tool was started.")
        };
        let content = content.to_owned();
        let result =
            ToolResult { time: now, turn, call, name, outcome, content, truncated_bytes: 0, millis: 0 };
        closing.push(LogRecord::ToolResult(result));
    }
    let (outcome, detail) = if answered(records) {
        (TurnOutcome::Done, None)
    } else {
        let why = "interrupted: the daemon stopped in the middle of the turn";
        (TurnOutcome::Failed, Some(why.to_owned()))
    };
    closing.push(LogRecord::TurnEnd(TurnEnd { time: now, turn, outcome, detail, millis: None }));
    closing
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
