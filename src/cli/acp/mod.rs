//! `bxctl acp`: the Agent Client Protocol on the standard input and output, so that editors can use the box.
//!
//! Invariants: each request of the editor has a line to the daemon of its own, so that none waits for another; a
//! turn belongs to the daemon, and an editor that goes away cancels nothing; a call is allowed only by an answer
//! of the editor that says so.

mod history;
mod prompt;

use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema::{
    AgentCapabilities, CancelNotification, Implementation, InitializeRequest, InitializeResponse,
    LoadSessionRequest, LoadSessionResponse, NewSessionRequest, NewSessionResponse, PromptCapabilities,
    PromptRequest, SessionId as AcpId, SessionNotification, SessionUpdate,
};
use agent_client_protocol::v1::{ConnectionTo, Responder};
use agent_client_protocol::{Agent, Client as Editor, Error, ErrorCode, Stdio};

use super::error::{CliError, status};
use super::link::{ASK_AGAIN, Created, Link};
use crate::channel::{Client, ClientError};
use crate::proto::{Reply, Request, SessionId};

type Result<T> = std::result::Result<T, Error>;

/// Serves one editor until it closes the standard input; gives the exit status.
///
/// # Errors
/// The daemon is not there, or what the editor sends is no protocol.
pub async fn acp(socket: PathBuf) -> std::result::Result<u8, CliError> {
    // an editor that is told at the first message has nothing to show it with
    Link::connect(socket.clone()).await?;
    let (new, load, prompts, cancels) = (socket.clone(), socket.clone(), socket.clone(), socket);
    Agent
        .v1()
        .name("bxctl")
        .on_receive_request(
            async |request: InitializeRequest, responder: Responder<InitializeResponse>, _| {
                responder.respond(initialized(&request))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |_: NewSessionRequest,
                        responder: Responder<NewSessionResponse>,
                        editor: ConnectionTo<Editor>| {
                let socket = new.clone();
                editor.spawn(async move { responder.respond_with_result(new_session(&socket).await) })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: LoadSessionRequest,
                        responder: Responder<LoadSessionResponse>,
                        editor: ConnectionTo<Editor>| {
                let socket = load.clone();
                editor.clone().spawn(async move {
                    let loaded = history::replay(&socket, &editor, &request.session_id).await;
                    responder.respond_with_result(loaded.map(|()| LoadSessionResponse::new()))
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder: Responder<_>, editor: ConnectionTo<Editor>| {
                let socket = prompts.clone();
                editor.clone().spawn(async move {
                    responder.respond_with_result(prompt::turn(&socket, &editor, request).await)
                })
            },
            agent_client_protocol::on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, editor: ConnectionTo<Editor>| {
                let socket = cancels.clone();
                editor.spawn(async move {
                    let session = id(&cancel.session_id)?;
                    // what came of it is told by the prompt's answer
                    let _ = connect(&socket).await?.request(Request::Cancel { session }).await;
                    Ok(())
                })
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .connect_to(Stdio::new())
        .await
        .map_err(|e| CliError::Failed(format!("the editor's connection ended: {e}")))?;
    Ok(status::OK)
}

fn initialized(request: &InitializeRequest) -> InitializeResponse {
    let capabilities = AgentCapabilities::new()
        .load_session(true)
        .prompt_capabilities(PromptCapabilities::new().embedded_context(true));
    InitializeResponse::new(request.protocol_version)
        .agent_capabilities(capabilities)
        .agent_info(Implementation::new("boxmaker", env!("CARGO_PKG_VERSION")))
}

/// While the model server is away or loading it is asked again: the editor waits, and can close.
async fn new_session(socket: &Path) -> Result<NewSessionResponse> {
    let mut link = Link::connect(socket.to_owned()).await.map_err(failed)?;
    loop {
        match link.try_create(None).await.map_err(failed)? {
            Created::Made(info, _) => return Ok(NewSessionResponse::new(info.id.to_string())),
            Created::Waiting(_) => tokio::time::sleep(ASK_AGAIN).await,
        }
    }
}

async fn connect(socket: &Path) -> Result<Client> {
    Client::connect(socket).await.map_err(failed)
}

/// Our id of a session.
fn id(session: &AcpId) -> Result<SessionId> {
    session.0.parse().map_err(|_| {
        Error::new(ErrorCode::RESOURCE_NOT_FOUND, format!("no session has the id {:?}", &*session.0))
    })
}

fn notify(editor: &ConnectionTo<Editor>, session: &SessionId, update: SessionUpdate) -> Result<()> {
    editor.send_notification(SessionNotification::new(session.to_string(), update))
}

/// What the daemon said, or that it went away.
fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::INTERNAL_ERROR, error.to_string())
}

/// An error, or an answer of the wrong kind.
fn unexpected(answer: std::result::Result<Reply, ClientError>) -> Error {
    match answer {
        Err(e) => failed(e),
        Ok(_) => failed("the daemon sent what does not fit; use bxctl and loopd of one version"),
    }
}
