//! How many tokens a conversation makes the model evaluate, against the least possible, and beside the same
//! conversation by way of the chat endpoint: `make bench-cache`.
//!
//! Twenty turns, a tool call in every second, and both programs killed and started again between some turns. The
//! model is too small to call tools by itself: a grammar makes it. Everything is counted by the model server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]
#![allow(missing_docs)]

#[path = "cache/chat.rs"]
mod chat;
#[path = "cache/forcing.rs"]
mod forcing;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::process::ExitCode;

use boxmaker::proto::{Finish, LogRecord};
use serde_json::Value;
use support::bench::records_in;
use support::real_server::Kind;
use support::rig::{Rig, ids};

const TURNS: usize = 20;
/// After these turns both programs are killed and started again.
const RESTARTS: [usize; 4] = [4, 9, 13, 17];
/// The goal: tokens evaluated, as a multiple of the least possible, in thousandths.
const GOAL: u64 = 1020;
const LIMITS: &str = "completion_tokens = 160\nthinking_tokens = 100\nslot_quiet_seconds = 1";
const QUESTIONS: [&str; 4] = [
    "What time is it now, and is that late for a child of seven years who has school tomorrow morning?",
    "Tell me in one sentence why the sea is salty, and whether it was always so.",
    "Please look at the clock again: how long until noon?",
    "Which is heavier, a kilogram of feathers or a kilogram of iron? Explain it to me as to a child.",
];

/// What one way of talking came to.
#[derive(Debug, Default)]
struct Cost {
    evaluated: u64,
    least: u64,
}

impl Cost {
    fn thousandths(&self) -> u64 {
        self.evaluated * 1000 / self.least.max(1)
    }
}

fn main() -> ExitCode {
    // `cargo test --benches` asks every bench for its tests
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let templates = [
        ("Qwen 3: tools, and thoughts that are dropped later", "Qwen-Qwen3-0.6B.jinja", true),
        ("Qwen 2.5: tools, no thoughts", "Qwen-Qwen2.5-7B-Instruct.jinja", false),
    ];
    let mut good = true;
    for (name, file, thinks) in templates {
        let Some((ours, chat, afresh)) = converse(file, thinks) else { return ExitCode::FAILURE };
        println!("{name}");
        println!(
            "  {TURNS} turns, a tool call in every second, {} restarts of both programs",
            RESTARTS.len()
        );
        println!("  least possible     {:6} tokens", ours.least);
        let ratio = |cost: &Cost| {
            format!(
                "{:6} tokens, {}.{:03} of it",
                cost.evaluated,
                cost.thousandths() / 1000,
                cost.thousandths() % 1000
            )
        };
        println!("  boxmaker           {}", ratio(&ours));
        let chat = Cost { least: ours.least, ..chat };
        println!(
            "  the chat endpoint  {}; {afresh} of them in the first requests after restarts",
            ratio(&chat)
        );
        if ours.thousandths() > GOAL {
            println!("  MISSED: the goal is {}.{:03} at most", GOAL / 1000, GOAL % 1000);
            good = false;
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The conversation by both ways: what boxmaker cost, what the chat endpoint cost, and how much of that came
/// from restarts.
fn converse(template: &'static str, thinks: bool) -> Option<(Cost, Cost, u64)> {
    let kind = Kind { model: None, template: Some(template), flags: &["-c", "8192", "-b", "512"] };
    let mut rig = Rig::start_kind(LIMITS, kind)?;
    let forcing = forcing::Forcing::start(&rig.server.socket(), &rig.dir().join("forcing.sock"), thinks);
    assert!(rig.daemon.take().unwrap().terminate().success());
    let file = rig.dir().join("loopd.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace(&rig.server.url(), &forcing.url())).unwrap();
    rig.start_daemon();

    let (mut evaluated, mut session) = (0, String::new());
    for turn in 0..TURNS {
        forcing.call_next(turn % 2 == 0);
        let question = QUESTIONS[turn % QUESTIONS.len()];
        if turn == 0 {
            session = rig.first_turn(question).0;
        } else {
            rig.turn(&session, question);
        }
        if RESTARTS.contains(&turn) {
            // as a reboot: the daemon is told to end, the server is not asked
            assert!(rig.daemon.take().unwrap().terminate().success());
            evaluated += rig.server.prompt_tokens_total();
            rig.replace_server();
            rig.start_daemon();
        }
    }
    evaluated += rig.server.prompt_tokens_total();
    let records = records_in(&rig.home(), &session, 0);
    let calls = records.iter().filter(|record| matches!(record, LogRecord::ToolResult(_))).count();
    assert_eq!(calls, TURNS / 2, "a tool call in every second turn");
    let ours = Cost { evaluated, least: least(&rig.baseline(&session), &records) };
    assert!(rig.daemon.take().unwrap().terminate().success());
    let (evaluated, afresh) = chat::replay(&mut rig.server, &records, TURNS, &RESTARTS);
    Some((ours, Cost { evaluated, least: 0 }, afresh))
}

/// The tokens that have to be evaluated before something can be sampled: the head, whatever was added to the prompt,
/// and the last token of an answer that was cut off, which was sampled and never evaluated.
fn least(baseline: &Value, records: &[LogRecord]) -> u64 {
    let mut least = ids(&baseline["framing"]["head"]).len();
    let mut cut_off = 0;
    for record in records {
        if let LogRecord::AssistantMessage(message) = record {
            least += message.prompt_ids.len() + cut_off;
            cut_off = usize::from(matches!(message.finish, Finish::Length | Finish::Cancelled));
        }
    }
    u64::try_from(least).unwrap()
}
