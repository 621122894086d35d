//! The real `bxctl` against a scripted daemon: searching, forking, counters, and the HTML page.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use boxmaker::proto::{
    AssistantMessage, CallId, ErrorBody, ErrorCode, Finish, Hit, LogRecord, Reply, Request, SessionInfo,
    Speaker, TokenIds, ToolCall, ToolOutcome, ToolResult, TurnId, TurnOutcome, TurnUsage,
};
use cli_fake::{Act, Fake, info, stderr, stdout, time, user_message, usual};

#[test]
fn search_prints_passages_and_ends_as_grep_does() {
    let hit = Hit {
        session: "s1".parse().unwrap(),
        name: Some("garden".to_owned()),
        turn: TurnId(3),
        time: time(),
        who: Speaker::User,
        passage: "plant the \x1b[31mbeans".to_owned(),
    };
    let fake = Fake::start(move |request| match request {
        Request::Search { text, .. } if text == "the beans" => Act::Reply(Reply::Found {
            hits: vec![hit.clone()],
            more: true,
            unread: vec!["s9".parse().unwrap()],
        }),
        Request::Search { .. } => Act::Reply(Reply::Found { hits: vec![], more: false, unread: vec![] }),
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["search", "the", "beans", "--session", "s1", "--most", "1"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        stdout(&output),
        "session s1 \"garden\"\n  turn 3 · 2026-01-31 23:59 · you: plant the ␛[31mbeans\n"
    );
    assert!(stderr(&output).contains("--most 10") && stderr(&output).contains("session s9 cannot be read"));
    let Some(Request::Search { session, most, .. }) = fake.asked().pop() else { unreachable!() };
    assert_eq!((session.unwrap().as_str(), most), ("s1", 1));

    let output = fake.run(&["search", "cabbage"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""));
    assert!(stderr(&output).contains("nothing was found"));
    let output = fake.run(&["search", "cabbage", "--json"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), "[]\n"));
    assert_eq!(fake.run(&["search"]).status.code(), Some(2));
}

#[test]
fn fork_prints_the_new_id() {
    let fake = Fake::start(|request| match request {
        Request::Fork { turn: Some(TurnId(9)), .. } => {
            Act::Refuse(ErrorBody::new(ErrorCode::NotFound, "session s1 has no turn 9 that has ended"))
        }
        Request::Fork { name, .. } => Act::Reply(Reply::Session {
            info: SessionInfo { name: name.clone(), ..info("s7") },
            differs: vec![],
        }),
        other => usual(other).unwrap(),
    });
    let output = fake.run(&["fork", "s1", "--turn", "1", "--name", "other"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "s7\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("the first turn of s1"), "{}", stderr(&output));
    assert_eq!(fake.run(&["fork", "--turn", "9"]).status.code(), Some(4));
    let output = fake.run(&["fork", "--json"]);
    let forked: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    assert_eq!(forked["id"], "s7");
}

#[test]
fn metrics_are_printed_as_they_are() {
    let fake = Fake::start(|request| match request {
        Request::Metrics {} => Act::Reply(Reply::Metrics { text: "# TYPE x counter\nx 1\n".to_owned() }),
        other => usual(other).unwrap(),
    });
    assert_eq!(stdout(&fake.run(&["metrics"])), "# TYPE x counter\nx 1\n");
}

#[test]
fn help_is_a_command_too() {
    let fake = Fake::start(|request| usual(request).unwrap());
    for arguments in [&["help"][..], &["help", "search"], &["search", "--help"]] {
        let output = fake.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(stdout(&output).contains("Usage: bxctl"));
    }
}

const EVIL: &str = "</div><script>alert('x')</script> & \"quoted\" \u{202e}";

/// A daemon with one session in which everybody says what is evil to a page.
fn evil() -> Fake {
    let turn = TurnId(1);
    let call = ToolCall {
        call: CallId(1),
        name: "call_tool".to_owned(),
        arguments: format!(r#"{{"name":"clock","arguments":{{"zone":"{}"}}}}"#, EVIL.replace('"', "'")),
    };
    let answer = |text: &str, tool_calls| {
        LogRecord::AssistantMessage(AssistantMessage {
            time: time(),
            turn,
            text: text.to_owned(),
            reasoning: Some(EVIL.to_owned()),
            finish: Finish::Stop,
            tool_calls,
            prompt_ids: TokenIds(vec![1]),
            ids: TokenIds(vec![2]),
        })
    };
    let records = vec![
        user_message(turn, EVIL),
        answer("", vec![call]),
        LogRecord::ToolResult(ToolResult {
            time: time(),
            turn,
            call: CallId(1),
            name: "call_tool".to_owned(),
            outcome: ToolOutcome::Error,
            content: EVIL.to_owned(),
            truncated_bytes: 0,
            millis: 5,
        }),
        answer(&format!("# Title {EVIL}\n**bold {EVIL}** and `code {EVIL}`\n```\n{EVIL}\n"), vec![]),
    ];
    let row = |turn, cache_n| TurnUsage {
        turn: TurnId(turn),
        epoch: None,
        cache_n,
        prompt_n: 40,
        predicted_n: 20,
        new_n: 30,
        lost_n: 10,
        reasoning_tokens: 0,
        thinking_capped: false,
        completions: 1,
        seconds: 1.0,
        outcome: Some(TurnOutcome::Done),
    };
    let rows = vec![row(1, 0), row(2, 100)];
    Fake::start(move |request| match request {
        Request::Export { .. } => Act::Reply(Reply::Records { records: records.clone(), next: None }),
        Request::Usage { .. } => Act::Reply(Reply::Usage { turns: rows.clone() }),
        Request::Latest {} => Act::Reply(Reply::Session {
            info: SessionInfo { name: Some(EVIL.to_owned()), model: Some(EVIL.to_owned()), ..info("s1") },
            differs: vec![],
        }),
        other => usual(other).unwrap(),
    })
}

/// Reads tags as a browser would, and gives those that are open at the end and all that were met.
fn tags(html: &str) -> (Vec<String>, Vec<String>) {
    let (mut open, mut met) = (Vec::new(), Vec::new());
    for piece in html.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap();
        let name = tag.split_whitespace().next().unwrap().trim_end_matches('/').to_owned();
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "in {tag:?}");
        } else {
            met.push(tag.to_owned());
            let void = ["meta", "hr", "!DOCTYPE"].contains(&name.as_str()) || tag.ends_with('/');
            if !void {
                open.push(name);
            }
        }
    }
    (open, met)
}

#[test]
fn the_page_is_whole_and_nothing_in_it_comes_alive() {
    let fake = evil();
    let output = fake.run(&["export", "--html"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = stdout(&output);
    let (open, met) = tags(page);
    assert!(open.is_empty(), "not closed: {open:?}");
    let allowed = [
        "!DOCTYPE",
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "h1",
        "h2",
        "p",
        "code",
        "figure",
        "svg",
        "g",
        "rect",
        "text",
        "figcaption",
        "span",
        "section",
        "time",
        "div",
        "details",
        "summary",
        "pre",
        "strong",
    ];
    for tag in met {
        let name = tag.split_whitespace().next().unwrap().trim_end_matches('/');
        assert!(allowed.contains(&name), "<{tag}>");
        let attributes = tag.split_whitespace().skip(1);
        assert!(!attributes.into_iter().any(|a| a.starts_with("on") || a.starts_with("href")), "<{tag}>");
    }
    assert!(page.contains("default-src 'none'"));
    assert_eq!(page.matches("&lt;script&gt;").count(), page.matches("alert(").count());
    assert!(!page.contains('\u{202e}') && !page.contains("src="));
    // the tool by its own name; both turns in the chart, each with its four kinds
    assert!(page.contains("Tool <code>clock</code> <span class=\"error\">"));
    assert!(page.contains("turn 2: 100 from cache, 30 evaluated, 10 evaluated again, 20 generated"));
    assert_eq!(page.matches("<rect").count(), 7);
}
