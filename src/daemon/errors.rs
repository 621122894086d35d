//! Errors as clients get them.

use crate::agent::AgentError;
use crate::proto::{ErrorBody, ErrorCode};
use crate::store::SessionError;

/// The answer to a request that the store refused.
pub(super) fn of_store(error: &SessionError) -> ErrorBody {
    let mut message = error.to_string();
    if error.unknown() {
        message.push_str("; whether what you sent was saved is unknown until the session is opened again");
    }
    let mut body = ErrorBody::new(error.code(), message);
    if let SessionError::Ambiguous { candidates, .. } = error {
        body.candidates.clone_from(candidates);
    }
    body
}

/// The answer to a request that the agent refused.
pub(super) fn of_agent(error: &AgentError) -> ErrorBody {
    let code = match error {
        AgentError::Store(e) => return of_store(e),
        AgentError::EmptyMessage => ErrorCode::BadRequest,
        AgentError::Busy(..) => ErrorCode::Busy,
        AgentError::Nothing(..) | AgentError::NotAsked(..) => ErrorCode::Nothing,
        AgentError::DoesNotFit { .. } => ErrorCode::Limit,
        AgentError::CannotCount { .. }
        | AgentError::OtherModel(_)
        | AgentError::Shifted
        | AgentError::Model(_) => ErrorCode::Model,
        AgentError::ShuttingDown => ErrorCode::ShuttingDown,
    };
    ErrorBody::new(code, error.to_string())
}
