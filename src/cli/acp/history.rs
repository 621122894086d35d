//! A session that is loaded: what was said, told to the editor again.

use std::collections::BTreeMap;
use std::path::Path;

use agent_client_protocol::Client as Editor;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, SessionId as AcpId, SessionUpdate, TextContent, ToolCall, ToolCallContent,
    ToolCallStatus,
};

use super::{Result, connect, id, notify, unexpected};
use crate::cli::call;
use crate::proto::{LogRecord, Reply, Request, SessionId, ToolOutcome};

/// Text as an update has it.
pub fn chunk(text: &str) -> ContentChunk {
    ContentChunk::new(ContentBlock::Text(TextContent::new(text)))
}

/// The name of a call, unique in its session.
pub fn call_name(call: crate::proto::CallId) -> String {
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
    let mut daemon = connect(socket).await?;
    let opened = daemon.request(Request::Open { session: session.clone() }).await;
    if !matches!(opened, Ok(Reply::Session { .. })) {
        return Err(unexpected(opened));
    }
    let mut calls = BTreeMap::new();
    let mut from = 0;
    loop {
        let page = daemon.request(Request::Export { session: session.clone(), from, turn: None }).await;
        let (records, next) = match page {
            Ok(Reply::Records { records, next }) => (records, next),
            other => return Err(unexpected(other)),
        };
        for record in records {
            tell(editor, &session, record, &mut calls)?;
        }
        match next {
            Some(next) if next > from => from = next,
            _ => return Ok(()),
        }
    }
}

fn tell(
    editor: &ConnectionTo<Editor>,
    session: &SessionId,
    record: LogRecord,
    calls: &mut BTreeMap<crate::proto::CallId, String>,
) -> Result<()> {
    match record {
        LogRecord::UserMessage(m) => notify(editor, session, SessionUpdate::UserMessageChunk(chunk(&m.text))),
        LogRecord::AssistantMessage(m) => {
            if let Some(reasoning) = &m.reasoning {
                notify(editor, session, SessionUpdate::AgentThoughtChunk(chunk(reasoning)))?;
            }
            calls.extend(m.tool_calls.into_iter().map(|call| (call.call, call.arguments)));
            if m.text.is_empty() {
                return Ok(());
            }
            notify(editor, session, SessionUpdate::AgentMessageChunk(chunk(&m.text)))
        }
        LogRecord::ToolResult(r) => {
            let (name, _) = call::shown(&r.name, &calls.remove(&r.call).unwrap_or_default());
            let content = ToolCallContent::from(ContentBlock::Text(TextContent::new(r.content)));
            let call =
                ToolCall::new(call_name(r.call), name).status(call_status(r.outcome)).content(vec![content]);
            notify(editor, session, SessionUpdate::ToolCall(call))
        }
        _ => Ok(()),
    }
}
