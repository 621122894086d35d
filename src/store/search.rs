//! Finding what was said.

use std::ops::ControlFlow;

use super::catalog::Catalog;
use super::error::{Result, SessionError};
use super::inspect::Tally;
use super::storage::Storage;
use super::walk::Step;
use crate::proto::{Hit, LogRecord, SessionId, Speaker, Timestamp, TurnId};

/// Characters of a passage before the first word that was looked for.
const BEFORE: usize = 30;
/// Characters of a passage in all.
const PASSAGE: usize = 160;

/// What a search came to.
#[derive(Debug, Default)]
pub struct Found {
    /// Passages, the session with the newest record first, in the order in which they were said.
    pub hits: Vec<Hit>,
    /// Whether there are more.
    pub more: bool,
    /// Sessions that could not be read to their end.
    pub unread: Vec<SessionId>,
}

impl<S: Storage> Catalog<S> {
    /// The messages and tool results that hold every word of `text`, in one session or in all, at most `most`.
    /// Upper and lower case are the same. Takes no lock.
    ///
    /// # Errors
    /// The disk's, for the directory of all sessions; of one session, that there is none.
    pub async fn search(&self, text: &str, session: Option<&SessionId>, most: usize) -> Result<Found> {
        let words = Words::new(text);
        let ids = match session {
            Some(id) => vec![id.clone()],
            None => self.ids().await?,
        };
        let mut found = Found::default();
        let mut all: Vec<(Option<Timestamp>, Vec<Hit>)> = Vec::new();
        for id in ids {
            let begin = || (Tally::new(&id), Vec::new(), false);
            let walked = self.settled(&id, None, begin, |(tally, hits, more), step| {
                if let Step::Record(record) = &step
                    && let Some(hit) = words.hit(&id, &record.record)
                {
                    if hits.len() < most { hits.push(hit) } else { *more = true }
                }
                tally.take(step);
                ControlFlow::Continue(())
            });
            match walked.await {
                Ok(((tally, mut hits, more), _)) => {
                    let info = tally.info();
                    hits.iter_mut().for_each(|hit| hit.name.clone_from(&info.name));
                    found.more |= more;
                    all.push((info.last, hits));
                }
                // deleted since the names were read
                Err(SessionError::NotFound(_)) if session.is_none() => {}
                Err(e @ SessionError::NotFound(_)) => return Err(e),
                Err(_) => found.unread.push(id),
            }
        }
        all.sort_by_key(|(last, _)| std::cmp::Reverse(*last));
        found.hits = all.into_iter().flat_map(|(_, hits)| hits).collect();
        found.more |= found.hits.len() > most;
        found.hits.truncate(most);
        Ok(found)
    }
}

/// The words that are looked for, in lower case.
struct Words(Vec<Vec<char>>);

impl Words {
    fn new(text: &str) -> Self {
        Self(text.split_whitespace().map(|word| lower(word).into_iter().map(|(c, _)| c).collect()).collect())
    }

    fn hit(&self, session: &SessionId, record: &LogRecord) -> Option<Hit> {
        let (turn, time, who, text): (TurnId, _, _, &str) = match record {
            LogRecord::UserMessage(m) => (m.turn, m.time, Speaker::User, &m.text),
            LogRecord::AssistantMessage(m) => (m.turn, m.time, Speaker::Assistant, &m.text),
            LogRecord::ToolResult(r) => (r.turn, r.time, Speaker::Tool, &r.content),
            _ => return None,
        };
        let at = self.find(text)?;
        Some(Hit { session: session.clone(), name: None, turn, time, who, passage: passage(text, at) })
    }

    /// Where the first of the words stands, in characters, if the text has them all.
    fn find(&self, text: &str) -> Option<usize> {
        let text = lower(text);
        let at = |word: &Vec<char>| {
            let found = text.windows(word.len().max(1)).find(|window| window.iter().map(|(c, _)| c).eq(word));
            found.and_then(|window| window.first()).map(|(_, at)| *at)
        };
        let places: Option<Vec<usize>> = self.0.iter().map(at).collect();
        places?.into_iter().min()
    }
}

/// Lower case, each character with the place, in characters, of the one that it came from.
fn lower(text: &str) -> Vec<(char, usize)> {
    text.chars().enumerate().flat_map(|(at, c)| c.to_lowercase().map(move |c| (c, at))).collect()
}

/// The words around a place, in one line.
fn passage(text: &str, at: usize) -> String {
    let from = at.saturating_sub(BEFORE);
    // from the beginning of a word on
    let skipped = match from {
        0 => 0,
        _ => text.chars().skip(from).take(BEFORE).take_while(|c| !c.is_whitespace()).count(),
    };
    let from = if skipped == BEFORE { from } else { from.saturating_add(skipped) };
    let rest: String = text.chars().skip(from).collect();
    let passage = beginning(&rest, PASSAGE);
    if from == 0 { passage } else { format!("… {passage}") }
}

/// The first words of a text, in one line of at most `most` characters; cut with an ellipsis.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    let mut line = String::new();
    let mut left = most;
    for word in text.split_whitespace() {
        let gap = usize::from(!line.is_empty());
        let length = word.chars().count().saturating_add(gap);
        if length > left {
            let cut: String = word.chars().take(if line.is_empty() { left } else { 0 }).collect();
            return format!("{line}{cut}…");
        }
        if gap > 0 {
            line.push(' ');
        }
        line.push_str(word);
        left = left.saturating_sub(length);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_words_in_any_case() {
        let find = |words: &str, text: &str| Words::new(words).find(text);
        assert_eq!(find("größe", "Die GRÖSSE, die Größe"), Some(16));
        assert_eq!(find("beans plant", "Plant the beans"), Some(0));
        assert_eq!(find("beans corn", "Plant the beans"), None);
        assert_eq!(find("", "anything"), None);
        // one character in upper case is two in lower case: places are counted in the text
        assert_eq!(find("x", "İİx"), Some(2));
    }

    #[test]
    fn a_passage_is_one_line_of_whole_words() {
        let text = format!("{} needle\nin the {}", "straw ".repeat(50).trim(), "hay ".repeat(100));
        let at = text.find("needle").unwrap();
        let passage = passage(&text, at);
        assert!(passage.starts_with("… straw straw") && passage.contains("needle in the hay"), "{passage}");
        assert!(passage.ends_with("hay…") && passage.chars().count() <= PASSAGE + 4, "{passage}");
    }

    #[test]
    fn a_beginning_is_cut_between_words() {
        assert_eq!(beginning("  one\n two ", 20), "one two");
        assert_eq!(beginning("one two three", 8), "one two…");
        assert_eq!(beginning("abcdefgh", 3), "abc…");
        assert_eq!(beginning("", 3), "");
    }
}
