#![allow(clippy::string_slice, reason = "a test may panic")]

use super::*;
use crate::proto::TokenIds;
use proptest::prelude::*;

const FAMILIES: [ToolFamily; 5] =
    [ToolFamily::Hermes, ToolFamily::QwenCoder, ToolFamily::Llama, ToolFamily::Mistral, ToolFamily::Glm];

fn think(opened_by_prompt: bool) -> ReasoningTags {
    let (open, close) = ("<think>".to_owned(), "</think>".to_owned());
    ReasoningTags { open, close, opened_by_prompt, close_ids: TokenIds::default() }
}

/// Reads pieces; checks that what was shown is what is in the reply.
fn read(family: ToolFamily, tags: Option<&ReasoningTags>, pieces: &[&str]) -> Reply {
    let mut parser = ReplyParser::new(family, tags);
    let mut parts: Vec<Part> = pieces.iter().flat_map(|piece| parser.feed(piece)).collect();
    let (tail, reply) = parser.finish();
    parts.extend(tail);
    let (mut text, mut reasoning) = (String::new(), String::new());
    for part in parts {
        match part {
            Part::Text(t) => text.push_str(&t),
            Part::Reasoning(r) => reasoning.push_str(&r),
        }
    }
    assert_eq!(text, reply.text, "what was shown is what is kept");
    assert_eq!(reasoning, reply.reasoning.clone().unwrap_or_default());
    reply
}

fn whole(family: ToolFamily, text: &str) -> Reply {
    read(family, None, &[text])
}

fn call(name: &str, arguments: &str) -> ParsedCall {
    ParsedCall { name: name.to_owned(), arguments: arguments.to_owned(), problem: None }
}

#[test]
fn hermes_calls_keep_their_arguments_byte_for_byte() {
    let arguments = "{\"path\":  \"a\",\n \"n\": 1.10, \"a\": [3, {\"x\":\"\\u00e9\"}]}";
    let text =
        format!("I look.\n<tool_call>\n{{\"name\": \"find\", \"arguments\": {arguments}}}\n</tool_call>");
    let reply = whole(ToolFamily::Hermes, &text);
    assert_eq!(reply.text, "I look.");
    assert_eq!(reply.calls, [call("find", arguments)]);
}

#[test]
fn several_calls_and_text_around_them_are_kept_apart() {
    let one = "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>";
    let two = "<tool_call>{\"arguments\":{\"x\":1},\"name\":\"b\"}</tool_call>";
    let reply = whole(ToolFamily::Hermes, &format!("One{one}{two}two \n{one}\n"));
    assert_eq!(reply.text, "One\ntwo");
    assert_eq!(reply.calls, [call("a", "{}"), call("b", "{\"x\":1}"), call("a", "{}")]);
}

#[test]
fn other_ways_of_writing_hermes_calls_are_understood() {
    let in_one =
        "<tool_call>{\"name\":\"a\",\"arguments\":{}}\n{\"name\":\"b\",\"parameters\":{}}</tool_call>";
    assert_eq!(whole(ToolFamily::Hermes, in_one).calls, [call("a", "{}"), call("b", "{}")]);
    let none = "<tool_call>{\"name\":\"a\",\"arguments\":null}</tool_call>";
    assert_eq!(whole(ToolFamily::Hermes, none).calls, [call("a", "{}")]);
    let list = "<tool_call>[{\"name\":\"a\"},{\"name\":\"b\",\"arguments\":{\"k\":2}}]</tool_call>";
    assert_eq!(whole(ToolFamily::Hermes, list).calls, [call("a", "{}"), call("b", "{\"k\":2}")]);
}

#[test]
fn a_closing_tag_inside_an_argument_is_part_of_it() {
    let arguments = r#"{"text": "write </tool_call> and \"</tool_call>\""}"#;
    let text = format!("<tool_call>{{\"name\":\"a\",\"arguments\":{arguments}}}</tool_call>after");
    let reply = whole(ToolFamily::Hermes, &text);
    assert_eq!(reply.calls, [call("a", arguments)]);
    assert_eq!(reply.text, "after");
}

fn problem(family: ToolFamily, text: &str) -> ParsedCall {
    let reply = whole(family, text);
    let bad = reply.calls.into_iter().find(|call| call.problem.is_some());
    bad.unwrap_or_else(|| panic!("no problem was seen in {text}"))
}

