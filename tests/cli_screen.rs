//! What a chat looks like in a real pseudo-terminal: its rows, its colours, and what it does when the terminal changes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot go on has failed")]

mod cli_fake;

use std::time::Duration;

use boxmaker::proto::{CallId, EventKind, ToolOutcome, TurnOutcome};
use cli_fake::terminal::{Terminal, echo, finish, session, slow, waiting};
use cli_fake::{PATIENCE, end, events, text, usage};
use expectrl::Session;

fn a_rich_turn() -> Vec<EventKind> {
    let call = CallId(1);
    vec![
        EventKind::TurnStart { text: "hello".into(), retry: false },
        EventKind::Prefill { done: 150, total: 200, cached: 100 },
        EventKind::Reasoning { text: "The user greets me.".into() },
        text("Let me look."),
        usage(0),
        EventKind::ToolCall {
            call,
            name: "find_tool".into(),
            arguments: "{\"query\": \"weather today\"}".into(),
        },
        EventKind::ToolResult {
            call,
            name: "find_tool".into(),
            outcome: ToolOutcome::Ok,
            content: "weather\nclock".into(),
        },
        text("It is sunny; \x1b]0;owned\x07\x1b[2Jno escape"),
        text(" gets through: \u{9b}31m."),
        usage(12),
        end(TurnOutcome::Done, None),
    ]
}

#[test]
fn a_turn_at_80_columns() {
    let fake = waiting(a_rich_turn());
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("hello\r");
    terminal.wait_for("12 tokens were evaluated again");
    insta::assert_snapshot!(terminal.prompt());
    // dimmed reasoning, and no title from the model
    let screen = terminal.screen.screen();
    let row = screen.contents().lines().position(|line| line.contains("greets")).unwrap();
    let row = u16::try_from(row).unwrap();
    assert!(screen.cell(row, 0).unwrap().dim());
    assert!(!screen.cell(row + 1, 0).unwrap().dim());
    terminal.keys("\x04");
    assert_eq!(terminal.exit(), 0);
}

#[test]
fn a_turn_at_40_columns() {
    let fake = waiting(a_rich_turn());
    let mut terminal = Terminal::start(&fake, &["chat"], 40, 30);
    terminal.prompt();
    terminal.keys("hello\r");
    terminal.wait_for("12 tokens were evaluated again");
    insta::assert_snapshot!(terminal.prompt());
}

#[test]
fn prefill_is_one_line_that_is_rewritten() {
    let fake = waiting(vec![
        EventKind::TurnStart { text: "x".into(), retry: false },
        EventKind::Waiting { why: "the model is loading".into() },
        EventKind::Prefill { done: 100, total: 200, cached: 100 },
        EventKind::Prefill { done: 150, total: 200, cached: 100 },
    ]);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("x\r");
    let contents = terminal.wait_for("reading 75 %: 50 of 100 tokens, 100 from cache");
    assert!(!contents.contains("50 %:") && !contents.contains("loading"), "{contents}");
    fake.push(events(&session(), 2, 20, vec![text("done"), end(TurnOutcome::Done, None)]));
    let contents = terminal.wait(|contents| contents.ends_with("done\n>"));
    assert!(contents.ends_with("> x\ndone\n>"), "{contents}");
}

#[test]
fn no_colour_when_it_is_not_wanted() {
    let fake = waiting(a_rich_turn());
    let mut command = fake.command();
    command.env("NO_COLOR", "1").args(["send", "x"]);
    let mut session = Session::spawn(command).unwrap();
    let mut all = Vec::new();
    let _ = std::io::Read::read_to_end(&mut session, &mut all);
    let all = String::from_utf8_lossy(&all).replace("\r\x1b[K", "");
    assert!(all.contains("greets") && !all.contains('\x1b'), "{all:?}");
    let mut terminal = Terminal::start(&fake, &["send", "x"], 80, 24);
    terminal.wait_for("greets");
}

#[test]
fn stopped_and_resumed_resized_and_going_on() {
    let fake = slow();
    // as a shell with jobs does it
    let mut terminal = Terminal::start_in(
        &fake,
        r#"set -m; "$@"; stty -a | grep -o " icanon"; echo STOPPED; read x; fg; echo ENDED $?"#,
        60,
        30,
    );
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("answer 2 to go,");
    terminal.keys("\x1a");
    let contents = terminal.wait_for("STOPPED");
    assert!(contents.contains(" icanon\nSTOPPED"), "the terminal is not as it was: {contents}");
    fake.push(events(
        &session(),
        2,
        205,
        vec![text("a text that is longer than one row of the narrow screen")],
    ));
    terminal.session.get_process_mut().set_window_size(30, 30).unwrap();
    terminal.screen.screen_mut().set_size(30, 30);
    std::thread::sleep(Duration::from_millis(300));
    assert!(!terminal.contents().contains("narrow"));
    terminal.keys("\r");
    terminal.wait_for("the narrow screen");
    finish(&fake, 2);
    terminal.wait_for("and done.");
    let contents = terminal.prompt();
    // where rows are broken depends on when it was resumed; nothing is lost or doubled
    let words: String = contents.split_whitespace().collect();
    assert!(words.contains("atextthatislongerthanonerowofthenarrowscreenanddone."), "{contents}");
    assert_eq!(words.matches("screen").count(), 1, "{contents}");
    terminal.keys("still here\r");
    terminal.wait_for("answer 3 to still here,");
    terminal.keys("\x04");
    // the terminal is as it was before: the shell goes on
    terminal.wait_for("ENDED 0");
}

