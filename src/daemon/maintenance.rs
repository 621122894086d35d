//! temporary
use crate::config::Config;
use crate::proto::SessionId;
use std::process::ExitCode;
/// tmp
pub fn verify(_: &Config, _: Option<&SessionId>) -> ExitCode {
    ExitCode::FAILURE
}
/// tmp
pub fn repair(_: &Config, _: &SessionId, _: bool) -> ExitCode {
    ExitCode::FAILURE
}
/// tmp
pub fn recover(_: &Config, _: &SessionId, _: Option<SessionId>) -> ExitCode {
    ExitCode::FAILURE
}
