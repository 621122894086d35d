//! Which file is loaded, what the defaults are, what the command line and the environment say.

#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;
use std::path::{Path, PathBuf};

use boxmaker::config::{
    Config, ConfigError, DEFAULT_SYSTEM_PROMPT, Environment, KvAtShutdown, Limit, Limits, LogLevel, ModelUrl,
    Overrides, Policy, TornTail, Unattended,
};

fn environment(home: &str) -> Environment {
    Environment { home: Some(PathBuf::from(home)), ..Environment::default() }
}

fn read(text: &str) -> Config {
    Config::from_toml_in(text, Path::new("loopd.toml"), &Overrides::default(), &environment("/home/me"))
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn an_empty_file_is_the_defaults() {
    let config = read("");
    assert_eq!(config.daemon.home, Path::new("/home/me/.local/state/boxmaker"));
    assert_eq!(config.daemon.socket, Path::new("/home/me/.local/state/boxmaker/loopd.sock"));
    assert_eq!(config.model.url.to_string(), "unix:/home/me/.local/state/boxmaker/llama.sock");
    assert_eq!((config.daemon.slot, config.daemon.log_level), (0, LogLevel::Info));
    assert_eq!(config.daemon.torn_tail, TornTail::Refuse);
    assert_eq!(config.model.system_prompt, DEFAULT_SYSTEM_PROMPT);
    assert_eq!(config.model.at_shutdown, KvAtShutdown::Save);
    assert!(config.model.reasoning.enabled);
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.tools.unattended, Unattended::Wait);
    assert!(config.tools.command.is_empty() && config.tools.mcp.is_empty());
    assert_eq!(config.warnings(), Vec::<String>::new());
}

#[test]
fn the_default_prompt_fits_every_limit_and_has_no_clock() {
    let least = Limit::SystemPromptBytes.info().least;
    assert!(u64::try_from(DEFAULT_SYSTEM_PROMPT.len()).unwrap() <= least);
    assert!(!DEFAULT_SYSTEM_PROMPT.bytes().any(|b| b.is_ascii_digit() || b == b'\n'));
}

#[test]
fn systemds_directories_come_first() {
    let environment = Environment {
        state_directory: Some("/var/lib/boxmaker".into()),
        runtime_directory: Some("/run/boxmaker".into()),
        xdg_state_home: Some("/elsewhere".into()),
        ..environment("/root")
    };
    let config =
        Config::from_toml_in("", Path::new("loopd.toml"), &Overrides::default(), &environment).unwrap();
    assert_eq!(config.daemon.home, Path::new("/var/lib/boxmaker"));
    assert_eq!(config.daemon.socket, Path::new("/run/boxmaker/loopd.sock"));
    assert_eq!(config.model.url, ModelUrl::Unix("/run/boxmaker/llama.sock".into()));

    let xdg = Environment { state_directory: None, ..environment };
    assert_eq!(xdg.default_home().unwrap(), Path::new("/elsewhere/boxmaker"));
    assert!(matches!(Environment::default().default_home(), Err(ConfigError::NoHome)));
}

#[test]
fn the_command_line_beats_the_file() {
    let text = "[daemon]\nhome = \"/a\"\nslot = 1\n[model]\nurl = \"http://box:8080\"\n";
    let overrides = Overrides {
        home: Some("/b".into()),
        slot: Some(2),
        model_url: Some("unix:/c.sock".into()),
        socket: Some("/d.sock".into()),
    };
    let config =
        Config::from_toml_in(text, Path::new("loopd.toml"), &overrides, &Environment::default()).unwrap();
    assert_eq!(config.daemon.home, Path::new("/b"));
    assert_eq!(config.daemon.slot, 2);
    assert_eq!(config.daemon.socket, Path::new("/d.sock"));
    assert_eq!(config.model.url, ModelUrl::Unix("/c.sock".into()));

    // A home from the command line moves what is below it by default.
    let overrides = Overrides { home: Some("rel".into()), ..Overrides::default() };
    let config =
        Config::from_toml_in("", Path::new("loopd.toml"), &overrides, &Environment::default()).unwrap();
    assert_eq!(config.daemon.home, std::env::current_dir().unwrap().join("rel"));
    assert_eq!(config.daemon.socket, config.daemon.home.join("loopd.sock"));
}