#[test]
fn a_call_that_cannot_be_read_has_a_problem_and_keeps_its_text() {
    let bodies = [
        ("{\"name\": \"a\", \"arguments\": {\"x\": 1}", "a"),
        ("{\"name\": \"a\", \"arguments\": {'x': 1}}", "a"),
        ("{\"name\": \"a\", \"arguments\": {\"x\": 1,}}", "a"),
        ("{\"name\": \"a\", \"arguments\": []}", "a"),
        ("{\"name\": \"a\", \"arguments\": \"{}\"}", "a"),
        ("{\"name\": \"a\", \"name\": \"b\", \"arguments\": {}}", "a"),
        ("{\"name\": \"\", \"arguments\": {}}", "unreadable_call"),
        ("{\"arguments\": {}}", "unreadable_call"),
        ("", "unreadable_call"),
        ("run a", "unreadable_call"),
    ];
    for (body, name) in bodies {
        let bad = problem(ToolFamily::Hermes, &format!("<tool_call>{body}</tool_call>"));
        assert_eq!(bad.name, name, "{body}");
        assert!(body.contains(bad.arguments.trim()), "{body}: {bad:?}");
    }
}

#[test]
fn arguments_too_deep_to_be_read_again_are_a_problem() {
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let bad = problem(
        ToolFamily::Hermes,
        &format!("<tool_call>{{\"name\":\"a\",\"arguments\":{deep}}}</tool_call>"),
    );
    assert!(bad.problem.unwrap().contains("recursion"), "said why");
    assert_eq!(bad.arguments, deep);
}

#[test]
fn every_cut_of_a_call_is_seen() {
    let samples = [
        (ToolFamily::Hermes, "<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": \"y\"}}\n</tool_call>"),
        (
            ToolFamily::QwenCoder,
            "<tool_call>\n<function=a>\n<parameter=x>\ny\n</parameter>\n</function>\n</tool_call>",
        ),
        (ToolFamily::Glm, "<tool_call>a\n<arg_key>x</arg_key>\n<arg_value>y</arg_value>\n</tool_call>"),
        (ToolFamily::Mistral, "[TOOL_CALLS]a[ARGS]{\"x\": \"y\"}"),
        (ToolFamily::Mistral, "[TOOL_CALLS][{\"name\": \"a\", \"arguments\": {\"x\": \"y\"}}]"),
        (ToolFamily::Llama, "<|python_tag|>{\"name\": \"a\", \"parameters\": {\"x\": \"y\"}}"),
        (ToolFamily::Llama, "{\"name\": \"a\", \"parameters\": {\"x\": \"y\"}}"),
    ];
    for (family, text) in samples {
        let full = whole(family, text).calls;
        assert_eq!(full.len(), 1, "{text}");
        assert_eq!((full[0].problem.as_deref(), full[0].name.as_str()), (None, "a"), "{text}");
        for end in 1..text.len() {
            let marked = openings(family).iter().any(|(open, _)| text[..end].starts_with(open));
            let calls = whole(family, &text[..end]).calls;
            assert!(!marked || !calls.is_empty(), "{:?} vanishes", &text[..end]);
            for read in calls {
                // A call that is whole but for its closing tag is whole.
                let same = read == full[0];
                assert!(same || read.problem.is_some(), "{:?} gives {read:?}", &text[..end]);
            }
        }
    }
}

#[test]
fn qwen_coder_calls_are_read() {
    let text = "Sure.\n<tool_call>\n<function=call_tool>\n<parameter=name>\nfs/read\n</parameter>\n\
                <parameter=arguments>\n{\"path\": \"a.txt\",  \"n\": 1.0}\n</parameter>\n<parameter=note>\ntwo\n \"lines\"\n\
                </parameter>\n</function>\n</tool_call>";
    let reply = whole(ToolFamily::QwenCoder, text);
    assert_eq!(reply.text, "Sure.");
    let arguments =
        r#"{"name": "fs/read", "arguments": {"path": "a.txt",  "n": 1.0}, "note": "two\n \"lines\""}"#;
    assert_eq!(reply.calls, [call("call_tool", arguments)]);
    let bare = "<function=a>\n<parameter=x>\n17\n</parameter>\n</function>\ndone";
    let reply = whole(ToolFamily::QwenCoder, bare);
    assert_eq!(reply.calls, [call("a", "{\"x\": \"17\"}")]);
    assert_eq!(reply.text, "done");
    let two = "<tool_call><function=a></function><function=b></function></tool_call>";
    assert_eq!(whole(ToolFamily::QwenCoder, two).calls, [call("a", "{}"), call("b", "{}")]);
    let twice =
        "<tool_call><function=a><parameter=x>1</parameter><parameter=x>2</parameter></function></tool_call>";
    assert!(problem(ToolFamily::QwenCoder, twice).problem.unwrap().contains("twice"));
}

