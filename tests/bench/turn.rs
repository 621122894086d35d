//! What it takes to make a whole turn durable, beside SQLite with one transaction a record.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use boxmaker::proto::LogRecord;
use boxmaker::store::{Session, Uring};
use rusqlite::Connection;

use crate::measure::{Pair, ours_first};
use crate::report::Row;
use crate::sessions::{APPENDS, Dice, baseline, named, turn};

const TURNS: usize = 240;
/// Transactions after which SQLite has used its log again from the beginning: until its first checkpoint, after 1000 pages, that is a
/// file that grows.
const BEFORE: usize = 1200;
/// Turns of a round.
const BLOCK: usize = 8;

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

fn one(dir: &Path, place: &str, (name, appends): (&str, &[usize])) -> Row {
    let runtime = Uring::runtime().expect("io_uring");
    let id = format!("turns-{}", appends.len());
    let session = runtime.block_on(Session::create(dir, id.parse().unwrap(), baseline(), 0));
    let mut session = session.unwrap();
    let database = dir.join(format!("{id}.sqlite"));
    let sqlite = open(&database);
    let (mut pair, mut dice) = (Pair::default(), Dice(11));
    (0..BEFORE).for_each(|_| insert(&sqlite, &named("before")));
    let (mut done, mut round) = (0, 0);
    while done < TURNS {
        let turns: Vec<_> = (done..done + BLOCK).map(|n| records(&mut dice, n as u64 + 1, appends)).collect();
        let mut took = [Duration::ZERO; 2];
        for which in 0..2 {
            let ours = (which == 0) == ours_first(round);
            for records in &turns {
                let mut rest = records.clone();
                let began = Instant::now();
                if ours {
                    for count in appends {
                        let after = rest.split_off(*count);
                        runtime.block_on(session.append_all(rest)).unwrap();
                        rest = after;
                    }
                } else {
                    rest.iter().for_each(|record| insert(&sqlite, record));
                }
                let one = began.elapsed();
                took[usize::from(ours)] += one;
                if ours { pair.ours.push(one) } else { pair.reference.push(one) }
            }
        }
        pair.round(took[1], took[0]);
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
            format!("{ratio:.2}; p99 {p99:.2}"),
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
