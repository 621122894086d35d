//! What it takes to make a whole turn durable, beside SQLite with one transaction a record.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use boxmaker::proto::{Digest, LogRecord, Place, encode_line};
use boxmaker::store::{Session, Uring};
use rusqlite::Connection;

use crate::append::write;
use crate::measure::{Pair, in_turns, median};
use crate::report::Row;
use crate::sessions::{APPENDS, Dice, baseline, named, turn};

const TURNS: usize = 240;
/// Transactions after which SQLite has used its log again from the beginning: until its first checkpoint, after 1000 pages, that is a
/// file that grows.
const BEFORE: usize = 1200;
/// Turns of a round.
const BLOCK: usize = 8;

/// Who makes a turn durable: they take turns in beginning.
const SIDES: [Side; 3] = [Side::Ours, Side::Sqlite, Side::Calls];

#[derive(Clone, Copy)]
enum Side {
    /// The store.
    Ours,
    /// One transaction a record.
    Sqlite,
    /// As many appends as ours, of as many bytes, by the two system calls.
    Calls,
}

/// A turn without and one with a tool call.
pub fn rows(dir: &Path, place: &str) -> Vec<Row> {
    let plain: &[usize] = &[1, 3];
    [("a turn", plain), ("a turn with a tool call", &APPENDS)].map(|kind| one(dir, place, kind)).into()
}

/// The turn's records: all of them, or those of a turn without a tool.
fn records(dice: &mut Dice, number: u64, appends: &[usize]) -> Vec<LogRecord> {
    let mut all = turn(dice, number, 600);
    if appends.len() < APPENDS.len() {
        all.drain(1..5);
    }
    all
}

/// What is written in each of the appends.
fn lines(records: &[LogRecord], appends: &[usize]) -> Vec<Vec<u8>> {
    let line = |record| encode_line(Digest::of(b""), Place::default(), record).unwrap();
    let mut rest = records.iter();
    appends.iter().map(|count| rest.by_ref().take(*count).flat_map(line).collect()).collect()
}

fn one(dir: &Path, place: &str, (name, appends): (&str, &[usize])) -> Row {
    let runtime = Uring::runtime().expect("io_uring");
    let id = format!("turns-{}", appends.len());
    let session = runtime.block_on(Session::create(dir, id.parse().unwrap(), baseline(), 0));
    let mut session = session.unwrap();
    let database = dir.join(format!("{id}.sqlite"));
    let sqlite = open(&database);
    let plain = File::create_new(dir.join(format!("{id}.plain"))).unwrap();
    let (mut pair, mut dice, mut at, mut alone) = (Pair::default(), Dice(11), 0, Vec::new());
    (0..BEFORE).for_each(|_| insert(&sqlite, &named("before")));
    let (mut done, mut round) = (0, 0);
    while done < TURNS {
        let turns: Vec<_> = (done..done + BLOCK).map(|n| records(&mut dice, n as u64 + 1, appends)).collect();
        let mut took = [Duration::ZERO; 3];
        for side in in_turns(SIDES.len(), round).map(|side| SIDES[side]) {
            for records in &turns {
                let lines = lines(records, appends);
                let mut rest = records.clone();
                let began = Instant::now();
                match side {
                    Side::Ours => {
                        for count in appends {
                            let after = rest.split_off(*count);
                            runtime.block_on(session.append_all(rest)).unwrap();
                            rest = after;
                        }
                    }
                    Side::Sqlite => rest.iter().for_each(|record| insert(&sqlite, record)),
                    Side::Calls => {
                        for bytes in &lines {
                            write(&plain, bytes, at);
                            at += bytes.len() as u64;
                        }
                    }
                }
                let one = began.elapsed();
                took[side as usize] += one;
                match side {
                    Side::Ours => pair.ours.push(one),
                    Side::Sqlite => pair.reference.push(one),
                    Side::Calls => {}
                }
            }
        }
        let [ours, sqlite, calls] = took;
        pair.round(ours, sqlite);
        alone.push(calls.as_secs_f64() / sqlite.as_secs_f64());
        done += BLOCK;
        round += 1;
    }
    drop(sqlite);
    fs::remove_file(database).unwrap();
    let (ratio, p99) = (pair.ratio(), pair.p99_ratio());
    let transactions: usize = appends.iter().sum();
    Row::new(format!("{name}, {} appends, {place}", appends.len()), pair.ours.shown())
        .beside(
            format!("SQLite, WAL, FULL, {transactions} transactions: {}", pair.reference.shown()),
            format!(
                "{ratio:.2}; p99 {p99:.2}; the appends by pwrite + fdatasync alone: {:.2}",
                median(alone)
            ),
        )
        .goal("ahead of SQLite", ratio < 1.0)
}

fn open(path: &Path) -> Connection {
    let sqlite = Connection::open(path).unwrap();
    sqlite.pragma_update(None, "journal_mode", "WAL").unwrap();
    sqlite.pragma_update(None, "synchronous", "FULL").unwrap();
    sqlite.execute_batch("CREATE TABLE records (id INTEGER PRIMARY KEY, record TEXT NOT NULL)").unwrap();
    sqlite
}

fn insert(sqlite: &Connection, record: &LogRecord) {
    let text = serde_json::to_string(record).unwrap();
    sqlite.prepare_cached("INSERT INTO records (record) VALUES (?1)").unwrap().execute([text]).unwrap();
}
