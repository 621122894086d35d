//! How a turn ends.

use crate::config::{Limit, Limits};
use crate::proto::TurnOutcome;

use super::cancel::StopReason;

/// How a turn ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) outcome: TurnOutcome,
    pub(super) detail: Option<String>,
}

impl End {
    pub(super) fn failed(why: String) -> Self {
        Self { outcome: TurnOutcome::Failed, detail: Some(why) }
    }

    pub(super) fn limit(why: String) -> Self {
        Self { outcome: TurnOutcome::Limit, detail: Some(why) }
    }

    pub(super) fn stopped(reason: StopReason) -> Self {
        let detail = match reason {
            StopReason::Cancelled => None,
            StopReason::Shutdown => Some("loopd was told to end".to_owned()),
        };
        Self { outcome: TurnOutcome::Cancelled, detail }
    }
}

/// Which limit was reached, its value, and how to raise it.
pub(super) fn reached(limits: &Limits, limit: Limit) -> String {
    let info = limit.info();
    format!("the limit of {} {} was reached; {}", limits.get(limit), info.unit, limits.hint(limit))
}
