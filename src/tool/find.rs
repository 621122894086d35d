//! `find_tool`: words to tools, by BM25 over names and descriptions.
//!
//! The same words and the same tools give the same bytes, in whatever order the tools were installed.

use std::collections::BTreeMap;

use serde_json::Value;

/// How many tools are shown for a query.
const SHOWN: usize = 4;
/// How many bytes `find_tool` answers at most.
pub const FIND_BYTES: usize = 4000;
/// How often a word of the name counts, against once for one of the description.
const NAME_WEIGHT: u32 = 3;
/// BM25's usual constants: how soon a repeated word counts no more, and how much length counts.
const SATURATION: f64 = 1.2;
const LENGTH: f64 = 0.75;

/// What can be found.
pub struct Entry {
    /// The tool's name.
    pub name: String,
    /// Its description.
    pub text: String,
    /// Its arguments' schema.
    pub schema: Value,
}

/// The index over all tools that may be shown.
pub struct Index {
    entries: Vec<Indexed>,
    average: f64,
}

struct Indexed {
    entry: Entry,
    words: BTreeMap<String, u32>,
    length: u32,
}

impl Index {
    /// Indexes tools, in any order.
    pub fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let entries: Vec<Indexed> = entries.into_iter().map(Indexed::new).collect();
        let total: u32 = entries.iter().map(|e| e.length).sum();
        let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        let average = f64::from(total) / f64::from(count.max(1));
        Self { entries, average: average.max(1.0) }
    }

    /// The answer to a query: the best tools, or all names when it has no words.
    pub fn answer(&self, query: &str) -> String {
        if self.entries.is_empty() {
            return "No tools are installed.".to_owned();
        }
        let words = words_of(query);
        if words.is_empty() {
            return format!("{}\n{HOW}", self.names());
        }
        let best = self.rank(&words);
        if best.is_empty() {
            return format!("No tool matches {}. {}", quoted(query), self.names());
        }
        let mut answer = String::new();
        for entry in best.iter().take(SHOWN) {
            let room = FIND_BYTES.saturating_sub(answer.len() + HOW.len());
            let whole = format!("{}: {}\narguments: {}\n", entry.name, entry.text, entry.schema);
            let brief = format!("{}: {}\n", entry.name, first_sentence(&entry.text));
            // a schema is shown whole or not at all: half of one would be taken for the whole
            if whole.len() <= room {
                answer.push_str(&whole);
            } else if brief.len() + TOO_LONG.len() <= room {
                answer.push_str(&brief);
                answer.push_str(TOO_LONG);
            }
        }
        answer.push_str(HOW);
        answer
    }

    /// The names nearest to one that is not installed, or all of them when there are few.
    pub fn suggest(&self, name: &str) -> String {
        let best = self.rank(&words_of(name));
        if best.is_empty() {
            return self.names();
        }
        let names: Vec<&str> = best.iter().take(SHOWN).map(|e| e.name.as_str()).collect();
        format!("Similar tools: {}.", names.join(", "))
    }

    fn names(&self) -> String {
        let mut text = format!("Installed tools ({}): ", self.entries.len());
        for (at, Indexed { entry, .. }) in self.entries.iter().enumerate() {
            if text.len() + entry.name.len() > FIND_BYTES - 200 {
                text.push_str(&format!(" and {} more; give words to find them", self.entries.len() - at));
                break;
            }
            if at > 0 {
                text.push_str(", ");
            }
            text.push_str(&entry.name);
        }
        text.push('.');
        text
    }

    /// All tools with at least one of the words, best first, equals by name.
    fn rank(&self, query: &[String]) -> Vec<&Entry> {
        let mut query = query.to_vec();
        query.sort();
        query.dedup();
        let idf: Vec<f64> = query.iter().map(|word| self.idf(word)).collect();
        let mut scored: Vec<(f64, &Entry)> = Vec::new();
        for indexed in &self.entries {
            let mut score = 0.0;
            for (word, idf) in query.iter().zip(&idf) {
                if let Some(&times) = indexed.words.get(word) {
                    let times = f64::from(times);
                    let long = 1.0 - LENGTH + LENGTH * f64::from(indexed.length) / self.average;
                    score += idf * times * (SATURATION + 1.0) / (times + SATURATION * long);
                }
            }
            if score > 0.0 {
                scored.push((score, &indexed.entry));
            }
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.name.cmp(&b.1.name)));
        scored.into_iter().map(|(_, entry)| entry).collect()
    }

    fn idf(&self, word: &str) -> f64 {
        let count = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
        let with = count(self.entries.iter().filter(|e| e.words.contains_key(word)).count());
        let all = count(self.entries.len());
        idf(with, all)
    }
}

/// BM25's weight of a word that `with` of `all` texts have: the fewer, the more it says.
pub(super) fn idf(with: f64, all: f64) -> f64 {
    (1.0 + (all - with + 0.5) / (with + 0.5)).ln()
}

