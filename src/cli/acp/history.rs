//! A session that is loaded: what was said, told to the editor again.

use std::path::Path;

use agent_client_protocol::Client as Editor;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, SessionId as AcpId, SessionUpdate, TextContent, ToolCall, ToolCallContent,
    ToolCallStatus,
};

use super::{Result, failed, id, notify};
use crate::cli::call;
use crate::cli::error::CliError;
use crate::cli::link::Link;
use crate::cli::show::each_record;
use crate::cli::transcript::Calls;
use crate::proto::{CallId, LogRecord, SessionId, ToolOutcome};

/// Text as an update has it.
pub fn chunk(text: &str) -> ContentChunk {
    ContentChunk::new(block(text))
}

fn block(text: &str) -> ContentBlock {
    ContentBlock::Text(TextContent::new(text))
}

/// What a tool gave back, as a call has it.
pub fn call_content(text: &str) -> Vec<ToolCallContent> {
    vec![ToolCallContent::from(block(text))]
}

/// The name of a call, unique in its session.
pub fn call_name(call: CallId) -> String {
    format!("call-{call}")
}

/// The state of a call that has a result.
pub fn call_status(outcome: ToolOutcome) -> ToolCallStatus {
    match outcome {
        ToolOutcome::Ok => ToolCallStatus::Completed,
        _ => ToolCallStatus::Failed,
    }
}

/// Tells every record of a session.
pub async fn replay(socket: &Path, editor: &ConnectionTo<Editor>, session: &AcpId) -> Result<()> {
    let session = id(session)?;
    let mut link = Link::connect(socket.to_owned()).await.map_err(failed)?;
    link.open(&session).await.map_err(failed)?;
    let mut calls = Calls::default();
    each_record(&mut link, &session, None, |record| {
        tell(editor, &session, record, &mut calls).map_err(|e| CliError::Failed(e.to_string()))
    })
    .await
    .map_err(failed)
}

fn tell(
    editor: &ConnectionTo<Editor>,
    session: &SessionId,
    record: &LogRecord,
    calls: &mut Calls,
) -> Result<()> {
    match record {
        LogRecord::UserMessage(m) => notify(editor, session, SessionUpdate::UserMessageChunk(chunk(&m.text))),
        LogRecord::AssistantMessage(m) => {
            if let Some(reasoning) = &m.reasoning {
                notify(editor, session, SessionUpdate::AgentThoughtChunk(chunk(reasoning)))?;
            }
            calls.remember(m);
            if m.text.is_empty() {
                return Ok(());
            }
            notify(editor, session, SessionUpdate::AgentMessageChunk(chunk(&m.text)))
        }
        LogRecord::ToolResult(r) => {
            let (name, _) = call::shown(&r.name, &calls.arguments(r));
            let call = ToolCall::new(call_name(r.call), name)
                .status(call_status(r.outcome))
                .content(call_content(&r.content));
            notify(editor, session, SessionUpdate::ToolCall(call))
        }
        _ => Ok(()),
    }
}
