//! Token counts: of one completion, of a turn, and what the cache should have held.

use serde::{Deserialize, Serialize};

use super::{Epoch, Finish, LogRecord, TurnId, TurnOutcome};

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

/// One row of `bxctl usage`: the completions of one turn added up, or the summary with which an epoch began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TurnUsage {
    /// The turn; of a summary, the last one that it covers.
    pub turn: TurnId,
    /// Of a summary: the epoch that began with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
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

/// A length in memory as the number that is written down or counted with.
#[must_use]
pub fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
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

/// Adds up the rows of `bxctl usage`, epoch by epoch.
#[derive(Debug, Default)]
pub struct UsageTable {
    rows: Vec<TurnUsage>,
    epoch: Epoch,
    /// What the next completion adds to the prompt beside its own: the head, and what was carried over.
    begun: u64,
    list: u64,
    cached: u64,
    expected: u64,
}

impl UsageTable {
    /// An epoch begins, whose baseline's head has so many tokens: they are new in its first completion.
    pub fn epoch(&mut self, epoch: Epoch, head: u64) {
        (self.epoch, self.begun) = (epoch, head);
        (self.list, self.cached, self.expected) = (0, 0, 0);
    }

    /// Takes the epoch's next record into account.
    pub fn record(&mut self, record: &LogRecord) {
        match record {
            LogRecord::Carried(carried) => {
                self.begun = self.begun.saturating_add(count(carried.prompt_ids.len()));
                let summary = carried.summary.as_ref().and_then(|s| s.cost.map(|cost| (s.through, cost)));
                if let Some((turn, cost)) = summary {
                    let mut row = TurnUsage { turn, epoch: Some(self.epoch), ..TurnUsage::default() };
                    row.add(&cost.usage, cost.millis);
                    (row.new_n, row.lost_n, row.completions) = (cost.new_n, cost.lost_n, 1);
                    self.rows.push(row);
                }
            }
            LogRecord::UserMessage(m) => self.rows.push(TurnUsage { turn: m.turn, ..TurnUsage::default() }),
            LogRecord::AssistantMessage(m) => {
                let new = std::mem::take(&mut self.begun).saturating_add(count(m.prompt_ids.len()));
                self.expected = self.cached;
                self.list = self.list.saturating_add(new).saturating_add(count(m.kept_ids().len()));
                self.cached = cached_after(self.list, m.finish);
                if let Some(row) = self.row(m.turn) {
                    row.new_n = row.new_n.saturating_add(new);
                    row.completions = row.completions.saturating_add(1);
                }
            }
            LogRecord::Usage(u) => {
                let lost = self.expected.saturating_sub(u.cache_n);
                if let Some(row) = self.row(u.turn) {
                    row.add(&u.usage(), u.millis);
                    row.lost_n = row.lost_n.saturating_add(lost);
                }
            }
            LogRecord::TurnEnd(end) => {
                if let Some(row) = self.row(end.turn) {
                    row.outcome = Some(end.outcome);
                    if let Some(millis) = end.millis {
                        row.seconds = std::time::Duration::from_millis(millis).as_secs_f64();
                    }
                }
            }
            _ => {}
        }
    }

    fn row(&mut self, turn: TurnId) -> Option<&mut TurnUsage> {
        self.rows.iter_mut().rev().find(|row| row.epoch.is_none() && row.turn == turn)
    }

    /// The rows, oldest first.
    #[must_use]
    pub fn into_rows(self) -> Vec<TurnUsage> {
        self.rows
    }
}

impl TurnUsage {
    fn add(&mut self, usage: &Usage, millis: u64) {
        self.cache_n = self.cache_n.saturating_add(usage.cache_n);
        self.prompt_n = self.prompt_n.saturating_add(usage.prompt_n);
        self.predicted_n = self.predicted_n.saturating_add(usage.predicted_n);
        self.reasoning_tokens = self.reasoning_tokens.saturating_add(usage.reasoning_tokens);
        self.thinking_capped |= usage.thinking_capped;
        self.seconds += std::time::Duration::from_millis(millis).as_secs_f64();
    }
}
