//! A turn for an editor: its events as updates, its end as the answer.

use std::future::pending;
use std::path::Path;
use std::pin::Pin;

use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, EmbeddedResourceResource, PermissionOption, PermissionOptionKind,
    PromptRequest, PromptResponse, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SessionUpdate, StopReason, ToolCall, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields,
};
use agent_client_protocol::{Client as Editor, Error};
use serde_json::Value;

use super::history::{call_content, call_name, call_status, chunk};
use super::{Result, connect, failed, id, notify, unexpected};
use crate::channel::Client;
use crate::cli::asking::{Said, said};
use crate::cli::call;
use crate::cli::follow::is_idle;
use crate::config::Limit;
use crate::proto::{
    ApprovalWanted, CallId, Decision, Event, EventKind, Reply, Request, SessionId, Snapshot, TurnId,
    TurnOutcome,
};

const ALLOW: &str = "allow";
const DENY: &str = "deny";

type Asked = Pin<Box<dyn Future<Output = Result<RequestPermissionResponse>> + Send>>;

/// A turn that is told to an editor.
struct Telling<'a> {
    editor: &'a ConnectionTo<Editor>,
    session: SessionId,
    turn: TurnId,
    /// What of the running completion the editor has.
    told: Snapshot,
    /// The question that stands, and its answer, which comes once.
    asked: Option<(CallId, Asked)>,
}

/// Sends the message, and tells of the turn until its end.
pub async fn turn(
    socket: &Path,
    editor: &ConnectionTo<Editor>,
    request: PromptRequest,
) -> Result<PromptResponse> {
    let session = id(&request.session_id)?;
    let text = message(request.prompt)?;
    let mut daemon = connect(socket).await?;
    let attach = Request::Attach { session: session.clone(), after: None, approves: true };
    let attached = daemon.request(attach).await;
    if !matches!(attached, Ok(Reply::Attached { .. })) {
        return Err(unexpected(attached));
    }
    let turn = match daemon.request(Request::Send { session: session.clone(), text }).await {
        Ok(Reply::Turn { turn, .. }) => turn,
        other => return Err(unexpected(other)),
    };
    let mut telling = Telling { editor, session, turn, told: Snapshot::default(), asked: None };
    loop {
        let answer = tokio::select! {
            event = daemon.next_event() => {
                if let Some(reason) = telling.event(event.map_err(failed)?)? {
                    return Ok(PromptResponse::new(reason));
                }
                continue;
            }
            answer = answered(&mut telling.asked) => answer,
        };
        // it stands until an event says that it is over: what was sent before that asks nothing again
        telling.asked = Some((answer.0, Box::pin(pending())));
        decide(&mut daemon, &telling.session, answer).await?;
    }
}

async fn answered(asked: &mut Option<(CallId, Asked)>) -> (CallId, Result<RequestPermissionResponse>) {
    match asked {
        Some((call, answer)) => (*call, answer.await),
        None => pending().await,
    }
}

/// Only a clear yes allows. An editor that gives up has asked for the turn's end, or is gone; then somebody else may
/// decide.
async fn decide(
    daemon: &mut Client,
    session: &SessionId,
    (call, answer): (CallId, Result<RequestPermissionResponse>),
) -> Result<()> {
    let decision = match answer.map(|answer| answer.outcome) {
        Ok(RequestPermissionOutcome::Selected(selected)) if &*selected.option_id.0 == ALLOW => {
            Decision::Allow
        }
        Ok(RequestPermissionOutcome::Selected(_)) => Decision::Deny,
        _ => return Ok(()),
    };
    // that somebody was faster is told by the events
    let _ = daemon.request(Request::Approve { session: session.clone(), call, decision }).await;
    Ok(())
}

/// The text of a prompt.
fn message(blocks: Vec<ContentBlock>) -> Result<String> {
    let mut text = String::new();
    for block in blocks {
        let piece = match block {
            ContentBlock::Text(piece) => piece.text,
            ContentBlock::ResourceLink(link) => format!("[{}]({})", link.name, link.uri),
            ContentBlock::Resource(resource) => match resource.resource {
                EmbeddedResourceResource::TextResourceContents(contents) => {
                    format!("\n{}:\n```\n{}\n```\n", contents.uri, contents.text)
                }
                _ => return Err(only_text()),
            },
            _ => return Err(only_text()),
        };
        text.push_str(&piece);
    }
    Ok(text)
}

