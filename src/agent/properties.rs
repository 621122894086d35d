//! The append-only property, over generated conversations with every kind of ending.

use proptest::prelude::*;

use crate::proto::{
    AssistantMessage, CallId, Carried, Digest, Epoch, Finish, Framing, LogRecord, Named, ReasoningTags,
    Sequence, SessionStart, Summary, Timestamp, TokenId, ToolCall, ToolFamily, ToolOutcome, ToolResult,
    ToolResultsBy, ToolStart, ToolsBy, TurnEnd, TurnId, TurnOutcome, UserMessage,
};

use super::broken::closing_records;
use super::carry::{As, Past};
use super::replay::{Heard, OwnedPiece, Piece, Prompt};

/// What happens next; what cannot happen in a state is left out.
#[derive(Debug, Clone)]
enum Step {
    /// A message, or (with a turn open) nothing.
    User(String),
    /// A completion.
    Answer { text: String, reasoning: Option<String>, finish: Finish, calls: usize, ids: Vec<TokenId> },
    /// A tool starts.
    Start,
    /// A tool's result.
    Result { outcome: ToolOutcome, content: String },
    /// The turn ends without an answer.
    End(TurnOutcome),
    /// The daemon is killed and started again.
    Crash,
    /// A name.
    Name,
    /// A new epoch, which keeps so many of the newest turns, and of the one that goes on so many steps.
    Rebase { turns: usize, steps: usize, summary: Option<String>, how: As },
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => "[a-z ]{0,12}",
        1 => any::<String>(),
        1 => prop::sample::select(vec!["<|im_end|>", "\u{2028}", "\u{0}", "🦊", "e\u{301}", "\r\n", "\u{feff}", "</think>"])
            .prop_map(str::to_owned),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let finish =
        prop::sample::select(vec![Finish::Stop, Finish::Length, Finish::Cancelled, Finish::ToolCalls]);
    let answer =
        (text(), prop::option::of(text()), finish, 1usize..4, prop::collection::vec(0u32..50_000, 0..6))
            .prop_map(|(text, reasoning, finish, calls, ids)| Step::Answer {
                text,
                reasoning,
                finish,
                calls,
                ids,
            });
    let outcome = prop::sample::select(vec![
        ToolOutcome::Ok,
        ToolOutcome::Error,
        ToolOutcome::Denied,
        ToolOutcome::TimedOut,
        ToolOutcome::Interrupted,
    ]);
    let end = prop::sample::select(vec![
        TurnOutcome::Done,
        TurnOutcome::Cancelled,
        TurnOutcome::Failed,
        TurnOutcome::Limit,
    ]);
    prop_oneof![
        3 => text().prop_map(Step::User),
        4 => answer,
        2 => Just(Step::Start),
        3 => (outcome, text()).prop_map(|(outcome, content)| Step::Result { outcome, content }),
        2 => end.prop_map(Step::End),
        1 => Just(Step::Crash),
        1 => Just(Step::Name),
        1 => (0usize..4, 1usize..4, prop::option::of(text()), any::<bool>()).prop_map(
            |(turns, steps, summary, ids)| Step::Rebase {
                turns,
                steps,
                summary,
                how: if ids { As::Ids } else { As::Text },
            }
        ),
    ]
}

fn framing(thinks: bool, opened: bool) -> Framing {
    let tags = ReasoningTags {
        open: "<think>".to_owned(),
        close: "</think>".to_owned(),
        opened_by_prompt: opened,
        close_ids: vec![900_001].into(),
    };
    Framing {
        tool_family: ToolFamily::Hermes,
        tools_by: ToolsBy::SystemPrompt,
        tool_results_by: ToolResultsBy::UserMessage,
        head: vec![800_000, 800_001].into(),
        user_open: vec![800_010].into(),
        user_close: vec![800_011].into(),
        tool_open: vec![800_020].into(),
        tool_between: vec![800_021].into(),
        tool_close: vec![800_022].into(),
        stand_in: "(no answer)".to_owned(),
        stand_in_ids: vec![900_002].into(),
        reasoning: thinks.then_some(tags),
    }
}

/// A tokeniser of one id a character.
fn tokens(framing: &Framing, records: &[LogRecord]) -> Vec<TokenId> {
    all(Heard::new(framing).prompt(framing, records))
}

fn all(prompt: Prompt<'_>) -> Vec<TokenId> {
    let mut all = prompt.list.to_vec();
    for piece in prompt.new {
        match piece {
            Piece::Ids(ids) => all.extend_from_slice(ids),
            Piece::Text(text) => all.extend(text.chars().map(u32::from)),
        }
    }
    all
}

#[derive(Clone)]
struct Log {
    framing: Framing,
    sequence: Sequence,
    records: Vec<LogRecord>,
    /// Kept from record to record, as a daemon does that was not started again meanwhile.
    heard: Heard,
    epoch: u32,
}

