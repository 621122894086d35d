//! Requests and their answers, but for completions.

use std::io;

use serde_json::{Value, json};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
    BufReader,
};

use super::completion::complete;
use super::vocabulary::tokens_of;
use super::{Behaviour, Health, Recorded, State, lock};

pub(super) async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, state: State) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(request)) = read_request(&mut stream).await {
        lock(&state).requests.push(request.clone());
        if answer(&mut stream, &state, &request).await.is_err() {
            return;
        }
        if request.headers.iter().any(|(name, value)| name == "connection" && value == "close") {
            return;
        }
    }
}

async fn read_request(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Recorded>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, n)| n.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Some(Recorded { method, path, headers, body }))
}

pub(super) async fn send(stream: &mut (impl AsyncWrite + Unpin), code: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.flush().await
}

pub(super) fn failure(code: u16, kind: &str, message: &str) -> (u16, Value) {
    (code, json!({"error": {"code": code, "message": message, "type": kind}}))
}

async fn answer(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    state: &State,
    request: &Recorded,
) -> io::Result<()> {
    let behaviour = lock(state).behaviour.clone();
    match &behaviour.health {
        Health::Ready => {}
        Health::Loading => {
            let (code, body) = failure(503, "unavailable_error", "Loading model");
            return send(stream, code, &body).await;
        }
        Health::Error(code, message) => {
            let (code, body) = failure(*code, "server_error", message);
            return send(stream, code, &body).await;
        }
        Health::Hangup => return Err(io::ErrorKind::ConnectionAborted.into()),
        Health::Mute => {
            let mut byte = [0];
            while stream.read(&mut byte).await? > 0 {}
            return Ok(());
        }
        Health::Garbage(bytes) => {
            stream.write_all(bytes).await?;
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
    }
    if behaviour.mute.as_ref() == Some(&request.path) {
        let mut byte = [0];
        while stream.read(&mut byte).await? > 0 {}
        return Ok(());
    }
    let key = behaviour.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let sent = request.headers.iter().find(|(name, _)| name == "authorization").map(|(_, value)| value);
    if request.path != "/health" && key.is_some() && key.as_ref() != sent {
        let (code, body) = failure(401, "authentication_error", "Invalid API Key");
        return send(stream, code, &body).await;
    }
    if request.path == "/completion" {
        return complete(stream, state, &behaviour, &request.body).await;
    }
    let (code, body) = plain(state, &behaviour, request);
    send(stream, code, &body).await
}

/// Everything that is not a stream.
fn plain(state: &State, behaviour: &Behaviour, request: &Recorded) -> (u16, Value) {
    let body = &request.body;
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/health") => (200, json!({"status": "ok"})),
        ("GET", "/props") => (
            200,
            json!({
                "default_generation_settings": {"n_ctx": behaviour.n_ctx},
                "total_slots": behaviour.total_slots,
                "model_alias": "scripted",
                "model_path": behaviour.model_path,
                "chat_template": behaviour.template,
                "chat_template_caps": {"supports_tools": false},
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "build_info": "scripted-1",
                "is_sleeping": behaviour.is_sleeping,
            }),
        ),
        ("GET", "/v1/models") => (200, json!({"data": [{"meta": {"n_vocab": 259, "size": 12345}}]})),
        ("GET", "/slots") if behaviour.slots => {
            let state = lock(state);
            let mut slot = json!({"id": 0, "n_ctx": behaviour.n_ctx, "is_processing": state.processing});
            if state.touched {
                slot["n_prompt_tokens"] = json!(state.cache.len());
            }
            (200, json!([slot]))
        }
        ("POST", "/tokenize") => {
            let text = body["content"].as_str().unwrap_or_default();
            (200, json!({"tokens": tokens_of(text, body["parse_special"] == true)}))
        }
        ("POST", "/apply-template") => apply_template(behaviour, body),
        ("POST", "/slots/0?action=save") => save(state, behaviour, body),
        ("POST", "/slots/0?action=restore") => restore(state, behaviour, body),
        ("GET", "/slots") => failure(501, "not_supported_error", "This server does not support slots"),
        _ => failure(404, "not_found_error", "File Not Found"),
    }
}

fn apply_template(behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let mut prompt = String::new();
    for message in body["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        if behaviour.refused_role.as_deref() == Some(role) {
            return failure(400, "invalid_request_error", "Jinja Exception: role not supported");
        }
        let content = message["content"].as_str().unwrap_or_default();
        prompt.push_str(&format!("<|im_start|>{role}\n{content}<|im_end|>\n"));
    }
    prompt.push_str(&behaviour.generation_prompt);
    (200, json!({"prompt": prompt}))
}

fn save(state: &State, behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let Some(dir) = &behaviour.slot_dir else {
        return failure(501, "not_supported_error", "This server does not support slots action");
    };
    let name = body["filename"].as_str().unwrap_or_default();
    if name.is_empty() || name.contains('/') {
        return failure(400, "invalid_request_error", "Invalid filename");
    }
    let ids = lock(state).cache.clone();
    let mut bytes = Vec::new();
    for word in [0x6767_7371, 4, 0, u32::MAX, 1, u32::try_from(ids.len()).unwrap()].iter().chain(&ids) {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0; 64]);
    std::fs::write(dir.join(name), &bytes).unwrap();
    (200, json!({"id_slot": 0, "filename": name, "n_saved": ids.len(), "n_written": bytes.len()}))
}

fn restore(state: &State, behaviour: &Behaviour, body: &Value) -> (u16, Value) {
    let name = body["filename"].as_str().unwrap_or_default();
    let file = behaviour.slot_dir.as_ref().map(|dir| std::fs::read(dir.join(name)));
    let Some(Ok(bytes)) = file else {
        return failure(400, "invalid_request_error", "Unable to restore slot");
    };
    let words: Vec<u32> =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    let count = usize::try_from(words[5]).unwrap();
    let mut state = lock(state);
    (state.cache, state.touched) = (words[6..6 + count].to_vec(), true);
    (200, json!({"id_slot": 0, "filename": name, "n_restored": count, "n_read": bytes.len()}))
}