fn only_text() -> Error {
    Error::invalid_params().data(serde_json::json!("the model reads text only"))
}

impl Telling<'_> {
    fn update(&self, update: SessionUpdate) -> Result<()> {
        notify(self.editor, &self.session, update)
    }

    /// Tells of an event; gives the reason when the turn has ended.
    fn event(&mut self, event: Event) -> Result<Option<StopReason>> {
        match &event.kind {
            // what the turn did meanwhile is in the log, and was missed
            kind if is_idle(kind) => {
                return Err(failed(
                    "the end of the turn was missed; load the session again to see all of it",
                ));
            }
            _ if event.turn != Some(self.turn) || event.session != self.session => return Ok(None),
            EventKind::Text { text } => self.update(SessionUpdate::AgentMessageChunk(chunk(text)))?,
            EventKind::Reasoning { text } => self.update(SessionUpdate::AgentThoughtChunk(chunk(text)))?,
            EventKind::ToolCall { call, name, arguments } => self.call(*call, name, arguments)?,
            EventKind::ToolResult { call, outcome, content, .. } => {
                let fields =
                    ToolCallUpdateFields::new().status(call_status(*outcome)).content(call_content(content));
                self.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call_name(*call), fields)))?;
            }
            EventKind::Snapshot { snapshot } => self.snapshot(snapshot)?,
            EventKind::TurnEnd { outcome, detail, .. } => {
                return ended(*outcome, detail.as_deref()).map(Some);
            }
            _ => {}
        }
        match said(&event.kind) {
            Said::Asked(wanted) => self.ask(wanted),
            Said::Over => self.asked = None,
            Said::Nothing => {}
        }
        self.told.apply(&event.kind);
        Ok(None)
    }

    fn call(&self, call: CallId, name: &str, arguments: &str) -> Result<()> {
        let (name, arguments) = call::shown(name, arguments);
        let call = ToolCall::new(call_name(call), name)
            .status(ToolCallStatus::InProgress)
            .raw_input(raw_input(&arguments));
        self.update(SessionUpdate::ToolCall(call))
    }

    /// Asks the editor, which asks its user, if it has not done so.
    fn ask(&mut self, wanted: &ApprovalWanted) {
        let ApprovalWanted { call, name, arguments } = wanted;
        if self.asked.as_ref().is_some_and(|(asked, _)| asked == call) {
            return;
        }
        let fields = ToolCallUpdateFields::new().title(name.clone()).raw_input(raw_input(arguments));
        let options = vec![
            PermissionOption::new(ALLOW, "Allow", PermissionOptionKind::AllowOnce),
            PermissionOption::new(DENY, "Deny", PermissionOptionKind::RejectOnce),
        ];
        let update = ToolCallUpdate::new(call_name(*call), fields);
        let request = RequestPermissionRequest::new(self.session.to_string(), update, options);
        self.asked = Some((*call, Box::pin(self.editor.send_request(request).block_task())));
    }

    /// Some events were missed: what is new of the running answer is told.
    fn snapshot(&mut self, now: &Snapshot) -> Result<()> {
        self.more(&now.reasoning, &self.told.reasoning, SessionUpdate::AgentThoughtChunk)?;
        self.more(&now.text, &self.told.text, SessionUpdate::AgentMessageChunk)?;
        self.told.clone_from(now);
        Ok(())
    }

    fn more(&self, now: &str, told: &str, update: fn(ContentChunk) -> SessionUpdate) -> Result<()> {
        match now.strip_prefix(told).unwrap_or(now) {
            "" => Ok(()),
            new => self.update(update(chunk(new))),
        }
    }
}

/// Arguments as they are meant; as they are written where that is no JSON.
fn raw_input(arguments: &str) -> Value {
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(arguments))
}

fn ended(outcome: TurnOutcome, detail: Option<&str>) -> Result<StopReason> {
    match outcome {
        TurnOutcome::Done => Ok(StopReason::EndTurn),
        TurnOutcome::Cancelled => Ok(StopReason::Cancelled),
        TurnOutcome::Limit if detail.is_some_and(|d| d.contains(Limit::TurnRequests.info().key)) => {
            Ok(StopReason::MaxTurnRequests)
        }
        TurnOutcome::Limit => Ok(StopReason::MaxTokens),
        TurnOutcome::Failed => Err(failed(detail.unwrap_or("the turn failed"))),
    }
}