#[test]
fn glm_calls_are_read() {
    let text = "<tool_call>call_tool\n<arg_key>name</arg_key>\n<arg_value>time</arg_value>\n<arg_key>arguments</arg_key>\n\
                <arg_value>{}</arg_value>\n</tool_call><tool_call>find_tool</tool_call>";
    let calls = whole(ToolFamily::Glm, text).calls;
    assert_eq!(
        calls,
        [call("call_tool", "{\"name\": \"time\", \"arguments\": {}}"), call("find_tool", "{}")]
    );
    let bad = "<tool_call>a<arg_key>x</arg_key></tool_call>";
    assert!(problem(ToolFamily::Glm, bad).problem.unwrap().contains("<arg_value>"));
}

#[test]
fn mistral_calls_are_read() {
    let old = "Hm [TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {\"x\": 1}, \"id\": \"abc\"}, {\"name\": \"b\", \"arguments\": {}}]";
    let reply = whole(ToolFamily::Mistral, old);
    assert_eq!((reply.text.as_str(), reply.calls.len()), ("Hm", 2));
    assert_eq!(reply.calls[0], call("a", "{\"x\": 1}"));
    let new = "[TOOL_CALLS]a[CALL_ID]xyz[ARGS]{\"x\":1}[TOOL_CALLS]b{\"y\": 2}";
    assert_eq!(whole(ToolFamily::Mistral, new).calls, [call("a", "{\"x\":1}"), call("b", "{\"y\": 2}")]);
}

#[test]
fn llama_calls_are_read_and_other_json_is_text() {
    let two =
        "<|python_tag|>{\"name\": \"a\", \"parameters\": {\"x\": 1}}; {\"name\": \"b\", \"parameters\": {}}";
    assert_eq!(whole(ToolFamily::Llama, two).calls, [call("a", "{\"x\": 1}"), call("b", "{}")]);
    let bare = " {\"name\": \"a\", \"parameters\": {}}\n";
    assert_eq!(whole(ToolFamily::Llama, bare).calls, [call("a", "{}")]);
    let json = whole(ToolFamily::Llama, "{\"answer\": 42}");
    assert_eq!((json.text.as_str(), json.calls.len()), ("{\"answer\": 42}", 0));
    let later = whole(ToolFamily::Llama, "See {\"name\": \"a\", \"parameters\": {}}");
    assert!(later.calls.is_empty(), "only a whole message is a call");
}

#[test]
fn reasoning_is_separated_and_never_called() {
    let tags = think(false);
    let text = "<think>\nMaybe <tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n</think>\n\nHello";
    let reply = read(ToolFamily::Hermes, Some(&tags), &[text]);
    assert_eq!(reply.text, "Hello");
    assert_eq!(
        reply.reasoning.as_deref(),
        Some("Maybe <tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>")
    );
    assert!(reply.calls.is_empty() && !reply.reasoning_open);
}

#[test]
fn reasoning_opened_by_the_prompt_begins_at_once() {
    let tags = think(true);
    let reply = read(ToolFamily::Hermes, Some(&tags), &["\nSo", "\n</thi", "nk>\n\nYes"]);
    assert_eq!((reply.text.as_str(), reply.reasoning.as_deref()), ("Yes", Some("So")));
    let open = read(ToolFamily::Hermes, Some(&tags), &["thinking still </thin"]);
    assert!(open.reasoning_open);
    assert_eq!(open.reasoning.as_deref(), Some("thinking still </thin"));
    let empty = read(ToolFamily::Hermes, Some(&tags), &["\n\n</think>\n\nYes"]);
    assert_eq!(empty.reasoning, None);
}

#[test]
fn a_tag_that_is_talked_about_is_text() {
    let tags = think(false);
    let reply = read(ToolFamily::Hermes, Some(&tags), &["The <think> tag and the </think> tag."]);
    assert_eq!((reply.text.as_str(), reply.reasoning), ("The <think> tag and the </think> tag.", None));
}

#[test]
fn a_capped_thought_is_recognised() {
    let tags = think(true);
    let forced = format!("I wonder{CAP_MESSAGE}</think>\n\nSo: yes.");
    let reply = read(ToolFamily::Hermes, Some(&tags), &[&forced]);
    assert!(reply.capped);
    assert!(reply.reasoning.unwrap().starts_with("I wonder"));
    assert!(!read(ToolFamily::Hermes, Some(&tags), &["I wonder</think>"]).capped);
}

#[test]
fn the_state_tells_whether_it_thinks() {
    let mut parser = ReplyParser::new(ToolFamily::Hermes, Some(&think(false)));
    assert!(!parser.in_reasoning());
    parser.feed("<think>x");
    assert!(parser.in_reasoning());
    parser.feed("</think>");
    assert!(!parser.in_reasoning());
}

