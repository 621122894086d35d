//! A client of the model module for a server that fails on demand.

#![allow(dead_code, missing_docs, reason = "each test crate uses its own part of this")]

#[path = "../support/scripted_server/mod.rs"]
pub mod scripted_server;

use std::rc::Rc;
use std::time::Duration;

use boxmaker::model::{Chunk, Completion, CompletionRequest, ModelError, Server};
use boxmaker::proto::{Sampling, TokenId};
use scripted_server::ScriptedServer;

pub const SILENCE: Duration = Duration::from_secs(20);

pub fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

pub fn client(server: &ScriptedServer) -> Rc<Server> {
    Server::new(server.url(), None, 0, SILENCE)
}

pub async fn begin(client: &Server, prompt: &[TokenId]) -> Result<Completion, ModelError> {
    let sampling = Sampling::default();
    client
        .complete(&CompletionRequest {
            prompt,
            max_tokens: 100,
            sampling: &sampling,
            thinking: None,
            calls: None,
        })
        .await
}

pub async fn chunks(client: &Server) -> Result<Vec<Chunk>, ModelError> {
    let mut completion = begin(client, &[1, 4, 5]).await?;
    let mut chunks = Vec::new();
    while let Some(chunk) = completion.next().await? {
        chunks.push(chunk);
    }
    Ok(chunks)
}
