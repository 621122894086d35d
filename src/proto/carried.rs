//! What an epoch takes over from the one before.

use serde::{Deserialize, Serialize};

use super::{Timestamp, TokenIds, TurnId, Usage};

/// The beginning of an epoch after the first: a summary of what is left out, and the last turns as they were.
///
/// It stands right behind `session_start`. Its ids alone make the prompt; the texts are for people, and for
/// an epoch whose model has other ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carried {
    /// When.
    pub time: Timestamp,
    /// The newest turn, when it goes on in this epoch: it has no whole answer yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub turn: Option<TurnId>,
    /// What stands for all that is not in `exchanges`; absent when nothing is left out.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub summary: Option<Summary>,
    /// The last turns, oldest first; the one that goes on is the last of them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub exchanges: Vec<Exchange>,
    /// Where the prompt stands after `prompt_ids`.
    pub ends: CarriedEnd,
    /// All that stands in the prompt between the baseline's head and what comes next.
    pub prompt_ids: TokenIds,
}

/// A summary of a conversation, as the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The text.
    pub text: String,
    /// The last turn that it covers.
    pub through: TurnId,
    /// What it cost; absent when it was taken over from an earlier epoch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cost: Option<SummaryCost>,
}

/// What a summary cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryCost {
    /// Tokens that were new in its prompt.
    pub new_n: u64,
    /// Tokens evaluated again, although they should have been in the cache.
    pub lost_n: u64,
    /// What the model server counted.
    pub usage: Usage,
    /// How long it took, by a clock that cannot jump.
    pub millis: u64,
}

/// A turn without its tools and thoughts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Which.
    pub turn: TurnId,
    /// What the user said.
    pub user: String,
    /// What the assistant said; nothing when it has not answered.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub assistant: String,
}

/// Where the prompt stands after what was carried over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarriedEnd {
    /// Inside the first user message: the next one's text follows at once.
    Open,
    /// The assistant is asked to speak.
    Asked,
    /// The assistant has spoken.
    Said,
}
