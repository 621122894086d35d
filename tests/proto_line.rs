//! Records as lines: what is written reads back the same, and what is damaged does not read at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use boxmaker::proto::*;
use proptest::prelude::*;

/// Text with all that JSON, terminals and editors stumble over.
fn text() -> impl Strategy<Value = String> {
    let nasty = prop::sample::select(vec![
        "\0",
        "\n",
        "\r\n",
        "\"",
        "\\",
        "\\u0000",
        "\u{7f}",
        "\u{1b}[31m",
        "\u{2028}",
        "\u{2029}",
        "\u{feff}",
        "\u{fffd}",
        "\u{d7ff}",
        "\u{e000}",
        "\u{10ffff}",
        "\u{202e}",
        "👩‍👩‍👧",
        "e\u{301}",
        "<|im_end|>",
        "\",\"crc\":\"",
        "{\"prev\":\"",
        "\",\"",
        "}\n",
        "'",
        "[[[[[[",
        "1e400",
        "\t",
    ]);
    let piece = prop_oneof![nasty.prop_map(str::to_owned), ".{0,12}", any::<String>()];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![any::<i64>(), -100_000_000_000_000..300_000_000_000_000i64].prop_map(Timestamp::from_millis)
}

fn digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 8]>().prop_map(|seed| Digest::of(&seed))
}

fn session() -> impl Strategy<Value = SessionId> {
    "[a-z0-9][a-z0-9._-]{0,63}".prop_map(|id| id.parse().unwrap())
}

fn ids() -> impl Strategy<Value = TokenIds> {
    let id = prop_oneof![any::<u32>(), 0..300u32, Just(u32::MAX), Just(127), Just(128)];
    prop::collection::vec(id, 0..20).prop_map(TokenIds)
}

fn turn() -> impl Strategy<Value = TurnId> {
    any::<u64>().prop_map(TurnId)
}

fn call() -> impl Strategy<Value = CallId> {
    any::<u64>().prop_map(CallId)
}

fn start() -> impl Strategy<Value = LogRecord> {
    let origin = (session(), any::<u32>(), any::<u64>()).prop_map(|(session, epoch, line)| Origin {
        session,
        epoch: Epoch(epoch),
        line,
    });
    let options = (prop::option::of(digest()), prop::option::of(origin));
    (time(), session(), any::<u32>(), any::<u32>(), digest(), options).prop_map(
        |(time, session, epoch, slot, baseline, (previous, origin))| {
            let epoch = Epoch(epoch);
            LogRecord::SessionStart(SessionStart { time, session, epoch, slot, baseline, previous, origin })
        },
    )
}

fn assistant() -> impl Strategy<Value = LogRecord> {
    let calls =
        (call(), text(), text()).prop_map(|(call, name, arguments)| ToolCall { call, name, arguments });
    let finish =
        prop::sample::select(vec![Finish::Stop, Finish::ToolCalls, Finish::Length, Finish::Cancelled]);
    let said = (text(), prop::option::of(text()), prop::collection::vec(calls, 0..3));
    (time(), turn(), said, finish, ids(), ids()).prop_map(
        |(time, turn, (text, reasoning, tool_calls), finish, prompt_ids, ids)| {
            LogRecord::AssistantMessage(AssistantMessage {
                time,
                turn,
                text,
                reasoning,
                tool_calls,
                finish,
                prompt_ids,
                ids,
            })
        },
    )
}

fn tools() -> impl Strategy<Value = LogRecord> {
    use ToolOutcome::{Denied, Error, Interrupted, Ok, TimedOut};
    let outcome = prop::sample::select(vec![Ok, Error, Denied, TimedOut, Interrupted]);
    let decision = prop::sample::select(vec![Decision::Allow, Decision::Deny]);
    let result = (outcome, text(), any::<u64>(), any::<u64>());
    (time(), turn(), call(), text(), result, decision, 0..3).prop_map(
        |(time, turn, call, name, (outcome, content, truncated_bytes, millis), decision, which)| match which {
            0 => LogRecord::ToolStart(ToolStart { time, turn, call, name }),
            1 => LogRecord::Approval(Approval { time, turn, call, decision, by: name }),
            _ => LogRecord::ToolResult(ToolResult {
                time,
                turn,
                call,
                name,
                outcome,
                content,
                truncated_bytes,
                millis,
            }),
        },
    )
}

