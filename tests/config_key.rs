//! The API key: where it comes from, and that it goes nowhere else.

#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use boxmaker::config::{ApiKey, Config, Environment, Overrides};

fn key(file: &str, environment: &Environment) -> Result<Option<ApiKey>, String> {
    let text = format!("[daemon]\nhome = \"/h\"\n[model]\napi_key_file = {file:?}");
    let config = Config::from_toml_in(&text, Path::new("f"), &Overrides::default(), environment).unwrap();
    assert!(!config.to_toml().contains("hunter2") || file == "hunter2");
    config.model.read_api_key(environment).map_err(|e| e.to_string())
}

#[test]
fn the_key_is_the_files_line_and_is_never_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    for content in ["hunter2", "hunter2\n", "hunter2\r\n"] {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let read = key(path.to_str().unwrap(), &Environment::default()).unwrap().unwrap();
        assert_eq!((read.key.expose(), &read.warning), ("hunter2", &None));
        assert!(!format!("{read:?} {} {:?} {:#?}", read.key, read.key, read.key).contains("hunter2"));
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let warning = key(path.to_str().unwrap(), &Environment::default()).unwrap().unwrap().warning.unwrap();
    assert!(warning.contains("chmod o-r") && warning.contains("key"), "{warning}");
}

#[test]
fn without_a_file_there_is_no_key() {
    let environment = Environment { home: Some("/h".into()), ..Environment::default() };
    let config = Config::from_toml_in("", Path::new("f"), &Overrides::default(), &environment).unwrap();
    assert_eq!(config.model.read_api_key(&environment).unwrap(), None);
}

#[test]
fn a_relative_name_is_a_credential() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("llama"), "k\n").unwrap();
    let environment =
        Environment { credentials_directory: Some(dir.path().to_owned()), ..Environment::default() };
    assert_eq!(key("llama", &environment).unwrap().unwrap().key.expose(), "k");
    let words = key("hunter2", &Environment::default()).unwrap_err();
    assert!(words.contains("CREDENTIALS_DIRECTORY is not set") && !words.contains("hunter2"), "{words}");
}

#[test]
fn files_without_a_key_are_refused_and_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    let refused = || key(path.to_str().unwrap(), &Environment::default()).unwrap_err();
    assert!(refused().contains("cannot be opened"));
    let long = "h".repeat(4_097);
    let cases = [
        ("", "is empty"),
        ("\n", "is empty"),
        ("hunter2\n\n", "holds more than a key"),
        ("hunter2\nmore", "holds more than a key"),
        ("hunter 2", "holds more than a key"),
        ("hunter\u{fc}2", "holds more than a key"),
        (long.as_str(), "is longer than a key can be (4096 bytes)"),
    ];
    for (content, expected) in cases {
        fs::write(&path, content).unwrap();
        let words = refused();
        assert!(words.contains(expected) && !words.contains("hunter"), "{content:?}: {words}");
    }
    fs::write(&path, "k".repeat(4_096) + "\r\n").unwrap();
    assert_eq!(
        key(path.to_str().unwrap(), &Environment::default()).unwrap().unwrap().key.expose().len(),
        4_096
    );
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(refused().contains("is not a regular file"));
}
