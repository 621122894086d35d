//! The commands of a chat: a slash and a word.

use std::io;

use crate::cli::pen::Pen;
use crate::proto::Decision;

/// What a line at the prompt means.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// Nothing.
    Empty,
    /// A message for the model.
    Message(&'a str),
    /// `/help`
    Help,
    /// `/retry`
    Retry,
    /// `/rebase`
    Rebase,
    /// `/allow` or `/deny`: the call that waits for it
    Decide(Decision),
    /// `/usage`
    Usage,
    /// `/sessions`
    Sessions,
    /// `/show [TURN]`
    Show(Option<u64>),
    /// `/search WORDS`
    Search(&'a str),
    /// `/switch SESSION`
    Switch(&'a str),
    /// `/fork [TURN]`
    Fork(Option<u64>),
    /// `/send`: the messages that wait
    Send,
    /// `/drop [NUMBER]`
    Drop(Option<usize>),
    /// `/quit`
    Quit,
    /// `/new [NAME]`
    New(Option<&'a str>),
    /// `/rename NAME`
    Rename(&'a str),
    /// A command that is used wrongly, or that there is not: what to do.
    Wrong(&'static str),
}

/// What `/help` lists.
const HELP: &[(&str, &str)] = &[
    ("/new [NAME]", "begin a new session"),
    ("/sessions", "list the sessions"),
    ("/switch SESSION", "go on with another session: its id, the beginning of it, or its name"),
    ("/show [TURN]", "this conversation, or one turn of it"),
    ("/search WORDS", "find what was said, in all sessions"),
    ("/fork [TURN]", "begin a new session with the turns up to this one"),
    ("/rename NAME", "name this session"),
    ("/retry", "ask again where the newest turn has no whole answer"),
    ("/rebase", "go on in a new epoch: from a summary, with today's configuration"),
    ("/allow, /deny", "decide about the tool call that waits for it"),
    ("/usage", "what each turn cost"),
    ("/send", "send the messages that wait"),
    ("/drop [NUMBER]", "take a message that waits away, the last or this one"),
    ("/quit", "leave (a running turn goes on)"),
    ("//TEXT", "send a message that begins with a slash"),
    ("Alt-Enter", "begin a new line; a backslash before Enter does the same"),
    ("Ctrl-C", "cancel the running turn; twice: quit"),
    ("Ctrl-D", "leave, as /quit does"),
];
/// Columns of the names there.
const NAMES: usize = 17;

/// Prints what `/help` prints.
///
/// # Errors
/// When the output cannot be written.
pub fn help(pen: &mut Pen) -> io::Result<()> {
    HELP.iter().try_for_each(|(name, what)| pen.entry(&format!("{name:NAMES$}"), what))?;
    pen.say("What is sent while the model answers waits until it has.")
}

/// What a line means. A word with a second slash in it (a path) is no command.
#[must_use]
pub fn meaning(line: &str) -> Meaning<'_> {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Meaning::Empty;
    }
    let Some(rest) = trimmed.strip_prefix('/') else {
        return Meaning::Message(line);
    };
    if rest.starts_with('/') {
        return Meaning::Message(rest);
    }
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if word.contains('/') {
        return Meaning::Message(line);
    }
    let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
    match (word, argument) {
        ("help" | "?", _) => Meaning::Help,
        ("retry", None) => Meaning::Retry,
        ("rebase", None) => Meaning::Rebase,
        ("allow", None) => Meaning::Decide(Decision::Allow),
        ("deny", None) => Meaning::Decide(Decision::Deny),
        ("usage", None) => Meaning::Usage,
        ("sessions", None) => Meaning::Sessions,
        ("show", None) => Meaning::Show(None),
        ("show", Some(turn)) => number(turn, Meaning::Show),
        ("search", Some(words)) => Meaning::Search(words),
        ("search", None) => Meaning::Wrong("a word is missing: /search WORDS"),
        ("switch", Some(session)) => Meaning::Switch(session),
        ("switch", None) => Meaning::Wrong("a session is missing: /switch SESSION; /sessions lists them"),
        ("fork", None) => Meaning::Fork(None),
        ("fork", Some(turn)) => number(turn, Meaning::Fork),
        ("send", None) => Meaning::Send,
        ("drop", None) => Meaning::Drop(None),
        ("drop", Some(place)) => number(place, Meaning::Drop),
        ("quit" | "exit" | "q", None) => Meaning::Quit,
        ("new", name) => Meaning::New(name),
        ("rename", Some(name)) => Meaning::Rename(name),
        ("rename", None) => Meaning::Wrong("a name is missing: /rename NAME"),
        (
            "retry" | "rebase" | "allow" | "deny" | "usage" | "sessions" | "send" | "quit" | "exit" | "q",
            Some(_),
        ) => Meaning::Wrong("this command takes nothing after it; /help lists the commands"),
        _ => Meaning::Wrong(
            "no such command; /help lists those of a chat, `bxctl --help` all others, and two slashes send a \
             message that begins with one",
        ),
    }
}

fn number<N: std::str::FromStr>(text: &str, of: impl Fn(Option<N>) -> Meaning<'static>) -> Meaning<'static> {
    text.parse().map_or(Meaning::Wrong("what stands behind this command must be a number"), |n| of(Some(n)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_messages_are_told_apart() {
        for (line, expected) in [
            ("", Meaning::Empty),
            ("  \n ", Meaning::Empty),
            ("hello /quit", Meaning::Message("hello /quit")),
            (" indented", Meaning::Message(" indented")),
            ("/etc/fstab: what is it?", Meaning::Message("/etc/fstab: what is it?")),
            ("//quit", Meaning::Message("/quit")),
            ("/quit", Meaning::Quit),
            ("/allow", Meaning::Decide(Decision::Allow)),
            ("/new", Meaning::New(None)),
            ("/new  a  name ", Meaning::New(Some("a  name"))),
            ("/rename x", Meaning::Rename("x")),
            ("/show 3", Meaning::Show(Some(3))),
            ("/drop", Meaning::Drop(None)),
            ("/switch the garden", Meaning::Switch("the garden")),
        ] {
            assert_eq!(meaning(line), expected, "{line:?}");
        }
        for wrong in ["/", "/nope", "/rename ", "/retry now", "/drop x", "/search"] {
            assert!(matches!(meaning(wrong), Meaning::Wrong(_)), "{wrong:?}");
        }
    }
}