fn small() -> impl Strategy<Value = LogRecord> {
    use TurnOutcome::{Cancelled, Done, Failed, Limit};
    let outcome = prop::sample::select(vec![Done, Cancelled, Failed, Limit]);
    let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>(), any::<u64>());
    let end = (outcome, prop::option::of(text()), prop::option::of(any::<u64>()));
    (time(), turn(), text(), numbers, end, 0..4).prop_map(
        |(
            time,
            turn,
            text,
            (cache_n, prompt_n, predicted_n, reasoning_tokens, capped, millis),
            end,
            which,
        )| {
            let (outcome, detail, ended) = end;
            let thinking_capped = capped;
            let usage = Usage { cache_n, prompt_n, predicted_n, reasoning_tokens, thinking_capped };
            match which {
                0 => LogRecord::UserMessage(UserMessage { time, turn, text }),
                1 => LogRecord::Named(Named { time, name: text }),
                2 => LogRecord::Usage(UsageRecord::new(time, turn, usage, millis)),
                _ => LogRecord::TurnEnd(TurnEnd { time, turn, outcome, detail, millis: ended }),
            }
        },
    )
}

fn carried() -> impl Strategy<Value = LogRecord> {
    let usage = (any::<u64>(), any::<bool>()).prop_map(|(cache_n, thinking_capped)| Usage {
        cache_n,
        thinking_capped,
        ..Usage::default()
    });
    let cost = (any::<u64>(), any::<u64>(), usage, any::<u64>())
        .prop_map(|(new_n, lost_n, usage, millis)| SummaryCost { new_n, lost_n, usage, millis });
    let summary = (text(), turn(), prop::option::of(cost)).prop_map(|(text, through, cost)| Summary {
        text,
        through,
        cost,
    });
    let exchange =
        (turn(), text(), text()).prop_map(|(turn, user, assistant)| Exchange { turn, user, assistant });
    let ends = prop::sample::select(vec![CarriedEnd::Open, CarriedEnd::Asked, CarriedEnd::Said]);
    let kept = (prop::option::of(summary), prop::collection::vec(exchange, 0..3));
    (time(), prop::option::of(turn()), kept, ends, ids()).prop_map(
        |(time, turn, (summary, exchanges), ends, prompt_ids)| {
            LogRecord::Carried(Carried { time, turn, summary, exchanges, ends, prompt_ids })
        },
    )
}

fn record() -> impl Strategy<Value = LogRecord> {
    prop_oneof![start(), carried(), assistant(), tools(), small()]
}

