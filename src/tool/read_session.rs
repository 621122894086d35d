//! The built-in `read_session` tool: what was said in the conversation before the context that the model sees.
//!
//! The same words and the same log give the same bytes.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::find::{idf, words_of};
use super::port::{Earlier, Passage};
use super::{CallContext, Tool, ToolDescription, ToolFuture, ToolReply};

/// How many passages are shown at most.
const SHOWN: usize = 8;
/// How many passages are remembered while the log is read.
const REMEMBERED: usize = 256;
/// How many words of a question count.
const WORDS: usize = 16;
/// How much of a passage is shown before and after the first word that was found, in bytes.
const BEFORE: usize = 200;
const AFTER: usize = 500;

/// Looks something up in the session's own earlier epochs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadSession;

#[derive(Deserialize)]
struct Arguments {
    words: Option<String>,
    turn: Option<u64>,
}

impl Tool for ReadSession {
    fn name(&self) -> &'static str {
        "read_session"
    }

    fn describe(&self) -> ToolDescription {
        ToolDescription {
            text: "Looks up what was said earlier in this conversation, before its summary (history, remember, recall): by \
                   words, or all of one turn by its number."
                .to_owned(),
            schema: json!({
                "type": "object",
                "properties": {
                    "words": {"type": "string", "description": "what to look for"},
                    "turn": {"type": "integer", "minimum": 1, "description": "the turn to read"}
                },
                "additionalProperties": false
            }),
        }
    }

    fn schema_is_proven(&self) -> bool {
        true
    }

    fn call<'a>(&'a self, arguments: &'a str, context: CallContext) -> ToolFuture<'a> {
        Box::pin(async move {
            let Some(earlier) = context.earlier else {
                return ToolReply::error("There is no conversation here to look things up in.");
            };
            let most = usize::try_from(context.output_bytes).unwrap_or(usize::MAX);
            answer(arguments, &*earlier, most).await.unwrap_or_else(ToolReply::error)
        })
    }
}

async fn answer(arguments: &str, earlier: &dyn Earlier, most: usize) -> Result<ToolReply, String> {
    let Arguments { words, turn } = serde_json::from_str(arguments).map_err(|e| e.to_string())?;
    let words: Vec<String> = words_of(&words.unwrap_or_default())
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .take(WORDS)
        .collect();
    if words.is_empty() && turn.is_none() {
        return Err("Give \"words\" to look for, or the number of a \"turn\".".to_owned());
    }
    let mut search = Search { words, turn, most, hits: Vec::new(), with: [0; WORDS], passages: 0 };
    let any = earlier.each(&mut |passage| search.look(&passage)).await?;
    if !any {
        return Ok(ToolReply::ok("This conversation has no earlier part: all of it is before you."));
    }
    Ok(ToolReply::ok(search.answer()))
}

/// A passage that has some of the words.
struct Hit {
    /// Its place among all passages.
    at: u64,
    /// Which of the words it has.
    has: Vec<usize>,
    shown: String,
}

struct Search {
    words: Vec<String>,
    turn: Option<u64>,
    most: usize,
    hits: Vec<Hit>,
    /// How many passages have each of the words.
    with: [u32; WORDS],
    passages: u32,
}

impl Search {
    fn look(&mut self, passage: &Passage<'_>) {
        self.passages = self.passages.saturating_add(1);
        if self.turn.is_some_and(|turn| turn != passage.turn.0) {
            return;
        }
        let there: BTreeSet<String> = words_of(passage.text).into_iter().collect();
        let has: Vec<usize> =
            (0..).zip(&self.words).filter(|(_, w)| there.contains(*w)).map(|(n, _)| n).collect();
        if has.is_empty() && !self.words.is_empty() {
            return;
        }
        for n in &has {
            if let Some(with) = self.with.get_mut(*n) {
                *with = with.saturating_add(1);
            }
        }
        let first = has.first().and_then(|n| self.words.get(*n));
        let text = match first {
            Some(word) => around(passage.text, word),
            // a turn that is read whole
            None => cut(passage.text, 0, self.most),
        };
        let shown = format!("turn {}, {}: {text}\n", passage.turn, passage.who);
        self.hits.push(Hit { at: u64::from(self.passages), has, shown });
        if self.hits.len() >= REMEMBERED.saturating_mul(2) {
            // those with the most words, and of them the newest
            self.hits.sort_by_key(|hit| (std::cmp::Reverse(hit.has.len()), std::cmp::Reverse(hit.at)));
            self.hits.truncate(REMEMBERED);
        }
    }

    /// The rarer the words of a passage are, the better it is; of equals, the newer one.
    fn answer(mut self) -> String {
        if self.words.is_empty() {
            return whole(self.hits, self.most, self.turn);
        }
        let all = f64::from(self.passages);
        let rare = |n: &usize| idf(self.with.get(*n).copied().map_or(0.0, f64::from), all);
        let score = |hit: &Hit| hit.has.iter().map(rare).sum::<f64>();
        let mut scored: Vec<(f64, Hit)> =
            std::mem::take(&mut self.hits).into_iter().map(|hit| (score(&hit), hit)).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| b.1.at.cmp(&a.1.at)));
        let mut answer = String::new();
        for (_, hit) in scored.iter().take(SHOWN) {
            if answer.len().saturating_add(hit.shown.len()) > self.most {
                break;
            }
            answer.push_str(&hit.shown);
        }
        if answer.is_empty() {
            return "Nothing that was said earlier has these words.".to_owned();
        }
        answer.push_str("To read one of them whole: read_session with its \"turn\".");
        answer
    }
}

