//! What runs inside the guest: the real daemon with turns going on, and clients that write down what they
//! are told on the console.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use boxmaker::proto::{Certainty, EventKind, Reply, Request, SessionId, SessionState, TurnId, TurnOutcome};
use boxmaker::store::{Session, StoreLimits};

use crate::early::Early;
use crate::ledger::{Told, lost};
use crate::store_support;
use crate::support::bench::Bench;
use crate::support::scripted_server::{Script, installed_call};

const DISK: &str = "/mnt/disk";
/// So little that each new epoch has something to summarise.
pub const KEPT: &str = "kept_tokens = 256";

fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The console, where what is told is written down.
pub struct Console {
    disk: PathBuf,
    next: u64,
    recording: bool,
    /// What was told since it began.
    pub told: Vec<Told>,
}

impl Console {
    /// Looks at what earlier boots told, says whether all of it is there, and goes on behind it.
    fn begin() -> Self {
        // behind the name of the test, which stands on the same line
        println!();
        let text = fs::read_to_string(setting("BX_LEDGER").expect("the ledger's path")).unwrap_or_default();
        let told: Vec<Told> = text.lines().filter_map(Told::parse).collect();
        let lost = lost(Path::new(DISK), &told);
        lost.iter().for_each(|what| println!("LOST {what}"));
        println!("CHECKED {} told, {} lost", told.len(), lost.len());
        Self {
            disk: DISK.into(),
            next: told.last().map_or(0, |told| told.number + 1),
            recording: setting("BX_RECORD").is_some(),
            told: Vec::new(),
        }
    }

    /// For a disk of this machine, on which nothing was told yet.
    pub fn here(disk: &Path) -> Self {
        Self { disk: disk.to_owned(), next: 0, recording: false, told: Vec::new() }
    }

    pub fn tell(&mut self, session: &SessionId, kind: &str, turn: u64, nth: usize) {
        let told = Told::of(self.next, &self.disk.join("home"), session, kind, turn, nth);
        println!("{told}");
        if self.recording {
            // after it was told: everything told before is on the disk where this mark stands
            let mark = format!("mark {}", told.number);
            let status = Command::new("dmsetup").args(["message", "lw", "0", &mark]).status();
            assert!(status.expect("run dmsetup").success());
        }
        self.told.push(told);
        self.next += 1;
    }
}

/// A tool that writes down what it was called with, durably.
pub fn note(disk: &Path) -> String {
    let notes = disk.join("notes");
    let notes = notes.display();
    format!(
        "[tools.command.note]\nprogram = \"/bin/sh\"\n\
         args = [\"-c\", \"read -r line || exit 1; echo \\\"$line\\\" >> {notes}; sync {notes}; printf noted\"]\n\
         description = \"Notes its arguments.\"\npolicy = \"allow\"\n\
         schema = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }} }}\n"
    )
}

/// Turns without end, or as many as `BX_TURNS` says.
pub fn daemon() {
    let mut console = Console::begin();
    let mut bench = Bench::prepare(KEPT, |_| note(Path::new(DISK)));
    // its home is gone before it goes, and earlier boots' prompts are not known to its server
    bench.gone = true;
    // the sessions grow from boot to boot
    bench.server.set(|behaviour| behaviour.n_ctx = 1 << 24);
    let on_disk = Path::new(DISK).join("home");
    for dir in [&on_disk, &bench.home().to_owned()] {
        fs::create_dir_all(dir).expect("make the home");
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).expect("set its mode");
    }
    let bound = Command::new("mount").arg("--bind").arg(&on_disk).arg(bench.home()).status();
    assert!(bound.expect("run mount").success());
    bench.start_daemon();
    let mut talk = bench.talk();
    let mut sessions = bench.sessions();
    for id in &sessions {
        if talk.info(id).state == SessionState::Damaged {
            println!("REFUSED {id}");
            bench.repair(id);
        }
    }
    // one whose creation was not acknowledged was moved away
    sessions.retain(|id| bench.home().join("sessions").join(id.as_str()).is_dir());
    for id in &sessions {
        talk.attach(id, None);
    }
    println!("READY");
    let turns: u64 = setting("BX_TURNS").map_or(u64::MAX, |n| n.parse().expect("a number"));
    for n in 0..turns {
        // a new session now and then
        if sessions.is_empty() || (n % 8 == 0 && sessions.len() < 6) {
            let id = talk.create();
            console.tell(&id, "session_start", 0, 1);
            sessions.push(id);
        }
        let id = sessions[usize::try_from(n).expect("small") % sessions.len()].clone();
        one_turn(&bench, &mut talk, &mut console, &id, n);
        if n % 5 == 3 {
            rebase(&mut talk, &mut console, &id);
        }
    }
    bench.kill_daemon();
    let unbound = Command::new("umount").arg("-l").arg(bench.home()).status();
    assert!(unbound.expect("run umount").success());
}

/// A turn, with a call of the tool in each third, and what is told of it.
pub fn one_turn(
    bench: &Bench,
    talk: &mut crate::support::talk::Talk,
    console: &mut Console,
    id: &SessionId,
    n: u64,
) {
    let calls = n % 3 == 1;
    if calls {
        // a number of its own for each call: what is told grows with every boot
        let text = format!("note-{}-{n}", console.next);
        let call = installed_call("note", &format!("{{\"text\": \"{text}\"}}"));
        bench.server.push(Script::say(&call));
    }
    let length = usize::try_from(n * 997 % 3000).expect("small");
    bench.server.push(Script::say(&format!("Answer {n}. {}", "x".repeat(length / 40))));
    let turn = talk.send(id, &format!("Message {n}. {}", "y".repeat(length)));
    console.tell(id, "user_message", turn.0, 1);
    let mut completions = 0;
    talk.until(id, "the turn's end", |event| match event {
        EventKind::Usage { .. } => {
            completions += 1;
            console.tell(id, "usage", turn.0, completions);
            false
        }
        EventKind::ToolResult { .. } => {
            console.tell(id, "tool_result", turn.0, 1);
            false
        }
        EventKind::TurnEnd { certainty, .. } => {
            if *certainty == Certainty::Durable {
                console.tell(id, "turn_end", turn.0, 1);
            }
            true
        }
        _ => false,
    });
}

/// A new epoch, and what is told of it.
pub fn rebase(talk: &mut crate::support::talk::Talk, console: &mut Console, id: &SessionId) {
    assert_eq!(talk.ask(Request::Rebase { session: id.clone() }), Ok(Reply::Done {}));
    talk.until(id, "a new epoch", |event| match event {
        EventKind::Rebased { outcome, detail, .. } => {
            assert_eq!(*outcome, TurnOutcome::Done, "{detail}");
            console.tell(id, "session_start", 0, 1);
            true
        }
        _ => false,
    });
}

/// The same store with a planted bug.
pub fn early() {
    let mut console = Console::begin();
    store_support::uring(async {
        let home = Path::new(DISK).join("home");
        let id: SessionId = format!("early-{}", console.next).parse().expect("an id");
        let (base, limits) = (store_support::baseline(), StoreLimits::default());
        let created = Session::create_with(Early, &home, id.clone(), base, 0, Vec::new(), limits).await;
        let mut session = created.expect("create");
        console.tell(&id, "session_start", 0, 1);
        println!("READY");
        for turn in 1.. {
            let TurnId(next) = session.next_turn();
            for append in store_support::turn(next, "unsynced") {
                session.append_all(append).await.expect("append");
            }
            console.tell(&id, "turn_end", turn, 1);
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
}
