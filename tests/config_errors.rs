//! What is wrong in a file is told with file, line, key, what was found and what is allowed.

#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::path::Path;

use boxmaker::config::{Config, ConfigError, Environment, Overrides, Problem};

fn problems(text: &str) -> Vec<Problem> {
    let environment = Environment { home: Some("/home/me".into()), ..Environment::default() };
    match Config::from_toml_in(text, Path::new("/etc/loopd.toml"), &Overrides::default(), &environment) {
        Err(ConfigError::Invalid(problems)) => problems,
        Err(other) => panic!("{text}\n{other}"),
        Ok(_) => panic!("accepted: {text}"),
    }
}

/// The one thing that is wrong with `text`, as a line.
fn words(text: &str) -> String {
    let problems = problems(text);
    assert_eq!(problems.len(), 1, "{text}\n{problems:#?}");
    problems[0].to_string()
}

#[test]
fn each_message_names_place_finding_and_remedy() {
    let cases = [
        ("[limits]\nturn_secnds = 1", "2: [limits] turn_secnds: unknown key; did you mean turn_seconds?"),
        ("[limit]", "1: limit: unknown key; did you mean limits?"),
        ("[deamon]", "1: deamon: unknown key; did you mean daemon?"),
        ("slot = 1", "1: slot: unknown key; it belongs in [daemon]"),
        ("[model]\ntemperature = 1", "2: [model] temperature: unknown key; it belongs in [model.sampling]"),
        (
            "[model]\nfrob = 1",
            "2: [model] frob: unknown key; known keys are url, api_key_file, slot_dir, reasoning, system_prompt, system_prompt_file, at_shutdown, sampling",
        ),
        (
            "[limits]\n\nturn_seconds = \"ten\"",
            "3: [limits] turn_seconds: found \"ten\" (a string); allowed is a whole number from 1 to 604800 (seconds)",
        ),
        (
            "[limits]\nturn_seconds = 0",
            "2: [limits] turn_seconds: found 0 (a whole number); allowed is a whole number from 1 to 604800 (seconds)",
        ),
        (
            "[limits]\nturn_seconds = -1",
            "2: [limits] turn_seconds: found -1 (a whole number); allowed is a whole number from 1 to 604800 (seconds)",
        ),
        (
            "[limits]\nclients = 99999999999999999999999999999999999999999999",
            "2: [limits] clients: found 99999999999999999999999999999999999999999999 (a whole number); allowed is a whole number from 1 to 1024 (clients)",
        ),
        (
            "[limits]\nturn_seconds = 1.5",
            "2: [limits] turn_seconds: found 1.5 (a number); allowed is a whole number from 1 to 604800 (seconds)",
        ),
        ("limits = 3", "1: limits: found 3 (a whole number); allowed is a table: [limits]"),
        (
            "[daemon]\nhome = \"~/box\"",
            "2: [daemon] home: found \"~/box\": it is not absolute (~ is not replaced here); allowed is an absolute path",
        ),
        (
            "[daemon]\nhome = \"box\"",
            "2: [daemon] home: found \"box\": it is not absolute; allowed is an absolute path",
        ),
        (
            "[daemon]\nhome = \"/a\\u0000b\"",
            "2: [daemon] home: found \"/a\\0b\": it has a NUL; allowed is an absolute path",
        ),
        (
            "[daemon]\nslot = 1024",
            "2: [daemon] slot: found 1024 (a whole number); allowed is a whole number from 0 to 1023",
        ),
        (
            "[daemon]\nlog_level = \"loud\"",
            "2: [daemon] log_level: found \"loud\" (a string); allowed are \"error\", \"warn\", \"info\", \"debug\", \"trace\"",
        ),
        (
            "[daemon]\ntorn_tail = true",
            "2: [daemon] torn_tail: found true (true or false); allowed are \"refuse\", \"quarantine\"",
        ),
        (
            "[model]\nreasoning = \"on\"",
            "2: [model] reasoning: found \"on\" (a string); allowed are true and false",
        ),
        (
            "[model.sampling]\ntop_p = 2",
            "2: [model.sampling] top_p: found 2 (a whole number); allowed is a number from 0 to 1",
        ),
        (
            "[model.sampling]\ntemperature = nan",
            "2: [model.sampling] temperature: found nan (a number); allowed is a number from 0 to 10",
        ),
        (
            "[model.sampling]\nseed = 4294967295",
            "2: [model.sampling] seed: found 4294967295 (a whole number); allowed is a whole number from 0 to 4294967294",
        ),
        (
            "[tools.command.Weather]",
            "1: [tools.command] Weather: \"Weather\" cannot be a tool's name; allowed are 1 to 64 of a-z 0-9 _ -, a letter or digit first",
        ),
        (
            "[tools.command.find_tool]",
            "1: [tools.command] find_tool: find_tool is the name of a tool that loopd brings itself; allowed are 1 to 64 of a-z 0-9 _ -, a letter or digit first",
        ),
        (
            "[tools.command]\nx = 1",
            "2: [tools.command] x: found 1 (a whole number); allowed is a table: [tools.command.x]",
        ),
        ("[tools]\nmcp = []", "2: [tools] mcp: found a list; allowed are tables: [tools.mcp.<name>]"),
    ];
    for (text, expected) in cases {
        // A table where a tool should be lacks program and description too: only the first counts.
        let first = problems(text).remove(0).to_string();
        assert_eq!(first, format!("/etc/loopd.toml:{expected}"), "{text}");
    }
}

