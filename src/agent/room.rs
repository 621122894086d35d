//! How much of the context is left.

use crate::model::{ModelError, Server, Special};
use crate::proto::{BaselineContent, LogRecord, TokenId};

use super::error::AgentError;
use super::replay::{OwnedPiece, Piece, replay};

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
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

/// How many tokens a next message's prompt has at most, without the message itself.
pub(super) fn used(baseline: &BaselineContent, records: &[LogRecord]) -> u64 {
    let framing = &baseline.framing;
    let prompt = replay(framing, records);
    let pending = prompt.new.iter().map(|piece| match piece {
        Piece::Ids(ids) => ids.len(),
        Piece::Text(text) => text.len(),
    });
    let frame = [&framing.user_open, &framing.user_close, &framing.stand_in_ids].map(|ids| ids.len());
    count(pending.chain(frame).chain([prompt.list.len()]).fold(0, usize::saturating_add))
}

/// Refuses a message that cannot fit after `used` tokens, before anything is saved.
///
/// A token stands for at least one byte, so most messages are known to fit without asking the server,
/// and are taken even while it is away.
pub(super) async fn check_message(
    server: &Server,
    text: &str,
    used: u64,
    known_n_ctx: u64,
    reserve: u64,
) -> Result<(), AgentError> {
    let left_of = |n_ctx: u64| n_ctx.saturating_sub(reserve).saturating_sub(used);
    let left = left_of(known_n_ctx);
    // one more than its bytes: some tokenisers put a space before a text
    if count(text.len()).saturating_add(1) <= left {
        return Ok(());
    }
    // the server may have been given a larger context meanwhile
    let counted =
        async { Ok((server.identity().await?.n_ctx, server.tokenize(text, Special::Plain).await?)) };
    match counted.await {
        Ok((n_ctx, ids)) if count(ids.len()) <= left_of(n_ctx) => Ok(()),
        Ok((n_ctx, ids)) => {
            Err(AgentError::DoesNotFit { tokens: count(ids.len()), left: left_of(n_ctx), n_ctx })
        }
        Err(e) => {
            let e: ModelError = e;
            Err(AgentError::CannotCount { bytes: text.len(), left, why: e.to_string() })
        }
    }
}
