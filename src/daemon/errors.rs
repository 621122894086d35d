//! Errors as clients get them.

use crate::agent::AgentError;
use crate::proto::{ErrorBody, ErrorCode};
use crate::store::SessionError;

/// The answer to a request that the store refused.
pub(super) fn of_store(error: &SessionError) -> ErrorBody {
    let code = match error {
        SessionError::Exists(_) => ErrorCode::Exists,
        SessionError::NotFound(_) => ErrorCode::NotFound,
        SessionError::Locked(_) => ErrorCode::Locked,
        SessionError::Ambiguous { candidates, .. } => {
            let mut body = ErrorBody::new(ErrorCode::Ambiguous, error.to_string());
            body.candidates.clone_from(candidates);
            return body;
        }
        SessionError::Io(..) => ErrorCode::Disk,
        SessionError::Torn { .. } | SessionError::Baseline(_) => ErrorCode::Damaged,
        SessionError::Poisoned(_) => ErrorCode::Poisoned,
        SessionError::TooLarge { .. } => ErrorCode::Limit,
        SessionError::Encode(_) | SessionError::Sequence { .. } => ErrorCode::Internal,
    };
    ErrorBody::new(code, error.to_string())
}

/// The answer to a request that the agent refused.
pub(super) fn of_agent(error: &AgentError) -> ErrorBody {
    let code = match error {
        AgentError::Store(e) => return of_store(e),
        AgentError::EmptyMessage => ErrorCode::BadRequest,
        AgentError::Busy(..) => ErrorCode::Busy,
        AgentError::Nothing(..) => ErrorCode::Nothing,
        AgentError::DoesNotFit { .. } => ErrorCode::Limit,
        AgentError::CannotCount { .. } | AgentError::OtherModel(_) | AgentError::Model(_) => ErrorCode::Model,
        AgentError::ShuttingDown => ErrorCode::ShuttingDown,
    };
    ErrorBody::new(code, error.to_string())
}
