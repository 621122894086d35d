//! Token counts: of one completion, of a turn, and what the cache should have held.

use serde::{Deserialize, Serialize};

use super::{Finish, LogRecord, TurnId, TurnOutcome};

/// What one completion cost, in tokens, as the model server counted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Taken from the KV cache.
    pub cache_n: u64,
    /// Evaluated.
    pub prompt_n: u64,
    /// Generated, the end-of-generation token included.
    pub predicted_n: u64,
    /// Generated inside the model's reasoning, tags excluded.
    pub reasoning_tokens: u64,
    /// Whether reasoning was closed by the limit.
    pub thinking_capped: bool,
}

/// One row of `bxctl usage`: the completions of one turn added up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnUsage {
    /// The turn.
    pub turn: TurnId,
    /// Tokens taken from the KV cache.
    pub cache_n: u64,
    /// Tokens evaluated.
    pub prompt_n: u64,
    /// Tokens generated.
    pub predicted_n: u64,
    /// Tokens that were new: what was added to the prompt.
    pub new_n: u64,
    /// Tokens evaluated again, although an earlier completion had left them in the cache.
    pub lost_n: u64,
    /// Tokens generated inside reasoning.
    pub reasoning_tokens: u64,
    /// Whether reasoning was closed by the limit in any completion.
    pub thinking_capped: bool,
    /// Model requests that ended in a recorded completion.
    pub completions: u64,
    /// How long the turn took; of an interrupted turn, as far as its completions tell.
    pub seconds: f64,
    /// How it ended; absent while it runs or after an interruption.
    pub outcome: Option<TurnOutcome>,
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// How many tokens the slot's cache holds after a completion whose list (prompt and kept ids together)
/// is `list` long: the token sampled last was never decoded, unless it was the end-of-generation
/// token, which is not part of the list.
#[must_use]
pub fn cached_after(list: u64, finish: Finish) -> u64 {
    match finish {
        Finish::Stop | Finish::ToolCalls => list,
        Finish::Length | Finish::Cancelled => list.saturating_sub(1),
    }
}

/// Tokens of context that an epoch's records use, the head of `head` tokens included.
#[must_use]
pub fn context_tokens(head: u64, records: &[LogRecord]) -> u64 {
    let added = |record: &LogRecord| match record {
        LogRecord::AssistantMessage(m) => count(m.prompt_ids.len()).saturating_add(count(m.kept_ids().len())),
        _ => 0,
    };
    let sum = records.iter().map(added).fold(0u64, u64::saturating_add);
    if sum == 0 { 0 } else { sum.saturating_add(head) }
}

/// The rows of `bxctl usage` for one epoch's records, oldest first. `head` is the length in tokens of
/// the baseline's head, which counts as new in the epoch's first completion.
#[must_use]
pub fn turn_usages(head: u64, records: &[LogRecord]) -> Vec<TurnUsage> {
    let mut rows: Vec<TurnUsage> = Vec::new();
    let mut list = 0u64;
    let mut cached = 0u64;
    let mut expected = 0u64;
    for record in records {
        match record {
            LogRecord::UserMessage(m) => rows.push(TurnUsage {
                turn: m.turn,
                cache_n: 0,
                prompt_n: 0,
                predicted_n: 0,
                new_n: 0,
                lost_n: 0,
                reasoning_tokens: 0,
                thinking_capped: false,
                completions: 0,
                seconds: 0.0,
                outcome: None,
            }),
            LogRecord::AssistantMessage(m) => {
                let head = if list == 0 { head } else { 0 };
                let new = head.saturating_add(count(m.prompt_ids.len()));
                expected = cached;
                list = list.saturating_add(new).saturating_add(count(m.kept_ids().len()));
                cached = cached_after(list, m.finish);
                if let Some(row) = rows.last_mut() {
                    row.new_n = row.new_n.saturating_add(new);
                    row.completions = row.completions.saturating_add(1);
                }
            }
            LogRecord::Usage(u) => {
                if let Some(row) = rows.last_mut() {
                    row.cache_n = row.cache_n.saturating_add(u.cache_n);
                    row.prompt_n = row.prompt_n.saturating_add(u.prompt_n);
                    row.predicted_n = row.predicted_n.saturating_add(u.predicted_n);
                    row.reasoning_tokens = row.reasoning_tokens.saturating_add(u.reasoning_tokens);
                    row.thinking_capped |= u.thinking_capped;
                    row.lost_n = row.lost_n.saturating_add(expected.saturating_sub(u.cache_n));
                    row.seconds += std::time::Duration::from_millis(u.millis).as_secs_f64();
                }
            }
            LogRecord::TurnEnd(end) => {
                if let Some(row) = rows.last_mut() {
                    row.outcome = Some(end.outcome);
                    if let Some(millis) = end.millis {
                        row.seconds = std::time::Duration::from_millis(millis).as_secs_f64();
                    }
                }
            }
            _ => {}
        }
    }
    rows
}