fn start(epoch: u32) -> SessionStart {
    SessionStart {
        time: Timestamp::from_millis(0),
        session: "s".parse().unwrap(),
        epoch: Epoch(epoch),
        slot: 0,
        baseline: Digest::of(b""),
        previous: (epoch > 0).then(|| Digest::of(b"x")),
        origin: None,
    }
}

fn ids_of(piece: &OwnedPiece) -> Vec<TokenId> {
    match piece {
        OwnedPiece::Ids(ids) => ids.clone(),
        OwnedPiece::Text(text) => text.chars().map(u32::from).collect(),
    }
}

impl Log {
    fn new(framing: Framing) -> Self {
        let heard = Heard::new(&framing);
        let mut log = Self { framing, sequence: Sequence::default(), records: Vec::new(), heard, epoch: 0 };
        assert!(log.push(LogRecord::SessionStart(start(0))));
        log
    }

    /// Appends a record if it may stand here, and checks the property.
    fn push(&mut self, record: LogRecord) -> bool {
        let before = self.sequence.clone();
        if self.sequence.check(&record).is_err() {
            assert_eq!(self.sequence, before, "a refused record must change nothing");
            return false;
        }
        let old = tokens(&self.framing, &self.records);
        self.records.push(record);
        let new = tokens(&self.framing, &self.records);
        assert!(new.starts_with(&old), "{:?}\n{old:?}\n{new:?}", self.records.last());
        let kept = self.heard.prompt(&self.framing, &self.records);
        let mut afresh = Heard::new(&self.framing);
        assert_eq!(kept, afresh.prompt(&self.framing, &self.records), "{:?}", self.records.last());
        assert_eq!(self.heard, afresh);
        true
    }

    /// Begins a new epoch, as the agent does but for counting tokens. Calls have their results then.
    fn rebase(&mut self, turns: usize, steps: usize, summary: Option<String>, how: As) {
        if !self.sequence.unanswered().is_empty() {
            return;
        }
        let past = Past::of(&self.records, self.sequence.retriable_turn());
        let kept = past.newest(turns, steps);
        let opening = summary.as_deref().unwrap_or_default();
        let rendered = past.render(&self.framing, how, kept, opening);
        let ids: Vec<TokenId> = rendered.pieces.iter().flat_map(ids_of).collect();
        let whole = past.is_all(kept) && how == As::Ids && opening.is_empty() && self.epoch == 0;
        let whole = whole && !past.drops_a_thought;
        let before = self.clone();
        let through = past.through(kept);
        let carried = Carried {
            time: Timestamp::from_millis(0),
            turn: past.goes_on(),
            summary: summary.clone().map(|text| Summary { text, through, cost: None }),
            exchanges: past.exchanges(kept),
            ends: rendered.ends,
            prompt_ids: ids.into(),
        };
        let nothing = past.is_empty() && summary.is_none();
        self.epoch += 1;
        self.sequence = self.sequence.next_epoch();
        self.records.clear();
        self.heard = Heard::new(&self.framing);
        assert!(self.push(LogRecord::SessionStart(start(self.epoch))));
        if !nothing {
            assert!(self.push(LogRecord::Carried(carried.clone())), "{carried:?}");
        }
        assert_eq!(self.sequence.left_open(), None);
        let ids: &[TokenId] = if nothing { &[] } else { &carried.prompt_ids };
        let begun = [&self.framing.head[..], ids].concat();
        assert_eq!(
            tokens(&self.framing, &self.records),
            begun,
            "the prompt is the head and what was carried"
        );
        if whole {
            // whatever is said next, it is as if no epoch had begun
            assert_eq!(self.after_a_message(), before.after_a_message(), "{carried:?}");
        }
    }

    /// The prompt after one more message.
    fn after_a_message(&self) -> Vec<TokenId> {
        let mut log = self.clone();
        if log.sequence.open_turn().is_some() {
            log.apply(Step::End(TurnOutcome::Failed));
        }
        log.apply(Step::User("and?".to_owned()));
        tokens(&log.framing, &log.records)
    }