impl Indexed {
    fn new(entry: Entry) -> Self {
        let mut words: BTreeMap<String, u32> = BTreeMap::new();
        for word in words_of(&entry.name) {
            *words.entry(word).or_default() += NAME_WEIGHT;
        }
        for word in words_of(&entry.text) {
            *words.entry(word).or_default() += 1;
        }
        let length = words.values().sum();
        Self { entry, words, length }
    }
}

const HOW: &str = "To run one: call_tool with its name and its arguments.";
const TOO_LONG: &str = "arguments: too long to show; a call with {} tells which are missing\n";

/// Lower-case words, split at everything that is no letter or digit and where `camelCase` turns; a plural
/// `s` is taken off.
pub(super) fn words_of(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut lower_before = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (lower_before && c.is_uppercase()) {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        lower_before = c.is_lowercase();
    }
    words.push(word);
    words.retain(|word| !word.is_empty() && !EMPTY_WORDS.contains(&word.as_str()));
    for word in &mut words {
        if word.len() > 3 && word.ends_with('s') && !word.ends_with("ss") {
            word.pop();
        }
    }
    words
}

/// Words that say nothing about a tool.
const EMPTY_WORDS: [&str; 14] =
    ["a", "an", "and", "the", "of", "to", "in", "on", "for", "with", "or", "is", "tool", "tools"];

/// The text up to its first sentence's or line's end, and no more than 200 characters.
fn first_sentence(text: &str) -> &str {
    let line = text.lines().next().unwrap_or_default();
    let end = line.find(". ").map_or(line.len(), |at| at + 1);
    let most = line.char_indices().nth(200).map_or(line.len(), |(at, _)| at);
    line.get(..end.min(most)).unwrap_or_default()
}

fn quoted(query: &str) -> String {
    let short: String = query.chars().take(100).collect();
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(name: &str, text: &str) -> Entry {
        Entry { name: name.to_owned(), text: text.to_owned(), schema: json!({"type": "object"}) }
    }

    fn five() -> Vec<Entry> {
        vec![
            entry("weather", "Tells the weather forecast for a city."),
            entry("time", "Tells the current date, weekday and time."),
            entry("files/readFile", "Reads a text file."),
            entry("files/write_file", "Writes text to a file, replacing what is in it."),
            entry("mail", "Sends a message to somebody; the weather of a message is no matter."),
        ]
    }

    fn order(index: &Index, query: &str) -> Vec<String> {
        index.rank(&words_of(query)).iter().map(|e| e.name.clone()).collect()
    }

    #[test]
    fn ranks_names_before_descriptions_and_rare_words_before_common_ones() {
        let index = Index::new(five());
        assert_eq!(order(&index, "weather in Rome"), ["weather", "mail"]);
        assert_eq!(order(&index, "read files"), ["files/readFile", "files/write_file"]);
        assert_eq!(order(&index, "WRITE"), ["files/write_file"]);
        assert_eq!(order(&index, "What time is it?").first().map(String::as_str), Some("time"));
        assert!(order(&index, "the of tools").is_empty());
    }

    #[test]
    fn the_order_of_installation_changes_nothing() {
        let index = Index::new(five());
        let mut turned = five();
        for _ in 0..5 {
            turned.rotate_left(1);
            let other = Index::new(turned.iter().map(|e| entry(&e.name, &e.text)).collect());
            for query in ["", "file", "tells", "weather message", "nothing like it"] {
                assert_eq!(other.answer(query), index.answer(query), "{query}");
            }
        }
    }

    #[test]
    fn answers_names_for_no_words_and_says_when_nothing_matches() {
        let index = Index::new(five());
        for query in ["", "  ", "tools", "?!"] {
            assert_eq!(
                index.answer(query),
                "Installed tools (5): files/readFile, files/write_file, mail, time, weather.\n\
                 To run one: call_tool with its name and its arguments."
            );
        }
        assert_eq!(
            index.answer("zebra"),
            "No tool matches \"zebra\". Installed tools (5): files/readFile, files/write_file, mail, time, weather."
        );
        assert_eq!(
            index.answer("clock time"),
            "time: Tells the current date, weekday and time.\narguments: {\"type\":\"object\"}\n\
             To run one: call_tool with its name and its arguments."
        );
        assert_eq!(Index::new(Vec::new()).answer("x"), "No tools are installed.");
    }

    #[test]
    fn the_answer_is_bounded() {
        let many = (0..2000).map(|n| entry(&format!("server/tool_number_{n:04}"), &"word ".repeat(100)));
        let mut many: Vec<Entry> = many.collect();
        let huge = json!({"description": "é".repeat(5000)});
        many.push(Entry { name: "huge".to_owned(), text: "Huge. Rest".to_owned(), schema: huge });
        let index = Index::new(many);
        for query in ["", "word", "number", "zebra", "server/tool_number_0007", &"long ".repeat(100_000)] {
            let answer = index.answer(query);
            assert!(answer.len() <= FIND_BYTES + 200, "{query:.20}: {}", answer.len());
        }
        assert!(index.answer("").contains("more; give words"));
        assert!(index.answer("huge").starts_with("huge: Huge.\narguments: too long to show"));
    }
}
