//! One completion, from its request to the end of its stream.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::answer::{failure, send};
use super::script::Step;
use super::vocabulary::{ids_in, tokens_of};
use super::{Behaviour, Generated, Script, State, lock};

/// A completion on its way.
struct Generation<'a> {
    state: &'a State,
    prompt: Vec<u32>,
    sampled: Vec<u32>,
    cached: u64,
    limit: u64,
    left: bool,
    /// Its place in the server's list.
    number: usize,
}

impl Generation<'_> {
    fn count(n: usize) -> u64 {
        u64::try_from(n).unwrap()
    }

    /// Leaves the slot to others, once. The token sampled last is not in the cache.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        let mut state = lock(self.state);
        let decoded = self.sampled.len().saturating_sub(1);
        state.cache = [&self.prompt[..], &self.sampled[..decoded]].concat();
        state.touched = true;
        state.processing = false;
        if let Some(generated) = state.generated.get_mut(self.number) {
            generated.sampled.clone_from(&self.sampled);
        }
    }

    fn delta(&self, text: &str, ids: &[u32]) -> Value {
        json!({
            "index": 0, "content": text, "tokens": ids, "stop": false, "id_slot": -1,
            "tokens_predicted": self.sampled.len(), "tokens_evaluated": self.prompt.len(),
        })
    }

    fn progress(&self) -> Value {
        let total = self.prompt.len();
        let mut event = self.delta("", &[0]);
        event["prompt_progress"] =
            json!({"total": total, "cache": self.cached, "processed": total, "time_ms": 0});
        event
    }

    fn last(&self, stop: &str) -> Value {
        let (prompt, sampled) = (Self::count(self.prompt.len()), Self::count(self.sampled.len()));
        json!({
            "index": 0, "content": "", "tokens": [], "id_slot": 0, "stop": true, "stop_type": stop,
            "truncated": false, "tokens_predicted": sampled, "tokens_evaluated": prompt,
            "tokens_cached": (prompt + sampled).saturating_sub(1),
            "timings": {
                "cache_n": self.cached, "prompt_n": prompt.saturating_sub(self.cached), "predicted_n": sampled,
            },
        })
    }
}

pub(super) async fn complete(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
    behaviour: &Behaviour,
    body: &Value,
) -> io::Result<()> {
    let prompt = ids_in(&body["prompt"]);
    if Generation::count(prompt.len()) >= behaviour.n_ctx {
        let (code, mut body) = failure(400, "exceed_context_size_error", "the request exceeds the context");
        body["error"]["n_prompt_tokens"] = json!(prompt.len());
        body["error"]["n_ctx"] = json!(behaviour.n_ctx);
        return send(stream, code, &body).await;
    }
    // One request at a time: others wait for the slot.
    while lock(state).processing {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (script, common, number) = {
        let mut state = lock(state);
        state.processing = true;
        let number = state.generated.len();
        state.generated.push(Generated { prompt: prompt.clone(), sampled: Vec::new() });
        let common = state.cache.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
        (state.scripts.pop_front().unwrap_or_else(|| Script::say("ok")), common, number)
    };
    // At least one token is always evaluated.
    let common = common.min(prompt.len().saturating_sub(1));
    let cached = script.claimed_cache.unwrap_or(Generation::count(common));
    let limit = body["n_predict"].as_u64().unwrap_or(u64::MAX);
    let mut generation =
        Generation { state, prompt, sampled: Vec::new(), cached, limit, left: false, number };
    let result = play(stream, script, &mut generation).await;
    let over = generation.left;
    generation.leave();
    if !over && result.as_ref().is_err_and(|e| e.kind() != io::ErrorKind::ConnectionAborted) {
        lock(state).hangups += 1;
    }
    result
}

async fn play(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    script: Script,
    generation: &mut Generation<'_>,
) -> io::Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    if let Some(Step::Status(code, body)) = script.steps.first() {
        return send(stream, *code, body).await;
    }
    if let Some(Step::Hangup) = script.steps.first() {
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    stream.write_all(head).await?;
    for step in script.steps {
        match step {
            Step::Progress => event(stream, &generation.progress()).await?,
            Step::Text(text) => {
                for character in text.chars() {
                    let ids = tokens_of(&character.to_string(), false);
                    generation.sampled.extend(&ids);
                    let shown = generation.delta(&character.to_string(), &ids[ids.len() - 1..]);
                    event(stream, &shown).await?;
                    if Generation::count(generation.sampled.len()) >= generation.limit {
                        generation.leave();
                        event(stream, &generation.last("limit")).await?;
                        return chunk(stream, "").await;
                    }
                }
            }
            Step::Id(text, id) => {
                generation.sampled.push(id);
                let shown = generation.delta(&text, &[id]);
                event(stream, &shown).await?;
            }
            Step::Lose(tokens) => generation.sampled.extend((0..tokens).map(|_| 3 + 0xf0)),
            Step::Raw(bytes) => chunk(stream, &bytes).await?,
            Step::Stall(time) => stall(stream, time).await?,
            Step::Gate(name) => {
                lock(generation.state).at_a_gate = true;
                let waited = gate(stream, generation.state, name).await;
                lock(generation.state).at_a_gate = false;
                waited?;
            }
            Step::Final(stop) => {
                // Before the client hears of the end: its next question must find the slot at rest.
                generation.leave();
                event(stream, &generation.last(stop)).await?;
                return chunk(stream, "").await;
            }
            Step::Cut | Step::Hangup | Step::Status(..) => {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            Step::EndBody => return chunk(stream, "").await,
        }
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

async fn gate(stream: &mut (impl AsyncRead + Unpin), state: &State, name: &'static str) -> io::Result<()> {
    while !lock(state).opened.contains(&name) {
        stall(stream, Duration::from_millis(2)).await?;
    }
    Ok(())
}

/// Waits, and notices when the client goes.
async fn stall(stream: &mut (impl AsyncRead + Unpin), time: Duration) -> io::Result<()> {
    let mut byte = [0];
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        read = stream.read(&mut byte) => match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(e) => Err(e),
        },
    }
}

async fn event(stream: &mut (impl AsyncWrite + Unpin), data: &Value) -> io::Result<()> {
    chunk(stream, &format!("data: {data}\n\n")).await
}

async fn chunk(stream: &mut (impl AsyncWrite + Unpin), text: &str) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await?;
    stream.flush().await
}