/// What is done to a record's text.
#[derive(Debug, Clone)]
enum Change {
    Set(u8),
    Insert(&'static str),
    Put(&'static str),
    Remove(usize),
    Double(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let json = || {
        prop::sample::select(vec![
            "\"",
            "\\",
            ",",
            ":",
            "{",
            "}",
            "[",
            "]",
            " ",
            "\n",
            "null",
            "true",
            "1",
            "0",
            "-",
            ".5",
            "e1",
            "00",
            "18446744073709551616",
            "\\u0041",
            "\\u001f",
            "\\u001F",
            "\\u0000",
            "\\ud83d\\ude00",
            "\\ud800",
            "\\/",
            "\\n",
            "\\x",
            "\\u00",
            "\u{1}",
            "\u{7f}",
            "é",
            "\"x\":1,",
            "\"text\":\"a\",",
            "\"turn\":1,",
            "\"a\"",
        ])
    };
    prop_oneof![
        prop_oneof![any::<u8>(), 1..0x30u8].prop_map(Change::Set),
        json().prop_map(Change::Insert),
        json().prop_map(Change::Put),
        (1..40usize).prop_map(Change::Remove),
        (1..40usize).prop_map(Change::Double),
    ]
}

/// What `serde_json` makes of a record's fields, which lack their braces.
fn by_serde(kind: &str, fields: &[u8]) -> Result<LogRecord, LineError> {
    let object = [b"{", fields, b"}"].concat();
    match kind {
        "session_start" => serde_json::from_slice(&object).map(LogRecord::SessionStart),
        "carried" => serde_json::from_slice(&object).map(LogRecord::Carried),
        "user_message" => serde_json::from_slice(&object).map(LogRecord::UserMessage),
        "assistant_message" => serde_json::from_slice(&object).map(LogRecord::AssistantMessage),
        "tool_start" => serde_json::from_slice(&object).map(LogRecord::ToolStart),
        "tool_result" => serde_json::from_slice(&object).map(LogRecord::ToolResult),
        "approval" => serde_json::from_slice(&object).map(LogRecord::Approval),
        "named" => serde_json::from_slice(&object).map(LogRecord::Named),
        "usage" => serde_json::from_slice(&object).map(LogRecord::Usage),
        "turn_end" => serde_json::from_slice(&object).map(LogRecord::TurnEnd),
        other => panic!("{other} is no kind"),
    }
    .map_err(|e| LineError::Record(e.to_string()))
}

fn place() -> impl Strategy<Value = Place> {
    let back = prop_oneof![Just(0), any::<u64>(), 1..2000u64];
    let more = prop_oneof![Just(0), any::<u32>(), 1..20u32];
    (back, more).prop_map(|(back, more)| Place { back, more })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn record_to_line_to_record_is_the_identity(record in record(), prev in digest(), place in place()) {
        let line = encode_line(prev, place, &record).unwrap();
        prop_assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        prop_assert_eq!(line.last(), Some(&b'\n'));
        prop_assert!(!line.contains(&0));
        prop_assert!(Line::is_intact(&line));
        prop_assert_eq!(Line::place_of(&line), Some(place));
        // anybody's JSON parser reads it, and sees each key once
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        prop_assert_eq!(value["prev"].as_str().unwrap(), prev.to_string());
        prop_assert_eq!(value["type"].as_str().unwrap(), record.kind());
        let read = Line::decode(&line).unwrap();
        prop_assert_eq!(read, Line { prev, place, record });
    }

    #[test]
    fn no_line_with_a_changed_byte_reads(record in record(), prev in digest(), place in place(), at in any::<prop::sample::Index>(), by in 1..=255u8) {
        let mut line = encode_line(prev, place, &record).unwrap();
        let at = at.index(line.len());
        line[at] ^= by;
        prop_assert!(Line::decode(&line).is_err());
    }

    #[test]
    fn no_part_of_a_line_reads(record in record(), prev in digest(), place in place(), at in any::<prop::sample::Index>()) {
        let line = encode_line(prev, place, &record).unwrap();
        let at = at.index(line.len() - 1);
        prop_assert!(Line::decode(&line[..at]).is_err());
        prop_assert!(at == 0 || Line::decode(&line[at..]).is_err());
        let holed = [&line[..at], &vec![0; line.len() - at - 1], b"\n".as_slice()].concat();
        prop_assert!(Line::decode(&holed).is_err());
    }

    #[test]
    fn whatever_bytes_there_are_nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Line::decode(&bytes);
        let _ = Line::decode(&[&bytes[..], b"\n"].concat());
    }

    #[test]
    fn ids_are_safe_file_names(text in any::<String>()) {
        if let Ok(id) = text.parse::<SessionId>() {
            prop_assert_eq!(id.to_string(), text.clone());
            prop_assert!(!text.contains('/') && !text.starts_with('.') && text.len() <= 64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_record_says_is_what_serde_says(record in record(), changes in prop::collection::vec((any::<prop::sample::Index>(), change()), 0..3)) {
        let line = encode_line(Digest::of(b"before"), Place::default(), &record).unwrap();
        let head = line.windows(2).position(|end| end == b"\",").unwrap();
        let head = head + 2 + line[head + 2..].windows(2).position(|end| end == b"\",").unwrap() + 2;
        let mut fields = line[head..line.len() - 19].to_vec();
        for (at, change) in changes {
            let at = at.index(fields.len() + 1);
            let to = |length: usize| (at + length).min(fields.len());
            match change {
                Change::Set(byte) => drop(fields.splice(at..to(1), [byte])),
                Change::Insert(text) => drop(fields.splice(at..at, text.bytes())),
                Change::Put(text) => drop(fields.splice(at..to(text.len()), text.bytes())),
                Change::Remove(length) => drop(fields.drain(at..to(length))),
                Change::Double(length) => {
                    let again = fields[at..to(length)].to_vec();
                    fields.splice(at..at, again);
                }
            }
        }
        // what is said of NUL bytes is said before anything is read
        fields.retain(|byte| *byte != 0);
        let summed = [&line[..head], &fields].concat();
        let crc = format!(",\"crc\":\"{:08x}\"}}\n", crc32fast::hash(&summed));
        let read = Line::decode(&[&summed, crc.as_bytes()].concat()).map(|line| line.record);
        prop_assert_eq!(read, by_serde(record.kind(), &fields));
    }
}

#[test]
fn every_flipped_bit_of_a_line_is_found() {
    let record = LogRecord::UserMessage(UserMessage {
        time: Timestamp::from_millis(0),
        turn: TurnId(1),
        text: "Hello \u{2028} \0 world".to_owned(),
    });
    let line = encode_line(Digest::of(b"before"), Place { back: 10, more: 2 }, &record).unwrap();
    for at in 0..line.len() {
        for bit in 0..8 {
            let mut damaged = line.clone();
            damaged[at] ^= 1 << bit;
            assert!(Line::decode(&damaged).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn hostile_ids_are_refused() {
    for text in
        ["", ".", "..", "../../x", "/etc/x", "a/b", "a\0b", "-a", "_a", ".a", "A", "ä", "a b", "a\n", "*"]
    {
        assert!(text.parse::<SessionId>().is_err(), "{text:?}");
    }
    assert!("x".repeat(64).parse::<SessionId>().is_ok());
    assert!("x".repeat(65).parse::<SessionId>().is_err());
    assert!(serde_json::from_str::<SessionId>("\"../x\"").is_err());
}
