//! A home with a thousand sessions: how long the daemon takes to start, and to list them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure::{Pair, Times};
use crate::place::{Place, settle};
use crate::report::Row;
use crate::sessions::{self, Shape};

const SESSIONS: usize = 1000;
/// Of a session: 100 kB.
const SHAPE: Shape = Shape { epochs: 1, turns: 11, bytes: 1260 };
const ROUNDS: usize = 21;

/// Start, list, and what else looks at every session.
pub fn rows() -> Vec<Row> {
    let place = Place::new("");
    let bytes: u64 =
        (0..SESSIONS).map(|n| sessions::write(&place.home(), &format!("s{n:04}"), SHAPE).1).sum();
    settle(&place.home());
    let (mut starts, mut firsts) = (Times::default(), Pair::default());
    let mut daemon = None;
    let logs = logs(&place.home());
    for _ in 0..7 {
        drop(daemon.take());
        let (started, took) = place.start();
        starts.push(took);
        daemon = Some(started);
        let first = run(place.bxctl(&["sessions"]));
        firsts.push(first, wc(&logs));
    }
    let mut pair = Pair::default();
    for round in 0..ROUNDS {
        // the first round's files were read a moment ago: all are in the page cache
        pair.measure(round, || run(place.bxctl(&["sessions"])), || wc(&logs));
    }
    let mut latest = Times::default();
    let mut talk = place.talk();
    for _ in 0..ROUNDS {
        latest.time(|| talk.ask(boxmaker::proto::Request::Latest {}).expect("the newest session"));
    }
    let megabytes = bytes as f64 / 1e6;
    let (start, ratio) = (starts.median(), pair.ratio());
    vec![
        Row::new(format!("start to ready, {SESSIONS} sessions"), starts.shown())
            .goal("< 30 ms", start < Duration::from_millis(30)),
        Row::new(format!("`bxctl sessions`, {SESSIONS} sessions, {megabytes:.0} MB"), pair.ours.shown())
            .beside(format!("`wc -l`: {}", pair.reference.shown()), format!("{ratio:.2}"))
            .goal("≤ 2", ratio <= 2.0),
        Row::new(
            "the first one after the daemon's start: every record is read and verified",
            firsts.ours.shown(),
        )
        .beside(format!("`wc -l`: {}", firsts.reference.shown()), format!("{:.1}", firsts.ratio())),
        Row::new("the newest session, as `bxctl send` without a name asks for it", latest.shown()),
    ]
}

fn logs(home: &Path) -> Vec<PathBuf> {
    let sessions = fs::read_dir(home.join("sessions")).expect("list the sessions");
    sessions.map(|entry| entry.expect("an entry").path().join("0.jsonl")).collect()
}

fn wc(logs: &[PathBuf]) -> Duration {
    let mut command = Command::new("wc");
    command.arg("-l").args(logs);
    run(command)
}

/// Runs a command to its end, which must be a good one.
fn run(mut command: Command) -> Duration {
    let began = Instant::now();
    let status = command.stdout(Stdio::null()).status().expect("run it");
    assert!(status.success(), "{command:?}: {status}");
    began.elapsed()
}