#[test]
fn bad_options_are_refused_by_name_without_their_password() {
    let cases = [
        (Overrides { slot: Some(5_000), ..Overrides::default() }, "--slot: found 5000; allowed is a whole"),
        (Overrides { model_url: Some("https://x:1".into()), ..Overrides::default() }, "--model-url: https"),
        (
            Overrides { model_url: Some("http://me:hunter2@x:1".into()), ..Overrides::default() },
            "api_key_file",
        ),
        (Overrides { socket: Some(format!("/{}", "x".repeat(107)).into()), ..Overrides::default() }, "107"),
    ];
    for (overrides, expected) in cases {
        let error = Config::from_toml_in("", Path::new("f"), &overrides, &environment("/h")).unwrap_err();
        let words = error.to_string();
        assert!(words.contains(expected) && !words.contains("hunter2"), "{words}");
    }
}

#[test]
fn a_default_socket_that_is_too_long_says_what_to_set() {
    let environment = environment(&format!("/{}", "x".repeat(100)));
    let refused = Config::from_toml_in("", Path::new("f"), &Overrides::default(), &environment).unwrap_err();
    let words = refused.to_string();
    assert!(words.contains("at most 107") && words.contains("set [daemon] socket"), "{words}");
    let text = "[daemon]\nsocket = \"/s\"\n[model]\nurl = \"unix:/l\"";
    Config::from_toml_in(text, Path::new("f"), &Overrides::default(), &environment).unwrap();
}

#[test]
fn the_first_file_that_exists_is_loaded_and_a_named_one_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let environment = Environment {
        xdg_config_home: Some(dir.path().to_owned()),
        home: Some("/home/me".into()),
        ..Environment::default()
    };
    let load = |path: Option<&Path>| Config::load_in(path, &Overrides::default(), &environment);
    assert_eq!(load(None).unwrap().daemon.slot, 0);

    fs::create_dir(dir.path().join("boxmaker")).unwrap();
    let own = dir.path().join("boxmaker/loopd.toml");
    fs::write(&own, "[daemon]\nslot = 3\n").unwrap();
    assert_eq!(load(None).unwrap().daemon.slot, 3);

    let other = dir.path().join("other.toml");
    let words = load(Some(&other)).unwrap_err().to_string();
    assert!(words.contains("other.toml: there is no such file"), "{words}");
    fs::write(&other, "[daemon]\nslot = 4\n").unwrap();
    assert_eq!(load(Some(&other)).unwrap().daemon.slot, 4);

    // A default file that is there but cannot be used is an error, not passed over.
    fs::remove_file(&own).unwrap();
    fs::create_dir(&own).unwrap();
    assert!(matches!(load(None), Err(ConfigError::Io(path, _)) if path == own));
    fs::remove_dir(&own).unwrap();
    fs::write(&own, b"[daemon]\n# \xff\n").unwrap();
    assert!(matches!(load(None), Err(ConfigError::NotUtf8(_, 2))));
    fs::write(&own, vec![b'#'; 1_048_577]).unwrap();
    assert!(matches!(load(None), Err(ConfigError::TooLarge(_))));
}

#[test]
fn without_xdg_the_file_is_below_home_then_in_etc() {
    let etc = PathBuf::from("/etc/boxmaker/loopd.toml");
    let own = PathBuf::from("/home/me/.config/boxmaker/loopd.toml");
    assert_eq!(environment("/home/me").config_files(), [own, etc.clone()]);
    assert_eq!(Environment::default().config_files(), [etc]);
}