#[test]
fn everything_wrong_is_told_at_once_in_the_order_of_lines() {
    let text = "[tools]\nunattended = 1\n[limits]\nclients = 0\nfoo = 1\n[daemon]\nhome = \"x\"\n";
    let lines: Vec<usize> = problems(text).iter().map(|p| p.line).collect();
    assert_eq!(lines, [2, 4, 5, 7]);
}

#[test]
fn text_that_is_not_toml_is_refused_with_its_line() {
    for (text, line) in
        [("[daemon]\nslot = \n", 2), ("[daemon\n", 1), ("[daemon]\nslot = 1\nslot = 2\n", 3), ("\n\u{0}", 2)]
    {
        let first = problems(text).remove(0);
        assert_eq!(first.line, line, "{text:?} {first}");
        assert!(first.found.starts_with("not TOML: "), "{first}");
    }
    // As deep as anybody can write it.
    let deep = format!("[tools.command.x]\nschema = {}{}", "[".repeat(5_000), "]".repeat(5_000));
    assert!(problems(&deep).iter().all(|p| p.line <= 2));
}

#[test]
fn addresses_that_cannot_be_are_refused_with_words() {
    let long = format!("unix:/{}", "x".repeat(107));
    let cases = [
        ("https://box:1", "https is not supported"),
        ("http://box", "it has no port"),
        ("http://box/path", "it has no port"),
        ("http://[::1]", "it has no port"),
        ("http://box:0", "\"0\" is not a port"),
        ("http://box:+1", "\"+1\" is not a port"),
        ("http://box:65536", "\"65536\" is not a port"),
        ("http://:1", "\"\" is not a host"),
        ("http://bo x:1", "\"bo x\" is not a host"),
        ("http://[::g]:1", "\"::g\" is not a host"),
        ("http://::1:1", "is not a host"),
        ("http://box:1/v1/", "leave /v1 out"),
        ("http://box:1/a b", "its path has"),
        ("http://box:1?x=1", "its path has"),
        ("http:box:1", "begins with neither"),
        ("box:1", "begins with neither"),
        ("", "begins with neither"),
        ("unix:llama.sock", "is not absolute"),
        ("unix:./llama.sock", "is not absolute"),
        ("unix:", "is not absolute"),
        ("unix://host/x.sock", "names a host"),
        ("unix:/", "does not name a file"),
        ("unix:/run/", "does not name a file"),
        (long.as_str(), "has 108 bytes and that of a Unix socket has at most 107"),
    ];
    for (url, expected) in cases {
        let words = words(&format!("[model]\nurl = {url:?}"));
        assert!(words.starts_with("/etc/loopd.toml:2: [model] url: "), "{words}");
        assert!(words.contains(expected) && words.contains("allowed are http://host:port"), "{url}: {words}");
    }
}

