//! `bxctl acp` with the client side of the protocol's own crate, in front of a real daemon with a scripted model.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::schema::{
    CancelNotification, ContentBlock, ImageContent, InitializeRequest, InitializeResponse,
    LoadSessionRequest, NewSessionRequest, PromptRequest, RequestPermissionOutcome, RequestPermissionRequest,
    RequestPermissionResponse, SelectedPermissionOutcome, SessionId, SessionNotification, SessionUpdate,
    StopReason, TextContent,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{AcpAgent, Agent, Client};
use boxmaker::proto::{LogRecord, ToolOutcome};
use support::bench::Bench;
use support::daemon::socket_in;
use support::scripted_server::{Script, installed_call};

/// A tool that must be allowed.
fn note(_: &Path) -> String {
    "[tools]\nunattended = \"wait\"\n[tools.command.note]\nprogram = \"/bin/sh\"\nargs = [\"-c\", \"printf noted\"]\n\
     description = \"Notes.\"\npolicy = \"ask\"\nschema = { type = \"object\" }\n"
        .to_owned()
}

/// What an editor saw, in words.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<String>>>);

impl Seen {
    fn push(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    fn update(&self, update: SessionUpdate) {
        let text = |content: ContentBlock| match content {
            ContentBlock::Text(text) => text.text,
            other => panic!("{other:?}"),
        };
        self.push(match update {
            SessionUpdate::UserMessageChunk(c) => format!("user: {}", text(c.content)),
            SessionUpdate::AgentMessageChunk(c) => format!("agent: {}", text(c.content)),
            SessionUpdate::AgentThoughtChunk(c) => format!("thought: {}", text(c.content)),
            SessionUpdate::ToolCall(c) => format!("call {} {:?} {}", c.title, c.status, c.content.len()),
            SessionUpdate::ToolCallUpdate(c) => format!("update {:?}", c.fields.status.unwrap()),
            other => panic!("{other:?}"),
        });
    }
}

/// Runs an editor that answers questions with `option`.
fn editor<T>(
    bench: &Bench,
    option: &'static str,
    work: impl AsyncFnOnce(ConnectionTo<Agent>, Seen) -> agent_client_protocol::Result<T>,
) -> T {
    let command =
        format!("{} --socket {} acp", env!("CARGO_BIN_EXE_bxctl"), socket_in(bench.dir()).display());
    let agent: AcpAgent = command.parse().unwrap();
    let seen = Seen::default();
    let (updates, questions) = (seen.clone(), seen.clone());
    let client = Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _: ConnectionTo<Agent>| {
                updates.update(notification.update);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest,
                        responder: Responder<RequestPermissionResponse>,
                        _| {
                questions.push(format!("asked: {}", request.tool_call.fields.title.unwrap()));
                let chosen = SelectedPermissionOutcome::new(option);
                responder.respond(RequestPermissionResponse::new(RequestPermissionOutcome::Selected(chosen)))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(agent, async |editor: ConnectionTo<Agent>| work(editor, seen).await);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bounded = async { tokio::time::timeout(Duration::from_secs(60), client).await };
    runtime.block_on(bounded).expect("in time").unwrap()
}

async fn initialize(editor: &ConnectionTo<Agent>) -> agent_client_protocol::Result<InitializeResponse> {
    editor.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await
}

async fn begin(editor: &ConnectionTo<Agent>) -> agent_client_protocol::Result<SessionId> {
    initialize(editor).await?;
    Ok(editor.send_request(NewSessionRequest::new("/")).block_task().await?.session_id)
}

fn prompt(session: &SessionId, text: &str) -> PromptRequest {
    PromptRequest::new(session.clone(), vec![ContentBlock::Text(TextContent::new(text))])
}

#[test]
fn a_prompt_is_streamed_and_the_session_can_be_loaded_again() {
    let bench = Bench::start("");
    bench.server.push(Script::say("It is noon."));
    bench.server.push(Script::say("Twelve."));
    let session = editor(&bench, "allow", async |editor, seen| {
        let about = initialize(&editor).await?;
        assert!(about.agent_capabilities.load_session);
        assert_eq!(about.agent_info.unwrap().name, "boxmaker");
        let session = editor.send_request(NewSessionRequest::new("/")).block_task().await?.session_id;
        for (text, answer) in [("What time is it?", "It is noon."), ("In figures?", "Twelve.")] {
            let ended = editor.send_request(prompt(&session, text)).block_task().await?;
            assert_eq!(ended.stop_reason, StopReason::EndTurn);
            let pieces = seen.take();
            assert!(pieces.iter().all(|piece| piece.starts_with("agent: ")), "{pieces:?}");
            assert_eq!(pieces.join("").replace("agent: ", ""), answer);
        }
        // what a model of words cannot read is refused before anything is written
        let image = ContentBlock::Image(ImageContent::new("", "image/png"));
        let refused =
            editor.send_request(PromptRequest::new(session.clone(), vec![image])).block_task().await;
        assert!(refused.unwrap_err().to_string().contains("text only"));
        Ok(session)
    });
    // another run of the program, as after the editor was closed
    editor(&bench, "allow", async |editor, seen| {
        initialize(&editor).await?;
        editor.send_request(LoadSessionRequest::new(session.clone(), "/")).block_task().await?;
        let told = ["user: What time is it?", "agent: It is noon.", "user: In figures?", "agent: Twelve."];
        assert_eq!(seen.take(), told);
        let nobody = LoadSessionRequest::new("nobody", "/");
        assert!(editor.send_request(nobody).block_task().await.is_err());
        Ok(())
    });
}

#[test]
fn a_call_runs_only_when_the_editor_allows_it() {
    for (option, outcome, status) in
        [("allow", ToolOutcome::Ok, "Completed"), ("deny", ToolOutcome::Denied, "Failed")]
    {
        let bench = Bench::start_with("", note);
        bench.server.push(Script::say(&installed_call("note", "{\"n\": 1}")));
        bench.server.push(Script::say("So be it."));
        let session = editor(&bench, option, async |editor, seen| {
            let session = begin(&editor).await?;
            let ended = editor.send_request(prompt(&session, "Note it.")).block_task().await?;
            assert_eq!(ended.stop_reason, StopReason::EndTurn);
            let seen = seen.take();
            let what: Vec<&str> =
                seen.iter().map(String::as_str).filter(|s| !s.starts_with("agent")).collect();
            assert_eq!(what, ["call note InProgress 0", "asked: note", &format!("update {status}")]);
            editor.send_request(LoadSessionRequest::new(session.clone(), "/")).block_task().await?;
            Ok(session)
        });
        let id = session.0.parse().unwrap();
        assert_eq!(bench.results(&id)[0].0, outcome);
    }
}

#[test]
fn a_prompt_can_be_cancelled() {
    let bench = Bench::start("");
    bench.server.push(Script::new().progress().text("I begin and ").gate("never"));
    let session = editor(&bench, "allow", async |editor, seen| {
        let session = begin(&editor).await?;
        let running = editor.send_request(prompt(&session, "Go on for ever."));
        while seen.0.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        editor.send_notification(CancelNotification::new(session.clone()))?;
        assert_eq!(running.block_task().await?.stop_reason, StopReason::Cancelled);
        Ok(session)
    });
    let records = bench.records(&session.0.parse().unwrap());
    assert!(matches!(records.last(), Some(LogRecord::TurnEnd(_))), "{records:?}");
}
