//! Stands between the daemon and the model server, and makes the model call a tool, or think, by a grammar.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

const CALL: &str = r#""<tool_call>\n{\"name\": \"call_tool\", \"arguments\": {\"name\": \"time\", \"arguments\": {}}}\n</tool_call>""#;
const THOUGHT: &str = r#""<think>\n" [^<]{20,40} "\n</think>\n\n""#;

/// The one in between; its threads end with the program.
pub struct Forcing {
    socket: PathBuf,
    call: Arc<AtomicBool>,
}

impl Forcing {
    /// Listens at `socket` for the server at `server`.
    pub fn start(server: &Path, socket: &Path, thinks: bool) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let call = Arc::new(AtomicBool::new(false));
        let (server, due) = (server.to_owned(), Arc::clone(&call));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (server, due) = (server.clone(), Arc::clone(&due));
                std::thread::spawn(move || pass(client.unwrap(), &server, &due, thinks));
            }
        });
        Self { socket: socket.to_owned(), call }
    }

    /// Its address, as `[model] url` takes it.
    pub fn url(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Whether the next completion is to be a tool call.
    pub fn call_next(&self, call: bool) {
        self.call.store(call, Ordering::SeqCst);
    }
}

/// One request and its answer; either side's end ends the other.
fn pass(mut client: UnixStream, server: &Path, call: &AtomicBool, thinks: bool) {
    let Some((head, body)) = read_request(&mut client) else { return };
    // as if nobody listened: the daemon waits
    let Ok(mut upstream) = UnixStream::connect(server) else { return };
    let completion = head.starts_with("POST /completion ");
    let body = if completion { forced(&body, call.load(Ordering::SeqCst), thinks) } else { body };
    let mut lines: Vec<&str> =
        head.lines().filter(|line| !line.to_lowercase().starts_with("content-length:")).collect();
    let length = format!("content-length: {}", body.len());
    lines.retain(|line| !line.is_empty());
    lines.push(&length);
    let sent = upstream.write_all(format!("{}\r\n\r\n", lines.join("\r\n")).as_bytes());
    if sent.and_then(|()| upstream.write_all(&body)).is_err() {
        return;
    }
    // a client that goes away cancels
    let (mut gone, far) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = gone.read(&mut [0; 1]);
        let _ = far.shutdown(Shutdown::Both);
    });
    let whole = copy(&mut upstream, &mut client);
    // one that was cut off comes again
    if whole && completion {
        call.store(false, Ordering::SeqCst);
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// Passes the answer on; tells whether it came to the end of a completion.
fn copy(from: &mut UnixStream, to: &mut UnixStream) -> bool {
    const LAST: &[u8] = b"\"stop\":true";
    let (mut piece, mut seen, mut whole) = ([0; 65536], Vec::new(), false);
    loop {
        match from.read(&mut piece) {
            Ok(0) | Err(_) => return whole,
            Ok(n) => {
                seen.extend_from_slice(&piece[..n]);
                whole |= seen.windows(LAST.len()).any(|window| window == LAST);
                seen.drain(..seen.len().saturating_sub(LAST.len()));
                if to.write_all(&piece[..n]).is_err() {
                    return whole;
                }
            }
        }
    }
}

fn forced(body: &[u8], call: bool, thinks: bool) -> Vec<u8> {
    let mut request: Value = serde_json::from_slice(body).unwrap();
    let root = match (call, thinks) {
        (true, true) => format!("{THOUGHT} {CALL}"),
        (true, false) => CALL.to_owned(),
        (false, true) => format!(r"{THOUGHT} [^<]{{30,70}}"),
        (false, false) => r"[^<]{30,70}".to_owned(),
    };
    // from the first token on, in place of the one that waits for a call
    let fields = request.as_object_mut().unwrap();
    fields.retain(|name, _| !name.starts_with("grammar"));
    fields.insert("grammar".to_owned(), json!(format!("root ::= {root}")));
    serde_json::to_vec(&request).unwrap()
}

/// A request's head, without the empty line, and its body.
fn read_request(client: &mut UnixStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut piece = [0; 65536];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
            });
            let (begin, length) = (end + 4, length.unwrap_or(0));
            if bytes.len() >= begin + length {
                return Some((head, bytes[begin..begin + length].to_vec()));
            }
        }
        match client.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(n) => bytes.extend_from_slice(&piece[..n]),
        }
    }
}
