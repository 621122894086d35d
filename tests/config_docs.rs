//! The example file and the documentation name every key, and say what is so.

#![allow(clippy::panic, clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail")]

use std::fs;
use std::path::{Path, PathBuf};

use boxmaker::config::{Config, Environment, Limit, Overrides, keys};

fn document(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name)).unwrap()
}

fn environment() -> Environment {
    Environment { home: Some(PathBuf::from("/home/me")), ..Environment::default() }
}

fn read(text: &str) -> Config {
    Config::from_toml_in(text, Path::new("example"), &Overrides::default(), &environment())
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A line that shows a key without setting it: `#key = …` or `#[table]`.
fn shown(line: &str) -> Option<&str> {
    let rest = line.strip_prefix('#')?;
    rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[').then_some(rest)
}

/// The keys of `text`, tables' names as in [`keys`].
fn keys_of(text: &str) -> Vec<(String, String)> {
    let mut table = String::new();
    let mut all = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            table = match name.rsplit_once('.') {
                Some((kind @ ("tools.command" | "tools.mcp"), _)) => format!("{kind}.<name>"),
                _ => name.to_owned(),
            };
        } else if let Some((key, _)) = line.split_once(" = ")
            && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        {
            all.push((table.clone(), key.to_owned()));
        }
    }
    all
}

fn uncommented(text: &str) -> String {
    text.lines().map(|line| shown(line).unwrap_or(line)).fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn the_example_is_the_defaults() {
    assert_eq!(read(&document("loopd.example.toml")), read(""));
}

#[test]
fn the_example_has_every_key() {
    let example = keys_of(&uncommented(&document("loopd.example.toml")));
    for (table, key) in keys() {
        assert!(example.iter().any(|(t, k)| t == table && k == key), "[{table}] {key}");
    }
    for (table, key) in &example {
        assert!(keys().contains(&(table, key)), "[{table}] {key}");
    }
}

#[test]
fn only_keys_without_a_fixed_default_are_commented_out() {
    let set = keys_of(&document("loopd.example.toml"));
    // What an empty configuration prints has a default; of that only the places depend on the environment.
    let places = ["home", "socket", "url"];
    for (table, key) in keys_of(&read("").to_toml()) {
        if !places.contains(&key.as_str()) {
            assert!(set.contains(&(table.clone(), key.clone())), "[{table}] {key}");
        }
    }
}

#[test]
fn every_commented_key_can_be_taken_as_it_stands() {
    let text = document("loopd.example.toml");
    let all: String = uncommented(&text)
        .lines()
        .filter(|line| !line.starts_with("system_prompt_file"))
        .fold(String::new(), |all, line| all + line + "\n");
    let config = read(&all);
    assert_eq!(config.tools.command["weather"].seconds, Some(30));
    assert_eq!(config.tools.mcp.len(), 2);
    assert_eq!(config.model.sampling.seed, Some(1));
    assert_eq!(config.daemon.home, Path::new("/var/lib/boxmaker"));
    assert!(config.model.api_key_file.is_some() && config.model.slot_dir.is_some());
}

#[test]
fn the_example_tells_each_limits_range() {
    let text = document("loopd.example.toml");
    let (_, limits) = text.split_once("\n[limits]\n").unwrap();
    let (limits, _) = limits.split_once("\n[tools]\n").unwrap();
    let mut comment = String::new();
    let mut told = 0;
    for line in limits.lines() {
        if let Some(words) = line.strip_prefix("# ") {
            comment = comment + words + " ";
        } else if let Some((key, _)) = line.split_once(" = ") {
            let info = Limit::by_key(key).unwrap().info();
            let range = format!("{} to {}", info.least, info.most);
            assert!(comment.contains(&range), "{key}: {range} not in {comment}");
            assert!(comment.contains(info.about.trim()), "{key}: {comment}");
            comment.clear();
            told += 1;
        }
    }
    assert_eq!(told, Limit::ALL.len());
}

#[test]
fn the_documentation_has_every_key_with_its_default() {
    let text = document("configuration.md");
    let mut section = String::new();
    let mut rows = Vec::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title.split('`').nth(1).unwrap_or_default().trim_matches(['[', ']']).to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            rows.push((section.clone(), row.to_owned()));
        }
    }
    let row = |table: &str, key: &str| {
        let start = format!("{key}` |");
        rows.iter().find(|(section, row)| section == table && row.starts_with(&start)).map(|(_, row)| row)
    };
    for (table, key) in keys() {
        assert!(row(table, key).is_some(), "no row for [{table}] {key}");
    }
    for limit in Limit::ALL {
        let info = limit.info();
        let found = row("limits", info.key).unwrap();
        let mut cells = found.split('|').map(str::trim).skip(1);
        let plain = |cell: Option<&str>| cell.unwrap().to_owned();
        assert_eq!(plain(cells.next()), info.default.to_string(), "{}", info.key);
        assert_eq!(plain(cells.next()), format!("{} to {}", info.least, info.most), "{}", info.key);
        assert_eq!(plain(cells.next()), info.unit, "{}", info.key);
        assert_eq!(plain(cells.next()), if info.reloadable { "reload" } else { "restart" }, "{}", info.key);
        assert_eq!(plain(cells.next()), info.about.trim(), "{}", info.key);
    }
    let unknown = rows.iter().find(|(section, row)| {
        let key = row.split('`').next().unwrap();
        !section.is_empty() && !keys().contains(&(section, key))
    });
    assert_eq!(unknown, None);
}