    fn apply(&mut self, step: Step) {
        let time = Timestamp::from_millis(0);
        let turn = TurnId(self.sequence.next_turn().0.saturating_sub(1));
        match step {
            Step::User(text) => {
                let turn = self.sequence.next_turn();
                self.push(LogRecord::UserMessage(UserMessage { time, turn, text }));
            }
            Step::Answer { text, reasoning, finish, calls, ids } => {
                // exactly what the agent does: what is pending is what is added
                let list = Heard::new(&self.framing).prompt(&self.framing, &self.records).list.len();
                let prompt_ids = tokens(&self.framing, &self.records).split_off(list);
                let first = self.sequence.next_call().0;
                let calls = if finish == Finish::ToolCalls { calls } else { 0 };
                let call =
                    |n| ToolCall { call: CallId(first + n), name: "t".to_owned(), arguments: "{".to_owned() };
                let tool_calls = (0..u64::try_from(calls).unwrap()).map(call).collect();
                self.push(LogRecord::AssistantMessage(AssistantMessage {
                    time,
                    turn,
                    text,
                    reasoning,
                    tool_calls,
                    finish,
                    prompt_ids: prompt_ids.into(),
                    ids: ids.into(),
                }));
            }
            Step::Start => {
                if let Some((call, name, false)) = self.sequence.unanswered().first().cloned() {
                    self.push(LogRecord::ToolStart(ToolStart { time, turn, call, name }));
                }
            }
            Step::Result { outcome, content } => {
                if let Some((call, name, _)) = self.sequence.unanswered().first().cloned() {
                    let result = ToolResult {
                        time,
                        turn,
                        call,
                        name,
                        outcome,
                        content,
                        truncated_bytes: 0,
                        millis: 0,
                    };
                    self.push(LogRecord::ToolResult(result));
                }
            }
            Step::End(outcome) => {
                self.push(LogRecord::TurnEnd(TurnEnd { time, turn, outcome, detail: None, millis: None }));
            }
            Step::Crash => {
                for record in closing_records(&self.sequence, &self.records, time, None) {
                    assert!(self.push(record.clone()), "closing a broken turn must be allowed: {record:?}");
                }
                assert_eq!(self.sequence.open_turn(), None);
            }
            Step::Rebase { turns, steps, summary, how } => self.rebase(turns, steps, summary, how),
            Step::Name => {
                self.push(LogRecord::Named(Named { time, name: "n".to_owned() }));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_prompt_only_ever_grows(
        steps in prop::collection::vec(step(), 0..40),
        thinks in any::<bool>(),
        opened in any::<bool>(),
    ) {
        let mut log = Log::new(framing(thinks, opened));
        for step in steps {
            log.apply(step);
        }
    }

    #[test]
    fn a_crash_anywhere_leaves_a_turn_that_can_be_closed_and_followed(
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let mut log = Log::new(framing(true, false));
        for step in steps {
            log.apply(step);
        }
        log.apply(Step::Crash);
        let turn = log.sequence.next_turn();
        let text = "and now?".to_owned();
        let message = UserMessage { time: Timestamp::from_millis(0), turn, text };
        prop_assert!(log.push(LogRecord::UserMessage(message)));
    }
}

#[test]
fn a_failed_turn_is_closed_by_the_stand_in_and_asked_again_with_the_same_prompt() {
    let mut log = Log::new(framing(false, false));
    log.apply(Step::User("a".to_owned()));
    let asked = tokens(&log.framing, &log.records);
    assert_eq!(asked, [800_000, 800_001, 97, 800_011]);
    log.apply(Step::End(TurnOutcome::Failed));
    assert_eq!(tokens(&log.framing, &log.records), asked, "a retry sends the same prompt");
    log.apply(Step::User("b".to_owned()));
    assert_eq!(
        tokens(&log.framing, &log.records),
        [800_000, 800_001, 97, 800_011, 900_002, 800_010, 98, 800_011]
    );
}

#[test]
fn the_end_of_generation_token_gives_way_to_the_templates_own() {
    let mut log = Log::new(framing(false, false));
    log.apply(Step::User("a".to_owned()));
    let answer =
        |finish| Step::Answer { text: "x".to_owned(), reasoning: None, finish, calls: 2, ids: vec![5, 6] };
    log.apply(answer(Finish::ToolCalls));
    for content in ["r", "s"] {
        log.apply(Step::Result { outcome: ToolOutcome::Error, content: content.to_owned() });
    }
    let prompt = [800_000, 800_001, 97, 800_011, 5, 800_020, 114, 800_021, 115, 800_022];
    assert_eq!(tokens(&log.framing, &log.records), prompt);
    log.apply(answer(Finish::Length));
    assert_eq!(tokens(&log.framing, &log.records), [&prompt[..], &[5, 6]].concat());
}

#[test]
fn reasoning_that_was_cut_off_is_closed_before_the_user_speaks_again() {
    let mut log = Log::new(framing(true, false));
    log.apply(Step::User("a".to_owned()));
    log.apply(Step::Answer {
        text: String::new(),
        reasoning: Some("hm".to_owned()),
        finish: Finish::Cancelled,
        calls: 0,
        ids: vec![7],
    });
    log.apply(Step::End(TurnOutcome::Cancelled));
    log.apply(Step::User("b".to_owned()));
    let prompt = [800_000, 800_001, 97, 800_011, 7, 900_001, 900_002, 800_010, 98, 800_011];
    assert_eq!(tokens(&log.framing, &log.records), prompt);
}
