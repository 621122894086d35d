//! What the programs weigh: their size, their memory, and the processor time of a daemon with nothing to do.

use std::fs;
use std::time::Duration;

use boxmaker::proto::{Request, SessionId};

use crate::measure::Times;
use crate::place::{Daemon, Place, program};
use crate::report::Row;
use crate::scripted_server::Script;
use crate::stream::first_text;
use crate::talk::Talk;

const MB: f64 = 1e6;
const IDLE: Duration = Duration::from_secs(20);
const CLIENTS: usize = 64;
/// How long after its last work a daemon has surely given back what that needed.
const QUIET: Duration = Duration::from_secs(12);
const ROUNDS: usize = 7;

/// The release binaries.
pub fn sizes() -> Vec<Row> {
    let one = |name: &str, goal: f64| {
        let bytes = fs::metadata(program(name)).expect("the program").len() as f64;
        Row::new(format!("`{name}`, release, stripped"), format!("{:.2} MB", bytes / MB))
            .goal(format!("{goal} MB"), bytes <= goal * MB)
    };
    vec![one("loopd", 6.0), one("bxctl", 4.0)]
}

/// What the daemon's file is made of, as its section headers say.
pub fn sections() -> String {
    let bytes = fs::read(program("loopd")).expect("the program");
    let number = |at: usize, length: usize| {
        let mut all = [0; 8];
        all[..length].copy_from_slice(&bytes[at..at + length]);
        usize::try_from(u64::from_le_bytes(all)).expect("a length")
    };
    // ELF, 64 bits: where the table of sections is, how many there are, and which of them holds their names
    let (table, count, names) = (number(0x28, 8), number(0x3c, 2), number(0x3e, 2));
    let header = |n: usize| table + n * 64;
    let text = number(header(names) + 0x18, 8);
    let mut sizes: Vec<(usize, String)> = (1..count)
        .map(|n| {
            let name =
                bytes[text + number(header(n), 4)..].split(|byte| *byte == 0).next().unwrap_or_default();
            (number(header(n) + 0x20, 8), String::from_utf8_lossy(name).into_owned())
        })
        .collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let shown = sizes.iter().take(4).map(|(size, name)| format!("{:.2} MB of `{name}`", *size as f64 / MB));
    format!("of `loopd` the greatest parts are {}.", shown.collect::<Vec<_>>().join(", "))
}

fn memory(what: String, daemon: &Daemon, goal: f64) -> Row {
    let (all, own) = daemon.memory();
    Row::new(what, format!("{:.1} MB, {:.1} MB of it its own", all as f64 / MB, own as f64 / MB))
        .goal(format!("{goal} MB"), all as f64 <= goal * MB)
}

/// A session whose context holds this many tokens.
pub fn fill(place: &Place, talk: &mut Talk, tokens: u64) -> SessionId {
    const ANSWER: usize = 1000;
    let id = talk.create();
    let mut held = 0;
    while held < tokens {
        place.server.push(Script::say(&"a".repeat(ANSWER)));
        talk.turn(&id, &"q".repeat(500));
        place.server.forget();
        held = talk.info(&id).context_n;
    }
    id
}

/// What it costs that an idle daemon has given its program text back.
fn after_idling(place: &Place) -> Row {
    let mut talk = place.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    let (mut after, mut at_once) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        std::thread::sleep(QUIET);
        after.push(first_text(&mut talk, &id));
        at_once.push(first_text(&mut talk, &id));
    }
    let more = after.median().as_secs_f64() - at_once.median().as_secs_f64();
    Row::new("first token after idling, for a client that is connected", after.shown())
        .beside(format!("the next one: {}", at_once.shown()), format!("{:+.2} ms", more * 1e3))
}

/// Memory and idle time.
pub fn memories() -> Vec<Row> {
    let place = Place::new(&format!("clients = {}", CLIENTS + 1));
    let (daemon, _) = place.start();
    let mut rows = Vec::new();
    // it has seen its model and ended a turn
    let mut talk = place.talk();
    let id = talk.create();
    talk.turn(&id, "Hello");
    drop(talk);
    let before = daemon.cpu();
    std::thread::sleep(IDLE);
    let share = (daemon.cpu() - before).as_secs_f64() / IDLE.as_secs_f64() * 100.0;
    rows.push(memory("memory, idle".to_owned(), &daemon, 6.0));
    let idle = Row::new("processor, idle", format!("{share:.3} % of a core"));
    rows.push(idle.goal("< 0.1 %", share < 0.1));
    rows.push(after_idling(&place));
    daemon.end();

    let (daemon, _) = place.start();
    let mut talk = place.talk();
    fill(&place, &mut talk, 32_000);
    rows.push(memory("memory, one session of 32,000 tokens".to_owned(), &daemon, 20.0));
    drop(talk);
    daemon.end();

    let (daemon, _) = place.start();
    let mut talks: Vec<Talk> = (0..CLIENTS).map(|_| place.talk()).collect();
    let id = talks[0].create();
    for talk in &mut talks[1..] {
        talk.attach(&id, None);
    }
    place.server.push(Script::say(&"a".repeat(2000)));
    talks[0].turn(&id, "Tell all of them");
    for talk in &mut talks[1..] {
        talk.until_end(&id);
    }
    rows.push(memory(format!("memory, {CLIENTS} clients on one session"), &daemon, 30.0));
    talks[0].ask(Request::Status {}).expect("it answers");
    daemon.end();
    rows
}