fn whole(mut hits: Vec<Hit>, most: usize, turn: Option<u64>) -> String {
    hits.sort_by_key(|hit| hit.at);
    let text: String = hits.into_iter().map(|hit| hit.shown).collect();
    if text.is_empty() {
        return format!("No earlier turn has the number {}.", turn.unwrap_or_default());
    }
    cut(&text, 0, most)
}

/// What stands around the first place of a word.
fn around(text: &str, word: &str) -> String {
    let lower = text.to_lowercase();
    // lower case can have another length, so this may be a little beside it
    let at = lower.find(word).unwrap_or(0).min(text.len());
    cut(text, at.saturating_sub(BEFORE), BEFORE.saturating_add(AFTER))
}

/// At most `most` bytes of a text, cut between characters.
fn cut(text: &str, from: usize, most: usize) -> String {
    let from = text.floor_char_boundary(from);
    let to = text.floor_char_boundary(from.saturating_add(most).min(text.len()));
    let (before, after) = (if from > 0 { "… " } else { "" }, if to < text.len() { " …" } else { "" });
    format!("{before}{}{after}", text.get(from..to).unwrap_or_default().trim())
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::rc::Rc;

    use super::super::schema::Checker;
    use super::super::{Cancel, EarlierFuture};
    use super::*;
    use crate::proto::{ToolOutcome, TurnId};

    #[derive(Debug)]
    struct Said(Vec<(u64, &'static str, String)>);

    impl Earlier for Said {
        fn each<'a>(&'a self, visit: &'a mut dyn FnMut(Passage<'_>)) -> EarlierFuture<'a> {
            Box::pin(async move {
                for (turn, who, text) in &self.0 {
                    visit(Passage { turn: TurnId(*turn), who, text });
                }
                Ok(!self.0.is_empty())
            }) as Pin<Box<dyn Future<Output = _>>>
        }
    }

    async fn ask(said: Vec<(u64, &'static str, String)>, arguments: &str) -> ToolReply {
        let context = CallContext {
            seconds: 5,
            output_bytes: 1000,
            spill: None,
            cancel: Cancel::new(),
            earlier: Some(Rc::new(Said(said))),
        };
        ReadSession.call(arguments, context).await
    }

    fn talk() -> Vec<(u64, &'static str, String)> {
        vec![
            (1, "user", "My sister's name is Ottilie.".to_owned()),
            (1, "assistant", "A fine name.".to_owned()),
            (2, "user", "What is a fine name for a cat?".to_owned()),
            (2, "tool weather", "rain".to_owned()),
            (3, "user", format!("{}Zürich 🦊 is where I live{}", "ö".repeat(400), "ü".repeat(800))),
        ]
    }

    #[tokio::test(flavor = "current_thread")]
    async fn words_find_passages_the_rarest_first_and_a_number_reads_a_turn() {
        let found = ask(talk(), r#"{"words": "the NAMES of my sister"}"#).await;
        assert_eq!(found.outcome, ToolOutcome::Ok);
        let lines: Vec<&str> = found.content.lines().collect();
        assert_eq!(lines[0], "turn 1, user: My sister's name is Ottilie.");
        assert_eq!(lines[1], "turn 2, user: What is a fine name for a cat?");
        assert_eq!(found, ask(talk(), r#"{"words": "the NAMES of my sister"}"#).await);
        let turn = ask(talk(), r#"{"turn": 2}"#).await.content;
        assert_eq!(turn, "turn 2, user: What is a fine name for a cat?\nturn 2, tool weather: rain");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn answers_are_bounded_and_cut_between_characters() {
        let found = ask(talk(), r#"{"words": "zürich"}"#).await.content;
        assert!(found.contains("Zürich 🦊 is where") && found.len() < 1000, "{found}");
        let many = (0..5000).map(|n| (n, "user", format!("needle {n} {}", "x".repeat(300)))).collect();
        let found = ask(many, r#"{"words": "needle"}"#).await.content;
        assert!(found.len() < 1100 && found.starts_with("turn 4999, user: needle 4999"), "{found}");
        let long = ask(talk(), r#"{"turn": 3}"#).await.content;
        assert!(long.len() <= 1010 && long.ends_with(" …"), "{}", long.len());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nothing_is_said_to_be_nothing() {
        for (arguments, says) in [
            (r#"{"words": "giraffe"}"#, "Nothing"),
            (r#"{"turn": 9}"#, "No earlier turn"),
            (r#"{"words": " the "}"#, "Give"),
            ("{}", "Give"),
        ] {
            let content = ask(talk(), arguments).await.content;
            assert!(content.starts_with(says), "{arguments}: {content}");
        }
        assert!(ask(Vec::new(), r#"{"words": "x1"}"#).await.content.contains("no earlier part"));
    }

    #[test]
    fn its_schema_is_one() {
        Checker::new(&ReadSession.describe().schema).unwrap();
    }
}
