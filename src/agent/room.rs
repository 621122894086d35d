//! How much of the context is left.

use crate::config::Limits;
use crate::model::{ModelError, Server, Special};
use crate::proto::{BaselineContent, Framing, TokenId, count};

use super::error::AgentError;
use super::replay::{OwnedPiece, Prompt};
use super::summary::new_room;

/// What the context is kept for, in tokens: each is what `[limits]` says, or a share of what the head leaves
/// where the context is small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// For the answer.
    pub(super) reserve: u64,
    /// For a summary.
    pub(super) summary: u64,
    /// For turns that a new epoch keeps word for word.
    pub(super) kept: u64,
}

impl Shares {
    /// Of a context of `n_ctx` tokens, whose prompts have a head of `head`.
    pub(super) fn of(limits: &Limits, n_ctx: u64, head: usize) -> Self {
        let free = n_ctx.saturating_sub(count(head));
        Self {
            reserve: limits.context_reserve_tokens.min(free / 4).max(1),
            summary: limits.summary_tokens.min(free / 6),
            kept: limits.kept_tokens.min(free / 4),
        }
    }
}

/// Tokenises what is new.
pub(super) async fn tokenize(server: &Server, pieces: &[OwnedPiece]) -> Result<Vec<TokenId>, ModelError> {
    let mut ids = Vec::new();
    for piece in pieces {
        match piece {
            OwnedPiece::Ids(fragment) => ids.extend_from_slice(fragment),
            // special tokens off: `<|im_end|>` typed by someone is text
            OwnedPiece::Text(text) => ids.extend(server.tokenize(text, Special::Plain).await?),
        }
    }
    Ok(ids)
}

/// What a next message's prompt has beside the message itself.
pub(super) struct Taken {
    /// Tokens that are known: the list, and the framing around the message.
    known: u64,
    /// What is pending before it.
    pending: Vec<OwnedPiece>,
}

impl Taken {
    /// As the prompt that an epoch's records make says.
    pub(super) fn of(framing: &Framing, Prompt { list, new, .. }: Prompt<'_>) -> Self {
        let frame = [&framing.user_open, &framing.user_close, &framing.stand_in_ids].map(|ids| ids.len());
        let known = count(frame.into_iter().fold(list.len(), usize::saturating_add));
        Self { known, pending: new.into_iter().map(OwnedPiece::from).collect() }
    }

    /// At most so many tokens, since a token stands for at least one byte.
    fn most(&self) -> u64 {
        let most = |piece: &OwnedPiece| match piece {
            OwnedPiece::Ids(ids) => count(ids.len()),
            // some tokenisers put a space before a text
            OwnedPiece::Text(text) => count(text.len()).saturating_add(1),
        };
        self.pending.iter().map(most).fold(self.known, u64::saturating_add)
    }
}

/// Refuses a message that cannot fit beside what is `taken`, nor in a new epoch where one begins by itself,
/// before anything is saved.
///
/// Most messages are known to fit by their bytes, without asking the server, and are taken even while it is
/// away.
pub(super) async fn check_message(
    server: &Server,
    text: &str,
    taken: &Taken,
    baseline: &BaselineContent,
    (limits, known_n_ctx): (&Limits, u64),
) -> Result<(), AgentError> {
    let head = baseline.framing.head.len();
    let reserve = |n_ctx| Shares::of(limits, n_ctx, head).reserve;
    let left = known_n_ctx.saturating_sub(reserve(known_n_ctx)).saturating_sub(taken.most());
    if count(text.len()).saturating_add(1) <= left {
        return Ok(());
    }
    let counted = async {
        // the server may have been given a larger context meanwhile
        let n_ctx = server.identity().await?.n_ctx;
        let pending = count(tokenize(server, &taken.pending).await?.len());
        let used = taken.known.saturating_add(pending).saturating_add(reserve(n_ctx));
        let frame = count(baseline.framing.user_close.len());
        let anew = new_room(server, &baseline.framing, limits, n_ctx).await?.saturating_sub(frame);
        Ok((
            n_ctx,
            n_ctx.saturating_sub(used),
            anew,
            count(server.tokenize(text, Special::Plain).await?.len()),
        ))
    };
    match counted.await {
        Ok((n_ctx, left, anew, tokens)) => {
            let by_itself = limits.turn_rebases > 0;
            if tokens <= left || (by_itself && tokens <= anew) {
                return Ok(());
            }
            let left = if by_itself { left.max(anew) } else { left };
            Err(AgentError::DoesNotFit { tokens, left, n_ctx, rebase: tokens <= anew })
        }
        Err(e) => {
            let e: ModelError = e;
            Err(AgentError::CannotCount { bytes: text.len(), left, why: e.to_string() })
        }
    }
}
