//! Reads tables of TOML with their places, and collects everything that is wrong, so that one run tells
//! all of it.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Problem;
use super::known;

/// The text that is read, and what was found to be wrong with it.
pub(super) struct Source<'t> {
    pub(super) path: &'t Path,
    pub(super) text: &'t str,
    problems: RefCell<Vec<Problem>>,
}

impl<'t> Source<'t> {
    pub(super) fn new(path: &'t Path, text: &'t str) -> Self {
        Self { path, text, problems: RefCell::new(Vec::new()) }
    }

    /// The document; as far as it is TOML, when it is not.
    pub(super) fn parse(&self) -> Spanned<DeTable<'t>> {
        let (document, errors) = DeTable::parse_recoverable(self.text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            self.report(at, String::new(), format!("not TOML: {}", error.message()), String::new());
        }
        document
    }

    pub(super) fn report(&self, at: usize, key: String, found: String, allowed: String) {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        let line = before.iter().filter(|b| **b == b'\n').count().saturating_add(1);
        self.problems.borrow_mut().push(Problem { path: self.path.to_owned(), line, key, found, allowed });
    }

    pub(super) fn is_sound(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// What is wrong, in the order of the lines.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|p| p.line);
        problems
    }
}

/// An enum whose values have names in the file.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }
}

/// One table; an absent one is empty.
pub(super) struct Table<'s, 't> {
    source: &'s Source<'t>,
    /// As in the file, without brackets; empty for the document.
    name: String,
    at: usize,
    entries: Option<&'s DeTable<'t>>,
}

impl<'s, 't> Table<'s, 't> {
    pub(super) fn document(source: &'s Source<'t>, document: &'s Spanned<DeTable<'t>>) -> Self {
        let table = Self {
            source,
            name: String::new(),
            at: document.span().start,
            entries: Some(document.get_ref()),
        };
        table.refuse_unknown(known::DOCUMENT);
        table
    }

    fn refuse_unknown(&self, keys: &[&str]) {
        for key in self.entries.into_iter().flatten().map(|(key, _)| key) {
            let name: &str = key.get_ref();
            if !keys.contains(&name) {
                let advice = known::advice(&self.name, name, keys);
                self.report(key.span().start, name, "unknown key".to_owned(), advice);
            }
        }
    }

    /// `[table] key`, for messages.
    fn place(&self, key: &str) -> String {
        match (self.name.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => format!("[{}]", self.name),
            (false, false) => format!("[{}] {key}", self.name),
        }
    }

    fn report(&self, at: usize, key: &str, found: String, allowed: String) {
        self.source.report(at, self.place(key), found, allowed);
    }

