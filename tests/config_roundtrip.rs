//! What `to_toml` prints loads back to an equal configuration, for configurations of every shape.

#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use boxmaker::config::{
    CommandTool, Config, DaemonConfig, Environment, KvAtShutdown, Limit, Limits, LogLevel, McpServer,
    McpTransport, ModelConfig, ModelUrl, Overrides, Policy, Reach, ToolSchema, ToolsConfig, TornTail,
    Unattended,
};
use boxmaker::proto::{ReasoningSettings, Sampling};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

/// Text of every kind but NUL: quotes, line ends of all sorts, control characters, what TOML escapes.
fn text() -> impl Strategy<Value = String> {
    let odd = prop_oneof![
        Just("\"\"\"".to_owned()),
        Just("'''".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n".to_owned()),
        Just("\r".to_owned()),
        Just("\\".to_owned()),
        Just("\u{2028}\u{7f}\u{1b}".to_owned()),
        "[^\0]{0,8}",
    ];
    vec(odd, 0..6).prop_map(|parts| parts.concat())
}

/// Never one that ends in `.` or `..`, which names no file.
fn path() -> impl Strategy<Value = PathBuf> {
    "/[^\0/.][^\0/]{0,20}(/[^\0/.][^\0/]{0,8}){0,2}".prop_map(PathBuf::from)
}

fn socket() -> impl Strategy<Value = PathBuf> {
    "/[^\0/.][^\0/]{0,20}".prop_map(PathBuf::from)
}

fn url() -> impl Strategy<Value = ModelUrl> {
    let host = prop_oneof!["[a-z0-9._-]{1,20}", Just("::1".to_owned()), Just("fe80::1:2".to_owned())];
    let http = (host, 1..=u16::MAX, "(/[a-z0-9%.~_-]{3,9}){0,3}")
        .prop_map(|(host, port, path)| ModelUrl::Http { host, port, path });
    prop_oneof![http, socket().prop_map(ModelUrl::Unix)]
}

fn limits() -> impl Strategy<Value = Limits> {
    vec(any::<u64>(), Limit::ALL.len()).prop_map(|numbers| {
        let mut limits = Limits::default();
        for (limit, number) in Limit::ALL.iter().zip(numbers) {
            let info = limit.info();
            limits.set(*limit, info.least + number % (info.most - info.least + 1));
        }
        limits
    })
}

fn sampling() -> impl Strategy<Value = Sampling> {
    (
        option::of(0.0..=10.0),
        option::of(0.0..=1.0),
        option::of(0u32..=1_000_000),
        option::of(0.0..=1.0),
        option::of(0.01..=10.0),
        option::of(0..u32::MAX),
    )
        .prop_map(|(temperature, top_p, top_k, min_p, repeat_penalty, seed)| Sampling {
            temperature,
            top_p,
            top_k,
            min_p,
            repeat_penalty,
            seed,
        })
}

fn policy() -> impl Strategy<Value = Policy> {
    prop_oneof![Just(Policy::Allow), Just(Policy::Ask), Just(Policy::Deny)]
}

fn variables() -> impl Strategy<Value = Vec<String>> {
    vec("[A-Za-z_][A-Za-z0-9_]{0,9}", 0..3)
}

fn own_limits() -> (impl Strategy<Value = Option<u64>>, impl Strategy<Value = Option<u64>>) {
    (option::of(1u64..=86_400), option::of(256u64..=1_048_576))
}

fn reach() -> impl Strategy<Value = Reach> {
    let paths = || option::of(vec(path(), 0..3));
    (paths(), paths(), any::<bool>()).prop_map(|(read, write, network)| Reach { read, write, network })
}

fn command() -> impl Strategy<Value = CommandTool> {
    let schema = prop_oneof![
        Just(ToolSchema::default()),
        text().prop_map(|text| {
            let json = serde_json::json!({"type": "object", "description": text, "b": [1, 2.5], "a": null});
            ToolSchema::from_json(&json.to_string()).unwrap()
        }),
    ];
    let description = text().prop_map(|text| format!("Does {text}"));
    let parts = (path(), vec(text(), 0..3), description, schema, policy());
    let (seconds, bytes) = own_limits();
    let more = (seconds, bytes, option::of(path()), variables(), reach());
    (parts, more).prop_map(|((program, args, description, schema, policy), more)| {
        let (seconds, output_bytes, directory, environment, reach) = more;
        CommandTool {
            program,
            args,
            description,
            schema,
            policy,
            seconds,
            output_bytes,
            directory,
            environment,
            reach,
        }
    })
}

fn mcp() -> impl Strategy<Value = McpServer> {
    let stdio = (path(), vec(text(), 0..3), variables(), option::of(path()), reach()).prop_map(
        |(command, args, environment, directory, reach)| McpTransport::Stdio {
            command,
            args,
            environment,
            directory,
            reach,
        },
    );
    let http = ("[a-z]{1,9}", 1..=u16::MAX, "(/[a-z]{3,9}){0,2}")
        .prop_map(|(host, port, path)| McpTransport::Http { host, port, path });
    let named = btree_map("[a-zA-Z é]{0,5}[a-z]", policy(), 0..4);
    let (seconds, bytes) = own_limits();
    (prop_oneof![stdio, http], policy(), named, seconds, bytes).prop_map(
        |(transport, policy, tools, seconds, output_bytes)| McpServer {
            transport,
            policy,
            tools,
            seconds,
            output_bytes,
        },
    )
}

fn named<T: std::fmt::Debug>(tool: impl Strategy<Value = T>) -> impl Strategy<Value = BTreeMap<String, T>> {
    btree_map("x[a-z0-9_-]{0,9}|[0-9]{1,3}", tool, 0..3)
}

fn daemon() -> impl Strategy<Value = DaemonConfig> {
    let level = prop_oneof![Just(LogLevel::Error), Just(LogLevel::Warn), Just(LogLevel::Trace)];
    let torn = prop_oneof![Just(TornTail::Refuse), Just(TornTail::Quarantine)];
    (path(), socket(), 0u32..=1_023, level, torn).prop_map(|(home, socket, slot, log_level, torn_tail)| {
        DaemonConfig { home, socket, slot, log_level, torn_tail }
    })
}

fn model() -> impl Strategy<Value = ModelConfig> {
    let key = prop_oneof![path(), "[a-z][a-z._-]{0,9}".prop_map(PathBuf::from)];
    let shutdown = prop_oneof![Just(KvAtShutdown::Keep), Just(KvAtShutdown::Save)];
    (url(), option::of(key), option::of(path()), sampling(), any::<bool>(), text(), shutdown).prop_map(
        |(url, api_key_file, slot_dir, sampling, enabled, system_prompt, at_shutdown)| ModelConfig {
            url,
            api_key_file,
            slot_dir,
            sampling,
            reasoning: ReasoningSettings { enabled },
            system_prompt,
            at_shutdown,
        },
    )
}

fn config() -> impl Strategy<Value = Config> {
    let unattended = prop_oneof![Just(Unattended::Wait), Just(Unattended::Deny)];
    let tools = (unattended, named(command()), named(mcp()))
        .prop_map(|(unattended, command, mcp)| ToolsConfig { unattended, command, mcp });
    (daemon(), model(), limits(), tools).prop_map(|(daemon, model, limits, tools)| Config {
        daemon,
        model,
        limits,
        tools,
    })
}

/// In an environment that says nothing, so that nothing can come from it.
fn read(text: &str) -> Config {
    Config::from_toml_in(text, Path::new("f"), &Overrides::default(), &Environment::default())
        .unwrap_or_else(|e| panic!("{e}\n{text}"))
}

proptest! {
    #[test]
    fn the_effective_configuration_loads_back(config in config()) {
        prop_assert_eq!(&read(&config.to_toml()), &config);
    }

    #[test]
    fn what_a_reload_says_is_what_it_does(old in config(), new in config()) {
        let now = old.reloaded(&new);
        let (applied, restart) = Config::reloadable_diff(&old, &new);
        // From old to what is in force: all that was said to be applied, and nothing else.
        let (done, odd) = Config::reloadable_diff(&old, &now);
        prop_assert_eq!((done, odd), (applied, vec![]));
        // From there to new: all that was said to need a restart, and nothing else.
        let (odd, left) = Config::reloadable_diff(&now, &new);
        prop_assert_eq!((odd, left), (vec![], restart));
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_line_of_it(text in "(\\[|\\]|=|\"|'|\n|#|[a-z.]|model|limits|\\PC){0,60}") {
        let environment = Environment { home: Some("/h".into()), ..Environment::default() };
        let lines = text.split('\n').count();
        match Config::from_toml_in(&text, Path::new("f"), &Overrides::default(), &environment) {
            Ok(_) => {}
            Err(boxmaker::config::ConfigError::Invalid(problems)) => {
                prop_assert!(!problems.is_empty());
                prop_assert!(problems.iter().all(|p| (1..=lines).contains(&p.line)), "{:?}", problems);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}

#[test]
fn a_reload_names_each_key_once() {
    let old = read("[daemon]\nhome = \"/h\"\n[tools.command.a]\nprogram = \"/a\"\ndescription = \"a\"");
    let new = read(
        "[daemon]\nhome = \"/i\"\nsocket = \"/h/loopd.sock\"\nlog_level = \"debug\"\n[limits]\nturn_seconds = 9\n\
         clients = 3\n[model]\nurl = \"unix:/h/llama.sock\"\nsampling.seed = 4\n\
         [tools.command.b]\nprogram = \"/b\"\ndescription = \"b\"",
    );
    let (applied, restart) = Config::reloadable_diff(&old, &new);
    assert_eq!(applied, ["[daemon] log_level", "[limits] turn_seconds", "[model.sampling] seed"]);
    assert_eq!(restart, ["[daemon] home", "[limits] clients", "[tools.command.a]", "[tools.command.b]"]);
    assert_eq!(Config::reloadable_diff(&new, &new), (vec![], vec![]));
}
