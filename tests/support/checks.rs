//! What must be true of every conversation that a bench had.
//!
//! When a bench goes, it checks each of its sessions, whatever the test was about: the records are in an order
//! that makes sense; every prompt is a conversation that a strict template accepts; every prompt begins with
//! the whole prompt before it; what was recorded is what was sent and sampled; nothing was evaluated twice.

use boxmaker::proto::{Epoch, Finish, LogRecord, SessionId, UsageTable};
use serde_json::json;

use super::bench::{Bench, SUMMARISE, in_words};
use super::scripted_server::{EOG, text_of, tokens_of};

impl Bench {
    /// What must be true whatever happened.
    pub fn check(&self) {
        let mut owned = 0;
        for session in self.sessions() {
            let records = self.records(&session);
            check_order(&records);
            for epoch in 0..self.epochs(&session) {
                let prompts = self.epoch_prompts(&session, epoch);
                owned += prompts.len();
                prompts.iter().for_each(|prompt| check_conversation(prompt));
                // what asks for a summary goes on from the conversation, and the conversation not from it
                let mut before: Option<&Vec<u32>> = None;
                for prompt in &prompts {
                    if let Some(before) = before.filter(|b| !(self.drops_half && b.starts_with(prompt))) {
                        check_extends(before, prompt);
                    }
                    if !text_of(prompt).contains(SUMMARISE) {
                        before = Some(prompt);
                    }
                }
            }
            self.check_recorded(&session);
        }
        let sent = self.server.completions();
        assert_eq!(owned, sent.len(), "each prompt belongs to one session");
        let thinks = self.sessions().iter().any(|id| self.baseline(id).framing.reasoning.is_some());
        for mut body in sent {
            assert_eq!(body["id_slot"], 0, "the slot is pinned, by a number");
            let (prompt, n_predict) = (body["prompt"].take(), body["n_predict"].take());
            // only where the model thinks; tests of that look at them
            assert_eq!(
                body["grammar_lazy"] == true,
                !thinks,
                "a call, once begun, is kept well formed: {body}"
            );
            body.as_object_mut()
                .expect("an object")
                .retain(|key, _| !key.starts_with("reasoning_budget_") && !key.starts_with("grammar"));
            assert!(!prompt.as_array().expect("ids").is_empty() && n_predict.as_u64().expect("a number") > 0);
            let expected = json!({
                "prompt": null, "id_slot": 0, "cache_prompt": true, "return_tokens": true, "stream": true,
                "return_progress": true, "n_predict": null, "preserved_tokens": body["preserved_tokens"],
            });
            assert_eq!(body, expected);
        }
    }

    /// What was recorded is what was sent and sampled, and cost what it must.
    fn check_recorded(&self, session: &SessionId) {
        let generated = self.server.generated();
        let mut table = UsageTable::default();
        for epoch in 0..self.epochs(session) {
            let mut list = self.epoch_baseline(session, epoch).framing.head.0;
            table.epoch(Epoch(epoch), u64::try_from(list.len()).expect("a length"));
            for record in self.epoch_records(session, epoch) {
                table.record(&record);
                let message = match &record {
                    LogRecord::Carried(carried) => {
                        list.extend(&carried.prompt_ids.0);
                        continue;
                    }
                    LogRecord::AssistantMessage(message) => message,
                    _ => continue,
                };
                list.extend(&message.prompt_ids.0);
                let sampled = generated.iter().filter(|g| g.prompt == list).map(|g| &g.sampled);
                let ids = &message.ids.0;
                let whole = matches!(message.finish, Finish::Stop | Finish::ToolCalls);
                let matches = |sampled: &&Vec<u32>| {
                    if whole { *sampled == ids } else { sampled.starts_with(ids) }
                };
                assert!(
                    self.replaces_ids || sampled.clone().any(|sampled| matches(&sampled)),
                    "recorded {ids:?} after {:?}, but sampled were {:?}",
                    text_of(&list),
                    sampled.collect::<Vec<_>>()
                );
                assert!(!whole || ids.last() == Some(&EOG), "{message:?}");
                list.extend(message.kept_ids());
            }
        }
        if !self.loses_cache {
            for row in table.into_rows() {
                assert_eq!(row.lost_n, 0, "tokens were evaluated twice: {row:#?}");
                assert!(row.prompt_n <= row.new_n + row.completions, "more than what is new: {row:#?}");
            }
        }
    }
}