#[test]
fn a_password_is_never_repeated() {
    let urls = [
        "http://me:hunter2@box:1",
        "https://me:hunter2@box",
        "me:hunter2@box",
        "hunter2@box",
        "HTTP://hunter2@box:1/",
    ];
    for url in urls {
        for table in ["[model]", "[tools.mcp.x]"] {
            let words = words(&format!("{table}\nurl = {url:?}"));
            assert!(words.contains("user name or a password") && !words.contains("hunter2"), "{words}");
        }
    }
    for text in [
        "[model]\napi_key = \"hunter2\"",
        "[model]\napi_key_file = \".hunter2\"",
        "[model]\napi_key_file = \"hunter2/x\"",
        "[tools.command.x]\nprogram = \"/x\"\ndescription = \"x\"\nenvironment = [\"TOKEN=hunter2\"]",
    ] {
        assert!(!words(text).contains("hunter2"), "{text}");
    }
    assert!(words("[model]\napi_key = \"hunter2\"").contains("[model] api_key_file"));
}

#[test]
fn socket_paths_are_held_to_what_a_socket_takes() {
    let fits =
        format!("[daemon]\nsocket = \"/{}\"\n[model]\nurl = \"unix:/{}\"", "x".repeat(106), "y".repeat(106));
    let environment = Environment { home: Some("/home/me".into()), ..Environment::default() };
    Config::from_toml_in(&fits, Path::new("f"), &Overrides::default(), &environment).unwrap();
    let long = words(&format!("[daemon]\nsocket = \"/{}\"", "x".repeat(107)));
    assert!(long.contains("108 bytes") && long.contains("at most 107"), "{long}");
    assert!(words("[daemon]\nsocket = \"loopd.sock\"").contains("it is not absolute"));
}

#[test]
fn tools_are_checked_key_by_key() {
    let tool = "[tools.command.x]\nprogram = \"/bin/x\"\ndescription = \"Does x.\"\n";
    let cases = [
        ("[tools.command.x]\ndescription = \"x\"", "program: is missing"),
        ("[tools.command.x]\nprogram = \"/x\"", "description: is missing"),
        ("[tools.command.x]\nprogram = \"x\"\ndescription = \"x\"", "it is not absolute"),
        ("[tools.command.x]\nprogram = \"/x\"\ndescription = \" \"", "found an empty text"),
        ("[tools.mcp.x]", "command: is missing"),
        ("[tools.mcp.x]\ncommand = \"/x\"\nurl = \"http://a:1\"", ":2: [tools.mcp.x] command: excludes url"),
        ("[tools.mcp.x]\nurl = \"unix:/x\"", "allowed is http://"),
    ];
    for (text, expected) in cases {
        assert!(words(text).contains(expected), "{text}: {}", words(text));
    }
    // all that is wrong is told at once
    let all = problems("[tools.mcp.x]\nargs = 1\nread = [\"x\"]");
    let keys = ["command", "args", "read"];
    assert!(all.iter().map(|problem| problem.key.rsplit(']').next().unwrap().trim()).eq(keys), "{all:#?}");
    let second = format!("{tool}\n[tools.command.y]\nprogram = \"/y\"\n");
    assert!(words(&second).starts_with("/etc/loopd.toml:5: [tools.command.y] description: is missing"));
    let more = [
        ("policy = \"maybe\"", "allowed are \"allow\", \"ask\", \"deny\""),
        ("seconds = 0", "allowed is a whole number from 1 to 86400 (seconds)"),
        ("output_bytes = 1", "allowed is a whole number from 256"),
        ("directory = \"x\"", "it is not absolute"),
        ("args = \"x\"", "allowed is a list"),
        ("args = [\n\"x\",\n1]", ":6: [tools.command.x] args: found 1 (a whole number)"),
        ("args = [\"\\u0000\"]", "found a NUL"),
        ("environment = [\"A B\"]", "not the name of a variable"),
        ("sceonds = 1", "did you mean seconds?"),
        ("schema = 1", "found neither a table nor a string"),
        ("schema = \"{\"", "the schema is not JSON"),
        ("schema = {}", "the schema is not one of an object"),
        ("schema = { type = \"array\" }", "the schema is not one of an object"),
        ("schema = { type = \"object\", x = nan }", "a number that JSON does not know"),
        ("schema = { type = \"object\", x = 1979-05-27 }", "a time, which JSON does not know"),
        ("schema = { type = \"object\", x = 9223372036854775808 }", "a number out of range"),
    ];
    for (line, expected) in more {
        let words = words(&format!("{tool}{line}"));
        assert!(words.contains(expected), "{line}: {words}");
    }
}