    /// Reports something about a key, at its value; about the table, where the key is absent.
    pub(super) fn refuse(&self, key: &str, found: impl Into<String>, allowed: impl Into<String>) {
        let at = self.get(key).map_or(self.at, |value| value.span().start);
        self.report(at, key, found.into(), allowed.into());
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    pub(super) fn get(&self, key: &str) -> Option<&'s Spanned<DeValue<'t>>> {
        self.entries.and_then(|entries| entries.get(key))
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'t>>, allowed: &str) {
        self.report(value.span().start, key, found(value.get_ref()), allowed.to_owned());
    }

    /// The table under a key.
    pub(super) fn table(&self, key: &str, keys: &[&str]) -> Table<'s, 't> {
        let name = if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        let value = self.get(key);
        let entries = value.and_then(|v| v.get_ref().as_table());
        if let (Some(value), None) = (value, entries) {
            self.wrong(key, value, &format!("allowed is a table: [{name}]"));
        }
        let at = value.map_or(self.at, |v| v.span().start);
        let table = Table { source: self.source, name, at, entries };
        table.refuse_unknown(keys);
        table
    }

    /// The tables under a key whose names are the user's own; names that are not allowed are reported.
    pub(super) fn named(&self, key: &str, keys: &[&str]) -> Vec<(String, Table<'s, 't>)> {
        let Some(value) = self.get(key) else { return Vec::new() };
        let Some(entries) = value.get_ref().as_table() else {
            self.wrong(key, value, &format!("allowed are tables: [{}.{key}.<name>]", self.name));
            return Vec::new();
        };
        let name = format!("{}.{key}", self.name);
        let all = Table { source: self.source, name, at: value.span().start, entries: Some(entries) };
        let mut tables = Vec::with_capacity(entries.len());
        for name in entries.iter().map(|(name, _)| name) {
            let text: &str = name.get_ref();
            match known::tool_name(text) {
                Ok(()) => tables.push((text.to_owned(), all.table(text, keys))),
                Err(why) => all.report(name.span().start, text, why, known::ALLOWED_NAME.to_owned()),
            }
        }
        tables
    }

    pub(super) fn whole(&self, key: &str, range: RangeInclusive<u64>, unit: &str) -> Option<u64> {
        let value = self.get(key)?;
        let number =
            value.get_ref().as_integer().and_then(|n| i128::from_str_radix(n.as_str(), n.radix()).ok());
        let inside = number.and_then(|n| u64::try_from(n).ok()).filter(|n| range.contains(n));
        if inside.is_none() {
            let unit = if unit.is_empty() { String::new() } else { format!(" ({unit})") };
            let allowed =
                format!("allowed is a whole number from {} to {}{unit}", range.start(), range.end());
            self.wrong(key, value, &allowed);
        }
        inside
    }

    pub(super) fn whole_u32(&self, key: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.whole(key, range, "").and_then(|n| u32::try_from(n).ok())
    }

    pub(super) fn number(&self, key: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.get(key)?;
        let number = match value.get_ref() {
            DeValue::Float(n) => n.as_str().parse::<f64>().ok(),
            DeValue::Integer(n) if n.radix() == 10 => n.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let inside = number.filter(|n| range.contains(n));
        if inside.is_none() {
            self.wrong(key, value, &format!("allowed is a number from {} to {}", range.start(), range.end()));
        }
        inside
    }

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        let value = self.get(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong(key, value, "allowed are true and false");
        }
        flag
    }

    pub(super) fn choice<T: Choice>(&self, key: &str) -> Option<T> {
        let value = self.get(key)?;
        let word = value.get_ref().as_str();
        let chosen = word.and_then(|word| T::ALL.iter().find(|(name, _)| *name == word));
        if chosen.is_none() {
            let words: Vec<String> = T::ALL.iter().map(|(name, _)| quoted(name)).collect();
            self.wrong(key, value, &format!("allowed are {}", words.join(", ")));
        }
        chosen.map(|(_, value)| *value)
    }

    /// A string that `check` turns into a value, or says in full what was found instead.
    pub(super) fn parsed<T>(
        &self,
        key: &str,
        allowed: &str,
        check: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        self.parse_value(key, self.get(key)?, allowed, check)
    }

    /// A list of strings, each checked.
    pub(super) fn list<T>(
        &self,
        key: &str,
        allowed: &str,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let value = self.get(key)?;
        let Some(items) = value.get_ref().as_array() else {
            self.wrong(key, value, &format!("allowed is a list; {allowed}"));
            return None;
        };
        let read: Vec<T> =
            items.iter().filter_map(|item| self.parse_value(key, item, allowed, &check)).collect();
        (read.len() == items.len()).then_some(read)
    }

    fn parse_value<T>(
        &self,
        key: &str,
        value: &Spanned<DeValue<'t>>,
        allowed: &str,
        check: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let Some(text) = value.get_ref().as_str() else {
            self.wrong(key, value, allowed);
            return None;
        };
        match check(text) {
            Ok(value) => Some(value),
            Err(found) => {
                self.report(value.span().start, key, found, allowed.to_owned());
                None
            }
        }
    }

    pub(super) fn path(&self, key: &str) -> Option<PathBuf> {
        self.parsed(key, ALLOWED_PATH, |text| {
            absolute(Path::new(text)).map_err(|why| format!("found {}: {why}", quoted(text)))
        })
    }
}

const ALLOWED_PATH: &str = "allowed is an absolute path";

/// The path, if it is one that this program takes; if not, why.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, String> {
    let Some(text) = path.to_str() else {
        return Err("it is not UTF-8".to_owned());
    };
    if text.contains('\0') {
        return Err("it has a NUL".to_owned());
    }
    if text.starts_with('~') {
        return Err("it is not absolute (~ is not replaced here)".to_owned());
    }
    if !path.is_absolute() {
        return Err("it is not absolute".to_owned());
    }
    Ok(path.to_owned())
}

fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("found {} (a string)", quoted(text)),
        DeValue::Integer(n) => format!("found {} (a whole number)", shortened(&n.to_string())),
        DeValue::Float(n) => format!("found {} (a number)", shortened(&n.to_string())),
        DeValue::Boolean(flag) => format!("found {flag} (true or false)"),
        DeValue::Datetime(time) => format!("found {time} (a time)"),
        DeValue::Array(_) => "found a list".to_owned(),
        DeValue::Table(_) => "found a table".to_owned(),
    }
}

/// At most so many characters of what was found are repeated in a message.
const SHOWN: usize = 60;

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN).and_then(|(at, _)| text.get(..at)) {
        Some(start) => format!("{start}…"),
        None => text.to_owned(),
    }
}

/// The text in quotes, escaped and shortened.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}