/// The records are in an order that makes sense: written down here once more, on purpose, and not taken from
/// `proto::Sequence`.
fn check_order(records: &[LogRecord]) {
    let all = || records.iter().map(in_words).collect::<Vec<_>>();
    let mut unanswered = Vec::new();
    let (mut turn, mut open, mut calls) = (0, false, 0);
    for (index, record) in records.iter().enumerate() {
        match record {
            LogRecord::SessionStart(start) => assert_eq!(index == 0, start.epoch.0 == 0, "{:#?}", all()),
            LogRecord::Carried(carried) => {
                let before = records.get(index - 1);
                assert!(matches!(before, Some(LogRecord::SessionStart(_))), "{:#?}", all());
                assert!(unanswered.is_empty() && (!open || carried.turn.is_some()), "{:#?}", all());
            }
            LogRecord::UserMessage(m) => {
                turn += 1;
                assert!(!open && unanswered.is_empty() && m.turn.0 == turn, "{:#?}", all());
                open = true;
            }
            LogRecord::AssistantMessage(m) => {
                assert!(unanswered.is_empty() && m.turn.0 == turn, "{:#?}", all());
                for call in &m.tool_calls {
                    calls += 1;
                    assert_eq!(call.call.0, calls, "{:#?}", all());
                    unanswered.push((call.call, call.name.clone()));
                }
                let next = records.get(index + 1);
                assert!(matches!(next, Some(LogRecord::Usage(_))), "{:#?}", all());
                open = true;
            }
            LogRecord::ToolStart(r) => {
                assert_eq!(unanswered.first(), Some(&(r.call, r.name.clone())), "{:#?}", all());
            }
            LogRecord::ToolResult(r) => {
                assert_eq!(unanswered.first(), Some(&(r.call, r.name.clone())), "{:#?}", all());
                unanswered.remove(0);
            }
            LogRecord::TurnEnd(r) => {
                assert!(open && unanswered.is_empty() && r.turn.0 == turn, "{:#?}", all());
                open = false;
            }
            _ => {}
        }
    }
}

/// A prompt is a conversation that a strict template would have rendered: the system, then user and assistant
/// in turn, none of them empty, and the assistant asked to speak, or to speak on.
fn check_conversation(prompt: &[u32]) {
    const START: u32 = 1;
    let text = text_of(prompt);
    let mut roles = Vec::new();
    let mut rest = prompt;
    while let Some((first, message)) = rest.split_first() {
        assert_eq!(*first, START, "a message begins: {text}");
        let end = message.iter().position(|id| *id == EOG).unwrap_or(message.len());
        let (role, content) = text_of(&message[..end]).split_once('\n').map_or_else(
            || panic!("a message without a role: {text}"),
            |(role, content)| (role.to_owned(), content.to_owned()),
        );
        assert!(!message[..end].contains(&START), "a message inside another: {text}");
        let last = end == message.len();
        assert!(last || !content.trim().is_empty(), "an empty message of {role}: {text}");
        roles.push(role);
        if last {
            break;
        }
        let newline = tokens_of("\n", false);
        let after = &message[end + 1..];
        assert!(after.starts_with(&newline), "a message's end: {text}");
        rest = &after[newline.len()..];
        assert!(!rest.is_empty(), "nobody is asked to speak: {text}");
    }
    for (index, role) in roles.iter().enumerate() {
        let expected = match index {
            0 => "system",
            n if n % 2 == 1 => "user",
            _ => "assistant",
        };
        assert_eq!(role, expected, "{roles:?} in {text}");
    }
    assert!(roles.len() > 2 && roles.len() % 2 == 1, "the assistant is to speak: {roles:?} in {text}");
}

fn check_extends(before: &[u32], now: &[u32]) {
    if !now.starts_with(before) {
        let common = before.iter().zip(now).take_while(|(a, b)| a == b).count();
        panic!(
            "a prompt does not begin with the one before it; after {:?} came {:?}, and now comes {:?}",
            text_of(&before[..common]),
            text_of(&before[common..]),
            text_of(&now[common..])
        );
    }
}