#[test]
fn the_system_prompt_may_be_in_a_file_beside_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = dir.path().join("prompt.txt");
    let load = |text: &str| {
        let origin = dir.path().join("loopd.toml");
        Config::from_toml_in(text, &origin, &Overrides::default(), &environment("/h"))
    };
    fs::write(&prompt, "\u{feff}Be brief.\nBe kind.\r\n").unwrap();
    let relative = "[model]\nsystem_prompt_file = \"prompt.txt\"";
    assert_eq!(load(relative).unwrap().model.system_prompt, "Be brief.\nBe kind.");
    let absolute = format!("[model]\nsystem_prompt_file = {prompt:?}");
    assert_eq!(load(&absolute).unwrap().model.system_prompt, "Be brief.\nBe kind.");

    let refused = |text: &str| load(text).unwrap_err().to_string();
    fs::write(&prompt, "x".repeat(1_024)).unwrap();
    let limited = format!("{relative}\n[limits]\nsystem_prompt_bytes = 1024");
    assert_eq!(load(&limited).unwrap().model.system_prompt.len(), 1_024);
    fs::write(&prompt, "x".repeat(1_025)).unwrap();
    let words = refused(&limited);
    assert!(words.contains("prompt.txt") && words.contains("raise [limits] system_prompt_bytes"), "{words}");
    fs::write(&prompt, b"\xff").unwrap();
    assert!(refused(relative).contains("is not UTF-8"));
    fs::write(&prompt, b"a\0b").unwrap();
    assert!(refused(relative).contains("found a NUL"));
    fs::remove_file(&prompt).unwrap();
    assert!(refused(relative).contains("cannot be opened"));
    nix::unistd::mkfifo(&prompt, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused(relative).contains("is not a regular file"));
    let both = "[model]\nsystem_prompt = \"\"\nsystem_prompt_file = \"prompt.txt\"";
    assert!(refused(both).contains(":3: [model] system_prompt_file: excludes system_prompt"));
}

#[test]
fn a_whole_file_reads_as_written() {
    let config = read(
        r#"
[daemon]
log_level = "debug"
torn_tail = "quarantine"

[model]
url = "HTTP://[::1]:8080/base/"
reasoning = false
system_prompt = ""
at_shutdown = "save"
sampling = { temperature = 0, top_p = 0.5, seed = 7 }

[limits]
turn_seconds = 600

[tools]
unattended = "deny"

[tools.command.weather]
program = "/bin/weather"
description = "Tells the weather."
policy = "allow"
seconds = 9

[tools.command.weather.schema]
type = "object"
required = ["city"]

[tools.command.weather.schema.properties.city]
type = "string"
minLength = 1

[tools.mcp.notes]
url = "http://127.0.0.1:9000/mcp"
"#,
    );
    let url = ModelUrl::Http { host: "::1".into(), port: 8080, path: "/base".into() };
    assert_eq!((config.model.url.to_string().as_str(), &config.model.url), ("http://[::1]:8080/base", &url));
    assert_eq!(config.model.sampling.temperature, Some(0.0));
    assert_eq!((config.model.sampling.top_p, config.model.sampling.seed), (Some(0.5), Some(7)));
    assert!(!config.model.reasoning.enabled && config.model.system_prompt.is_empty());
    assert_eq!(config.limits.hint(Limit::TurnSeconds), "raise [limits] turn_seconds (now 600)");
    let weather = &config.tools.command["weather"];
    assert_eq!((weather.policy, weather.seconds, weather.output_bytes), (Policy::Allow, Some(9), None));
    assert_eq!(
        weather.schema.as_json(),
        r#"{"type":"object","required":["city"],"properties":{"city":{"type":"string","minLength":1}}}"#
    );
    assert_eq!(weather.schema.value()["properties"]["city"]["minLength"], 1);
    assert_eq!(config.tools.mcp["notes"].policy, Policy::Ask);
}

#[test]
fn settings_that_do_not_go_together_are_warned_of() {
    let config = read("[limits]\ncompletion_tokens = 100\n");
    let warnings = config.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("thinking_tokens (2048) against completion_tokens (100)"), "{warnings:?}");
    assert!(read("[model]\nreasoning = false\n[limits]\ncompletion_tokens = 100\n").warnings().is_empty());
}
