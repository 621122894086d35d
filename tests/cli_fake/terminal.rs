//! `bxctl` in a real pseudo-terminal: keys in, screen contents out.

#![allow(clippy::panic, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::time::{Duration, Instant};

use boxmaker::proto::{EventKind, Reply, Request, SessionId, TurnOutcome};
use expectrl::Session;
use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;

use super::{Act, Fake, PATIENCE, end, events, text, turn_reply, usage, usual, whole_turn};

/// A terminal with `bxctl` in it.
pub struct Terminal {
    pub session: OsSession,
    pub screen: vt100::Parser,
}

impl Terminal {
    pub fn start(fake: &Fake, arguments: &[&str], columns: u16, rows: u16) -> Self {
        Self::run(fake, arguments, "exec \"$@\"", columns, rows)
    }

    /// A chat that a shell starts with this script, in which `"$@"` stands for it.
    pub fn start_in(fake: &Fake, script: &str, columns: u16, rows: u16) -> Self {
        Self::run(fake, &[], script, columns, rows)
    }

    fn run(fake: &Fake, arguments: &[&str], script: &str, columns: u16, rows: u16) -> Self {
        let mut command = fake.command();
        command.args(arguments);
        // the size must be there before the program looks
        let mut shell = std::process::Command::new("sh");
        let size = format!("{rows} {columns}");
        shell.args(["-c", &format!("until [ \"$(stty size)\" = '{size}' ]; do sleep 0.01; done; {script}")]);
        shell.arg("sh").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let mut session = Session::spawn(shell).unwrap();
        session.get_process_mut().set_window_size(columns, rows).unwrap();
        Self { session, screen: vt100::Parser::new(rows, columns, 500) }
    }

    /// Takes in what was written, for a moment.
    pub fn look(&mut self) -> bool {
        let mut buffer = [0; 4096];
        match self.session.try_read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.screen.process(buffer.get(..n).unwrap());
                true
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(5));
                true
            }
            // the other side has closed the terminal
            Err(_) => false,
        }
    }

    /// What is on the screen, with no empty lines at its end.
    pub fn contents(&self) -> String {
        let lines: Vec<String> =
            self.screen.screen().contents().lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n").trim_end().to_owned()
    }

    pub fn wait(&mut self, what: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let contents = self.contents();
            if what(&contents) {
                return contents;
            }
            assert!(self.look() && Instant::now() < until, "it does not come; the screen:\n{contents}");
        }
    }

    pub fn wait_for(&mut self, text: &str) -> String {
        self.wait(|contents| contents.contains(text))
    }

    /// Waits for an empty prompt at the end of the screen.
    pub fn prompt(&mut self) -> String {
        self.wait(|contents| contents.ends_with("\n>"))
    }

    pub fn keys(&mut self, keys: &str) {
        self.session.write_all(keys.as_bytes()).unwrap();
        self.session.flush().unwrap();
    }

    /// The exit status, at the end.
    pub fn exit(&mut self) -> i32 {
        let until = Instant::now() + PATIENCE;
        loop {
            self.look();
            match self.session.get_process().status() {
                Ok(WaitStatus::Exited(_, code)) => {
                    while self.look() && Instant::now() < until {}
                    return code;
                }
                Ok(WaitStatus::StillAlive) if Instant::now() < until => {}
                other => panic!("{other:?}; the screen:\n{}", self.contents()),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.session.get_process_mut().exit(true);
    }
}

/// A daemon that answers each message with "You said: …".
pub fn echo() -> Fake {
    let mut turn = 1;
    Fake::start(move |request| match request {
        Request::Send { session, text } => {
            turn += 1;
            let answer = format!("You said: {text}");
            Act::Then(turn_reply(session, turn), whole_turn(session, turn, turn * 100, text, &[&answer]))
        }
        other => usual(other).unwrap(),
    })
}

/// A daemon whose turns begin with these events and then wait.
pub fn waiting(kinds: Vec<EventKind>) -> Fake {
    Fake::start(move |request| match request {
        Request::Send { session, .. } => {
            Act::Then(turn_reply(session, 2), events(session, 2, 11, kinds.clone()))
        }
        other => usual(other).unwrap(),
    })
}

/// The session of the scripted daemons.
pub fn session() -> SessionId {
    "s1".parse().unwrap()
}

/// A daemon whose turns begin with a text and then wait for [`finish`].
pub fn slow() -> Fake {
    let mut turn = 1;
    Fake::start(move |request| match request {
        Request::Send { session, text: said } => {
            turn += 1;
            let kinds = vec![
                EventKind::TurnStart { text: said.clone(), retry: false },
                text(&format!("answer {turn} to {said}, ")),
            ];
            Act::Then(turn_reply(session, turn), events(session, turn, turn * 100, kinds))
        }
        Request::Cancel { session } => Act::Before(
            events(session, turn, turn * 100 + 50, vec![end(TurnOutcome::Cancelled, None)]),
            Reply::Done {},
        ),
        other => usual(other).unwrap(),
    })
}

/// Ends a turn of [`slow`].
pub fn finish(fake: &Fake, turn: u64) {
    let kinds = vec![text("and done."), usage(0), end(TurnOutcome::Done, None)];
    fake.push(events(&session(), turn, turn * 100 + 10, kinds));
}
