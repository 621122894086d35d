//! `search`: what was said somewhere.

use std::io;

use super::args::Search;
use super::error::{CliError, status};
use super::follow::json_line;
use super::link::{Link, unexpected};
use super::lists::print;
use super::pen::{Ability, Pen};
use super::text;
use super::time::minute;
use crate::proto::{Hit, Reply, Request, SessionId, Speaker};

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
        print(&lines(&found.hits, &text, Ability::of(&io::stdout()).colour))?;
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
pub fn lines(hits: &[Hit], words: &str, colour: bool) -> Vec<String> {
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
        let passage = text::line(&hit.passage);
        let passage = if colour { marked(&passage, words) } else { passage };
        lines.push(format!("  turn {} · {} · {who}: {passage}", hit.turn, minute(hit.time)));
    }
    lines
}

/// The words that were looked for, in bold. Only where lower case has the same length, so that places fit.
fn marked(passage: &str, words: &str) -> String {
    let lower = passage.to_lowercase();
    let mut bold = vec![false; passage.len()];
    if lower.len() == passage.len() {
        for word in words.to_lowercase().split_whitespace() {
            for (at, found) in lower.match_indices(word) {
                bold.iter_mut().skip(at).take(found.len()).for_each(|byte| *byte = true);
            }
        }
    }
    let mut out = String::new();
    let mut on = false;
    for (at, c) in passage.char_indices() {
        let wanted = bold.get(at).copied().unwrap_or(false);
        if wanted != on {
            out.push_str(if wanted { "\x1b[1m" } else { "\x1b[0m" });
            on = wanted;
        }
        out.push(c);
    }
    if on {
        out.push_str("\x1b[0m");
    }
    out
}

#[cfg(test)]
mod tests {
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
        insta::assert_snapshot!(lines(&hits, "beans", false).join("\n"), @r#"
        session s1 "gar␛den"
          turn 1 · 2026-01-31 23:59 · you: … plant ␛[2Jthe Beans in May
          turn 2 · 2026-01-31 23:59 · tool: … plant ␛[2Jthe Beans in May

        session s2
          turn 9 · 2026-01-31 23:59 · model: … plant ␛[2Jthe Beans in May
        "#);
        assert_eq!(
            marked("the Beans", "beans e"),
            "th\x1b[1me\x1b[0m B\x1b[1means\x1b[0m".replace("B\x1b[1means", "\x1b[1mBeans")
        );
    }
}