#[test]
fn a_possible_tag_is_held_back_and_no_more() {
    let mut parser = ReplyParser::new(ToolFamily::Hermes, None);
    assert_eq!(parser.feed("a <tool"), [Part::Text("a".to_owned())]);
    assert_eq!(parser.feed("box"), [Part::Text(" <toolbox".to_owned())]);
    assert_eq!(parser.feed(" <"), []);
    let (tail, reply) = parser.finish();
    assert_eq!(tail, [Part::Text(" <".to_owned())]);
    assert_eq!(reply.text, "a <toolbox <");
}

/// Words that parsers trip over.
fn word() -> impl Strategy<Value = String> {
    const WORDS: &[&str] = &[
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<function=",
        "a>",
        "</function>",
        "<parameter=x>",
        "</parameter>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        "\"name\"",
        ":",
        "\"a\"",
        ",",
        "\"arguments\"",
        "\"parameters\"",
        "{}",
        " ",
        "\n",
        "<",
        "\u{1f98a}",
        "text",
        "<|python_tag|>",
        ";",
        "{\"name\": \"a\", \"arguments\": {\"x\": \"</tool_call>\"}}",
    ];
    prop::sample::select(WORDS).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_cutting_gives_the_same_reply(
        words in prop::collection::vec(word(), 0..24),
        cuts in prop::collection::vec(0usize..200, 0..12),
        family in prop::sample::select(&FAMILIES[..]),
        tags in prop::option::of(any::<bool>()),
    ) {
        let text: String = words.concat();
        let tags = tags.map(think);
        let once = read(family, tags.as_ref(), &[&text]);
        let mut ends: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces: Vec<&str> = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(&read(family, tags.as_ref(), &pieces), &once);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        prop_assert_eq!(&read(family, tags.as_ref(), &letters), &once);
    }

    #[test]
    fn a_call_without_a_problem_has_arguments_that_can_be_read(
        words in prop::collection::vec(word(), 0..24),
        family in prop::sample::select(&FAMILIES[..]),
    ) {
        for call in whole(family, &words.concat()).calls {
            prop_assert!(!call.name.is_empty());
            if call.problem.is_none() {
                let value: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
                prop_assert!(value.is_object());
            }
        }
    }

    #[test]
    fn arguments_survive_every_json_family(
        key in "[a-z]{1,8}",
        value in any::<String>(),
        number in any::<f64>().prop_filter("finite", |n| n.is_finite()),
        space in "[ \n]{0,3}",
    ) {
        let arguments = format!("{{{space}{}:{space}{}, \"n\": {number:?}}}", serde_json::json!(key), serde_json::json!(value));
        let cases = [
            (ToolFamily::Hermes, format!("<tool_call>{{\"name\":\"t\",\"arguments\":{arguments}}}</tool_call>")),
            (ToolFamily::Mistral, format!("[TOOL_CALLS]t[ARGS]{arguments}")),
            (ToolFamily::Llama, format!("{{\"name\":\"t\",\"parameters\":{arguments}}}")),
        ];
        for (family, text) in cases {
            // The marks themselves inside an argument end a Mistral call: its format has no quoting.
            prop_assume!(!value.contains("[TOOL_CALLS]") && !value.contains("[ARGS]"));
            prop_assert_eq!(whole(family, &text).calls, vec![call("t", &arguments)]);
        }
    }

    #[test]
    fn arguments_survive_every_tag_family(
        keys in prop::collection::btree_set("[a-z_]{1,8}", 2),
        text in any::<String>(),
        list in prop::collection::vec(any::<String>(), 0..3),
    ) {
        let keys: Vec<String> = keys.into_iter().collect();
        let list = serde_json::json!(list).to_string();
        // the formats have no quoting: a value cannot hold their own tags, and one that is JSON is taken for it
        let bare = |value: &str| !["<parameter=", "</parameter>", "</function>", "<function=", "</tool_call>", "</arg_value>"]
            .iter()
            .any(|tag| value.contains(tag));
        prop_assume!(bare(&text) && bare(&list) && !text.trim_start().starts_with(['{', '[']));
        let json = format!("{{{}: {}, {}: {list}}}", serde_json::json!(keys[0]), serde_json::json!(text), serde_json::json!(keys[1]));
        let [first, second] = [(&keys[0], &text), (&keys[1], &list)];
        let parameter = |(key, value): (&String, &String)| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let pair = |(key, value): (&String, &String)| format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n");
        let cases = [
            (
                ToolFamily::QwenCoder,
                format!("<tool_call>\n<function=t>\n{}{}</function>\n</tool_call>", parameter(first), parameter(second)),
            ),
            (ToolFamily::Glm, format!("<tool_call>t\n{}{}</tool_call>", pair(first), pair(second))),
        ];
        for (family, text) in cases {
            prop_assert_eq!(whole(family, &text).calls, vec![call("t", &json)]);
        }
    }
}