#[test]
fn markdown_is_styled_and_stays_as_it_was_written() {
    let fake = waiting(vec![text("a **bo"), text("ld** `word`\n# Title\n"), end(TurnOutcome::Done, None)]);
    let mut terminal = Terminal::start(&fake, &[], 80, 24);
    terminal.prompt();
    terminal.keys("x\r");
    let contents = terminal.wait_for("a **bold** `word`\n# Title");
    let row = contents.lines().position(|line| line.starts_with("a **")).unwrap();
    let row = u16::try_from(row).unwrap();
    let screen = terminal.screen.screen();
    let bold = |column| screen.cell(row, column).unwrap().bold();
    assert_eq!([bold(0), bold(4), bold(8), bold(11)], [false, true, true, false]);
    assert_ne!(screen.cell(row, 12).unwrap().fgcolor(), screen.cell(row, 0).unwrap().fgcolor());
    assert!(screen.cell(row + 1, 2).unwrap().bold());
}

#[test]
fn without_a_cursor_that_moves_lines_still_are_turns() {
    for term in ["dumb", "emacs"] {
        let fake = echo();
        let mut command = fake.command();
        command.env("TERM", term);
        let mut session = expectrl::Session::spawn(command).unwrap();
        let mut seen = String::new();
        for (keys, shown) in [("one\n", "You said: one"), ("two\n", "You said: two")] {
            std::io::Write::write_all(&mut session, keys.as_bytes()).unwrap();
            let until = std::time::Instant::now() + PATIENCE;
            while !seen.contains(shown) {
                assert!(std::time::Instant::now() < until, "{seen}");
                let mut buffer = [0; 1024];
                match session.try_read(&mut buffer) {
                    Ok(n) => seen.push_str(&String::from_utf8_lossy(&buffer[..n])),
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        }
        assert!(!seen.contains('\x1b'), "{seen:?}");
        // a screen reader reads each line once: this terminal does not show what is typed
        assert!(!seen.contains("> one"), "{seen:?}");
    }
}

/// What a model may write, in the pieces that a tokenizer makes of it.
fn a_page() -> Vec<EventKind> {
    const PAGE: &str = "# Three ways to cook rice\n\n\
        It depends on the **rice** and on patience: see https://example.org/a/long/address/that/is/in/one/piece/rice \
        for more.\n\n\
        1. Rinse it.\n\
        2. Add `1.5` parts of water, and then leave it alone for as long as it takes.\n   - not stirred, and with the \
        lid **on** all the time\n\n\
        > A watched pot never boils, or so they say, and they may well be right.\n\n\
        ```rust\nlet answer: Vec<u64> = (0..10).map(|n| n * n).collect();\n```\n\n\
        | Rice | Water |\n|---|---|\n| 玄米, the brown kind that takes longer | 2.0 |\n\n\
        日本語の長い行は折り返されますか？これはとても長い行です。🍚\n";
    let mut kinds = vec![EventKind::TurnStart { text: "x".into(), retry: false }];
    let chars: Vec<char> = PAGE.chars().collect();
    kinds.extend(chars.chunks(3).map(|piece| text(&piece.iter().collect::<String>())));
    kinds.extend([usage(0), end(TurnOutcome::Done, None)]);
    kinds
}

#[test]
fn an_answer_is_readable_at_any_width() {
    for columns in [40, 200] {
        let fake = waiting(a_page());
        let mut terminal = Terminal::start(&fake, &[], columns, 50);
        terminal.prompt();
        terminal.keys("how do I cook rice, if I have no time and no pot, and nobody else is here?\r");
        terminal.wait_for("from cache");
        insta::assert_snapshot!(format!("an_answer_at_{columns}_columns"), terminal.prompt());
    }
}

#[test]
fn what_was_typed_stands_out_and_only_where_colours_are_wanted() {
    for (colour, begin) in [(true, "NO_COLOR="), (false, "NO_COLOR=1")] {
        let fake = echo();
        let script = format!("{begin} exec \"$@\"");
        let mut terminal = Terminal::start_in(&fake, &script, 80, 24);
        terminal.prompt();
        terminal.keys("hello\r");
        terminal.wait_for("You said: hello");
        terminal.prompt();
        terminal.keys("again");
        let contents = terminal.wait(|now| now.ends_with("> again"));
        let screen = terminal.screen.screen();
        for (line, bold) in [("> hello", true), ("> again", true), ("You said", false)] {
            let row = contents.lines().position(|l| l.starts_with(line)).unwrap();
            let cell = screen.cell(u16::try_from(row).unwrap(), 3).unwrap();
            assert_eq!(cell.bold(), bold && colour, "{line}");
        }
        // the editor's own row is taken away, and what was sent stands there once
        assert_eq!(contents.matches("> hello").count(), 1, "{contents}");
    }
}

#[test]
fn a_terminal_that_becomes_narrow_is_written_to_as_it_is_now() {
    let fake = slow();
    let mut terminal = Terminal::start(&fake, &[], 80, 40);
    terminal.prompt();
    terminal.keys("go\r");
    terminal.wait_for("answer 2 to go,");
    terminal.keys("a message that waits and that is longer than one row of a narrow terminal\r");
    terminal.wait_for("1 waits: a message");
    terminal.session.get_process_mut().set_window_size(40, 40).unwrap();
    terminal.screen.screen_mut().set_size(40, 40);
    for n in 0..12 {
        fake.push(events(&session(), 2, 210 + n, vec![text(&format!("word{n} "))]));
        terminal.wait_for(&format!("word{n}"));
    }
    let contents = terminal.wait(|now| now.ends_with("\n>"));
    let answer = "word0 word1 word2 word3 word4 word5\nword6 word7 word8 word9 word10 word11\n";
    assert!(contents.contains(answer), "{contents}");
    // once as it was before, and once as it is now
    assert_eq!(contents.matches("1 waits").count(), 2, "{contents}");
    assert!(contents.ends_with("\n  1 waits: a message that waits and th…\n>"), "{contents}");
}
