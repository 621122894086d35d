//! temporary
use std::process::ExitCode;
use crate::config::Config;
use crate::proto::SessionId;
/// tmp
pub fn verify(_: &Config, _: Option<&SessionId>) -> ExitCode { ExitCode::FAILURE }
/// tmp
pub fn repair(_: &Config, _: &SessionId, _: bool) -> ExitCode { ExitCode::FAILURE }
/// tmp
pub fn recover(_: &Config, _: &SessionId, _: Option<SessionId>) -> ExitCode { ExitCode::FAILURE }
