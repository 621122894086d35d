//! `search`: what was said somewhere.

use std::io;

use super::args::Search;
use super::error::{CliError, status};
use super::follow::json_line;
use super::layout::{Layout, Style};
use super::link::{Link, unexpected};
use super::lists::print;
use super::pen::{self, Ability, Pen};
use super::text;
use super::time::minute;
use crate::proto::{Hit, Reply, Request, SessionId, Speaker};

/// What stands before a passage.
const INDENT: &str = "  ";

/// `bxctl search`; gives the exit status: as `grep`'s, 1 where nothing was found.
///
/// # Errors
/// [`Link::ask`]'s, or when the output cannot be written.
pub async fn search(link: &mut Link, options: Search) -> Result<u8, CliError> {
    let text = options.words.join(" ");
    let session = match &options.session {
        Some(session) => Some(link.resolve(session).await?.id),
        None => None,
    };
    let found = find(link, &text, session, options.most).await?;
    let mut notes = Pen::split();
    if options.json {
        json_line(&found.hits)?;
    } else {
        print(&lines(&found.hits, &text, Ability::of(&io::stdout())))?;
        found.tell_if_nothing(&mut notes)?;
    }
    let more = format!("there is more; --most {} shows more", options.most.saturating_mul(10));
    found.tell_what_is_left_out(&mut notes, &more)?;
    Ok(if found.hits.is_empty() { status::FAILED } else { status::OK })
}

/// What was found.
pub struct Found {
    /// The passages.
    pub hits: Vec<Hit>,
    /// Whether there are more.
    pub more: bool,
    /// Sessions that could not be read.
    pub unread: Vec<SessionId>,
}

impl Found {
    /// Says that there are no passages, if there are none.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell_if_nothing(&self, pen: &mut Pen) -> io::Result<()> {
        if self.hits.is_empty() {
            pen.note("nothing was found: every word must be in one message")?;
        }
        Ok(())
    }

    /// Says what is not among the passages; `more` is the note that there are more of them.
    ///
    /// # Errors
    /// When the output cannot be written.
    pub fn tell_what_is_left_out(&self, pen: &mut Pen, more: &str) -> io::Result<()> {
        if self.more {
            pen.note(more)?;
        }
        self.unread.iter().try_for_each(|id| {
            pen.warn(&format!("session {id} cannot be read, and was left out; `bxctl sessions` tells why"))
        })
    }
}

/// Asks for it.
///
/// # Errors
/// [`Link::ask`]'s.
pub async fn find(
    link: &mut Link,
    text: &str,
    session: Option<SessionId>,
    most: u64,
) -> Result<Found, CliError> {
    match link.ask(Request::Search { text: text.to_owned(), session, most }).await? {
        Reply::Found { hits, more, unread } => Ok(Found { hits, more, unread }),
        reply => Err(unexpected(&reply)),
    }
}

/// The passages under the sessions that they stand in; safe.
#[must_use]
pub fn lines(hits: &[Hit], words: &str, can: Ability) -> Vec<String> {
    let width = pen::row(can);
    let mut lines = Vec::new();
    let mut session = None;
    for hit in hits {
        if session != Some(&hit.session) {
            if session.is_some() {
                lines.push(String::new());
            }
            session = Some(&hit.session);
            let name = hit.name.as_ref().map(|name| format!(" \"{}\"", text::line(name)));
            lines.push(format!("session {}{}", hit.session, name.unwrap_or_default()));
        }
        let who = match hit.who {
            Speaker::User => "you",
            Speaker::Assistant => "model",
            Speaker::Tool => "tool",
        };
        let mut layout = Layout::new(can.colour);
        layout.fit(width, 0);
        layout.hang(INDENT.len());
        let head = format!("{INDENT}turn {} · {} · {who}: ", hit.turn, minute(hit.time));
        head.chars().for_each(|c| layout.put(c, Style::Plain));
        marked(&text::line(&hit.passage), words).for_each(|(c, style)| layout.put(c, style));
        lines.extend(layout.take().lines().map(str::to_owned));
    }
    lines
}

/// The words that were looked for, in bold. Only where lower case has the same length, so that places fit.
fn marked(passage: &str, words: &str) -> impl Iterator<Item = (char, Style)> {
    let lower = passage.to_lowercase();
    let mut bold = vec![false; passage.len()];
    if lower.len() == passage.len() {
        for word in words.to_lowercase().split_whitespace() {
            for (at, found) in lower.match_indices(word) {
                bold.iter_mut().skip(at).take(found.len()).for_each(|byte| *byte = true);
            }
        }
    }
    passage.char_indices().map(move |(at, c)| {
        (c, if bold.get(at).copied().unwrap_or(false) { Style::Bold } else { Style::Plain })
    })
}

#[cfg(test)]
mod tests {
    use super::super::pen::tests::PLAIN;
    use super::*;

    #[test]
    fn passages_stand_under_their_session() {
        let hit = |session: &str, turn: u64, who| Hit {
            session: session.parse().unwrap(),
            name: (session == "s1").then(|| "gar\x1bden".to_owned()),
            turn: crate::proto::TurnId(turn),
            time: "2026-01-31T23:59:59.999Z".parse().unwrap(),
            who,
            passage: "… plant \x1b[2Jthe Beans in May".to_owned(),
        };
        let hits =
            [hit("s1", 1, Speaker::User), hit("s1", 2, Speaker::Tool), hit("s2", 9, Speaker::Assistant)];
        insta::assert_snapshot!(lines(&hits, "beans", PLAIN).join("\n"), @r#"
        session s1 "gar␛den"
          turn 1 · 2026-01-31 23:59 · you: … plant ␛[2Jthe Beans in May
          turn 2 · 2026-01-31 23:59 · tool: … plant ␛[2Jthe Beans in May

        session s2
          turn 9 · 2026-01-31 23:59 · model: … plant ␛[2Jthe Beans in May
        "#);
        let bold: String = marked("the Beans", "beans e")
            .filter(|(_, style)| *style == Style::Bold)
            .map(|(c, _)| c)
            .collect();
        assert_eq!(bold, "eBeans");
    }
}
