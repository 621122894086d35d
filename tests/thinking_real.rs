//! What a real model server makes a model think, counted to the token, and capped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "bench/cache/forcing.rs"]
#[allow(dead_code)]
mod forcing;
mod support;

use std::fs;

use boxmaker::proto::{AssistantMessage, LogRecord, UsageRecord};
use support::bench::records_in;
use support::real_server::Kind;
use support::rig::Rig;

const QWEN: Kind = Kind { model: None, template: Some("Qwen-Qwen3-0.6B.jinja"), flags: &[] };

/// The answer to one question, from a model that a grammar makes think, and what it cost.
fn think(limits: &str) -> Option<(Rig, AssistantMessage, UsageRecord)> {
    let mut rig = Rig::start_kind(limits, QWEN)?;
    let forcing = forcing::Forcing::start(&rig.server.socket(), &rig.dir().join("forcing.sock"), true);
    assert!(rig.daemon.take().unwrap().terminate().success());
    let file = rig.dir().join("loopd.toml");
    let config = fs::read_to_string(&file).unwrap();
    fs::write(&file, config.replace(&rig.server.url(), &forcing.url())).unwrap();
    rig.start_daemon();
    let (id, _) = rig.first_turn("Why is the sea salty?");
    let (mut said, mut cost) = (None, None);
    for record in records_in(&rig.home(), &id, 0) {
        match record {
            LogRecord::AssistantMessage(message) => said = Some(message),
            LogRecord::Usage(usage) => cost = Some(usage),
            _ => {}
        }
    }
    Some((rig, said.unwrap(), cost.unwrap()))
}

/// Counts the tokens between the tags from the ids alone, with the server's own words for them.
fn tokens_inside(rig: &Rig, ids: &[u32]) -> u64 {
    let text = |n: usize| rig.server.detokenize(&ids[..n]);
    let first = (1..=ids.len()).find(|n| text(*n).contains("<think>")).unwrap();
    let close = text(ids.len()).find("</think>").unwrap();
    // those that begin before the closing tag does
    let inside = (first..ids.len()).filter(|n| text(*n + 1).len() <= close);
    inside.count() as u64
}

#[test]
fn reasoning_is_counted_to_the_token() {
    let Some((rig, said, cost)) = think("completion_tokens = 120\nthinking_tokens = 100") else { return };
    assert!(said.reasoning.as_ref().is_some_and(|thought| thought.len() >= 20), "{said:?}");
    assert!(!cost.thinking_capped, "{cost:?}");
    assert_eq!(cost.reasoning_tokens, tokens_inside(&rig, &said.ids), "{said:?}");
    assert_eq!(cost.predicted_n, said.ids.len() as u64, "{cost:?}");
}
