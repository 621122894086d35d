//! What the store's tests share.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

pub mod history;
pub mod model;
pub mod remedies;
pub mod sim;

use std::future::Future;
use std::path::{Path, PathBuf};

use boxmaker::proto::*;
use boxmaker::store::{Baseline, Catalog, OpenOptions, SessionError, Uring};

use sim::Sim;

/// A baseline's content, small and whole.
pub fn content() -> BaselineContent {
    BaselineContent {
        format: BASELINE_FORMAT,
        system_prompt: "You are a box.\n".to_owned(),
        tools: "[]".to_owned(),
        sampling: Sampling { temperature: Some(0.7), ..Sampling::default() },
        reasoning: ReasoningSettings { enabled: true },
        framing: Framing {
            tool_family: ToolFamily::Hermes,
            tools_by: ToolsBy::SystemPrompt,
            tool_results_by: ToolResultsBy::UserMessage,
            head: TokenIds(vec![1, 2, 3]),
            user_open: TokenIds(vec![4]),
            user_close: TokenIds(vec![5]),
            tool_open: TokenIds(vec![6]),
            tool_between: TokenIds(vec![7]),
            tool_close: TokenIds(vec![8]),
            stand_in: "(no answer)".to_owned(),
            stand_in_ids: TokenIds(vec![9]),
            reasoning: None,
        },
        model: ModelIdentity {
            api: "llama-server /completion".to_owned(),
            url: "unix:/run/llama.sock".to_owned(),
            alias: "tiny".to_owned(),
            file: "tiny.gguf".to_owned(),
            size: 1,
            template_digest: Digest::of(b"template"),
            n_ctx: 2048,
            n_vocab: 100,
            build: "b1".to_owned(),
        },
    }
}

pub fn baseline() -> Baseline {
    Baseline::freeze(content()).unwrap()
}

pub fn id(text: &str) -> SessionId {
    text.parse().unwrap()
}

fn time() -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000)
}

pub fn user(turn: u64, text: &str) -> LogRecord {
    LogRecord::UserMessage(UserMessage { time: time(), turn: TurnId(turn), text: text.to_owned() })
}

pub fn assistant(turn: u64, text: &str) -> LogRecord {
    LogRecord::AssistantMessage(AssistantMessage {
        time: time(),
        turn: TurnId(turn),
        text: text.to_owned(),
        reasoning: None,
        tool_calls: Vec::new(),
        finish: Finish::Stop,
        prompt_ids: TokenIds(vec![10, 11]),
        ids: TokenIds(vec![12, 2]),
    })
}

pub fn calling(turn: u64, calls: &[u64]) -> LogRecord {
    let call =
        |call: &u64| ToolCall { call: CallId(*call), name: "t".to_owned(), arguments: "{ }".to_owned() };
    LogRecord::AssistantMessage(AssistantMessage {
        time: time(),
        turn: TurnId(turn),
        text: String::new(),
        reasoning: Some("hm".to_owned()),
        tool_calls: calls.iter().map(call).collect(),
        finish: Finish::ToolCalls,
        prompt_ids: TokenIds(vec![10, 11]),
        ids: TokenIds(vec![12, 2]),
    })
}

pub fn tool_start(turn: u64, call: u64) -> LogRecord {
    let name = "t".to_owned();
    LogRecord::ToolStart(ToolStart { time: time(), turn: TurnId(turn), call: CallId(call), name })
}

pub fn tool_result(turn: u64, call: u64, outcome: ToolOutcome) -> LogRecord {
    LogRecord::ToolResult(ToolResult {
        time: time(),
        turn: TurnId(turn),
        call: CallId(call),
        name: "t".to_owned(),
        outcome,
        content: "out".to_owned(),
        truncated_bytes: 0,
        millis: 1,
    })
}

pub fn usage(turn: u64, n: u64) -> LogRecord {
    let usage = Usage { cache_n: n, prompt_n: 1, predicted_n: 2, ..Usage::default() };
    LogRecord::Usage(UsageRecord::new(time(), TurnId(turn), usage, 5))
}

pub fn named(name: &str) -> LogRecord {
    LogRecord::Named(Named { time: time(), name: name.to_owned() })
}

pub fn carried(turn: Option<u64>, summary: &str) -> LogRecord {
    let summary = Summary { text: summary.to_owned(), through: TurnId(1), cost: None };
    LogRecord::Carried(Carried {
        time: time(),
        turn: turn.map(TurnId),
        summary: Some(summary),
        exchanges: Vec::new(),
        ends: if turn.is_some() { CarriedEnd::Asked } else { CarriedEnd::Open },
        prompt_ids: TokenIds(vec![20, 21]),
    })
}

pub fn turn_end(turn: u64) -> LogRecord {
    LogRecord::TurnEnd(TurnEnd {
        time: time(),
        turn: TurnId(turn),
        outcome: TurnOutcome::Done,
        detail: None,
        millis: Some(3),
    })
}

pub fn failed(turn: u64) -> LogRecord {
    LogRecord::TurnEnd(TurnEnd {
        time: time(),
        turn: TurnId(turn),
        outcome: TurnOutcome::Failed,
        detail: Some("the model server went away".to_owned()),
        millis: None,
    })
}

/// The appends of a whole turn.
pub fn turn(turn: u64, text: &str) -> Vec<Vec<LogRecord>> {
    vec![vec![user(turn, text)], vec![assistant(turn, "Hi."), usage(turn, 7), turn_end(turn)]]
}

/// Where the home is on the simulated disk.
pub const SIM_HOME: &str = "/home";

/// The sessions on a simulated disk.
pub fn catalog(sim: &Sim) -> Catalog<Sim> {
    Catalog::on(sim.clone(), SIM_HOME.into(), OpenOptions::default())
}

/// The log of a session's first epoch on a simulated disk.
pub fn log_of(session: &str) -> PathBuf {
    Path::new(SIM_HOME).join("sessions").join(session).join("0.jsonl")
}

/// Runs without io_uring, on a clock that does not let anybody wait.
#[cfg(test)]
pub fn simulated<T>(future: impl Future<Output = T>) -> T {
    // that clock is a feature of tokio which only tests have
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// Polls a future once, then drops it.
pub async fn begin_only(future: impl Future) {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending(), "it should still be under way");
        std::task::Poll::Ready(())
    })
    .await;
}

/// Opens what others may have locked, when they have let go of it.
pub async fn when_free<T>(mut open: impl AsyncFnMut() -> Result<T, SessionError>) -> T {
    loop {
        match open().await {
            Ok(opened) => return opened,
            Err(SessionError::Locked(_)) => tokio::task::yield_now().await,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Runs on the real runtime.
pub fn uring<T>(future: impl Future<Output = T>) -> T {
    Uring::runtime().expect("these tests need io_uring").block_on(future)
}

/// A home in a temporary directory on a real disk.
pub fn home() -> tempfile::TempDir {
    let place = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, Into::into);
    tempfile::Builder::new().prefix("boxmaker-store-").tempdir_in(place).unwrap()
}

pub fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}
