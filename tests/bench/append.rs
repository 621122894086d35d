//! Durable appends, one at a time, beside the plain system calls; and many sessions' at once beside one thread that
//! makes them one after the other.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use boxmaker::store::{Session, Uring};

use crate::measure::{Pair, median, ours_first};
use crate::report::Row;
use crate::sessions::{baseline, named};

/// Fresh files, since how one lies on the disk makes a difference that has nothing to do with who writes it:
/// with more than four extents, say, ext4 has one more block to sync.
const FILES: usize = 16;
const BLOCKS: usize = 8;
const RECORDS: usize = 20;

/// The goals: the median of the blocks' ratios, and the ratio of the 99th percentiles.
const MEDIAN: f64 = 1.08;
const P99: f64 = 1.3;

/// Both kinds of append in a folder that lies on `place`.
pub fn appends(dir: &Path, place: &str) -> Vec<Row> {
    let runtime = Uring::runtime().expect("io_uring");
    let kinds = [("300 B", 120), ("4 kB", 3900)];
    let rows = kinds.map(|(name, text)| {
        let mut pair = Pair::default();
        for n in 0..FILES {
            runtime.block_on(one_file(dir, &format!("bench-{text}-{n}"), text, &mut pair));
        }
        let (ratio, p99) = (pair.ratio(), pair.p99_ratio());
        Row::new(format!("durable append, {name}, {place}"), pair.ours.shown())
            .beside(
                format!("pwrite + fdatasync: {}", pair.reference.shown()),
                format!("{ratio:.2}; p99 {p99:.2}"),
            )
            .goal(format!("≤ {MEDIAN}; p99 ≤ {P99}"), ratio <= MEDIAN && p99 <= P99)
    });
    rows.into()
}

/// Measures with a new session and a new plain file beside its log.
async fn one_file(home: &Path, id: &str, text: usize, pair: &mut Pair) {
    let mut session = Session::create(home, id.parse().unwrap(), baseline(), 0).await.unwrap();
    let record = named(&"x".repeat(text));
    session.append(record.clone()).await.unwrap();
    let log = session.dir().join("0.jsonl");
    let before = std::fs::metadata(&log).unwrap().len();
    session.append(record.clone()).await.unwrap();
    let bytes = vec![b'x'; usize::try_from(std::fs::metadata(&log).unwrap().len() - before).unwrap()];
    let plain = File::create_new(session.dir().join("plain")).unwrap();
    let mut at = 0;
    for block in 0..BLOCKS {
        let mut took = [Duration::ZERO; 2];
        for turn in 0..2 {
            let ours = (turn == 0) == ours_first(block);
            for _ in 0..RECORDS {
                let record = record.clone();
                let began = Instant::now();
                if ours {
                    session.append(record).await.unwrap();
                } else {
                    plain.write_all_at(&bytes, at).unwrap();
                    plain.sync_data().unwrap();
                    at += bytes.len() as u64;
                }
                let one = began.elapsed();
                took[usize::from(ours)] += one;
                if ours { pair.ours.push(one) } else { pair.reference.push(one) }
            }
        }
        pair.round(took[1], took[0]);
    }
}

const ROUNDS: usize = 9;
/// Appends of each session in a round.
const EACH: usize = 50;

/// Sessions that append at once.
pub fn at_once(dir: &Path, place: &str) -> Vec<Row> {
    let goals = [(8, 3.0), (16, 4.0)];
    goals.map(|(sessions, goal)| many(dir, place, sessions, goal)).into()
}

fn many(dir: &Path, place: &str, count: usize, goal: f64) -> Row {
    let runtime = Uring::runtime().expect("io_uring");
    let record = named(&"x".repeat(120));
    let mut sessions: Vec<Session> = (0..count)
        .map(|n| {
            let id = format!("at-once-{count}-{n}").parse().unwrap();
            runtime.block_on(Session::create(dir, id, baseline(), 0)).unwrap()
        })
        .collect();
    let plain: Vec<File> =
        sessions.iter().map(|s| File::create_new(s.dir().join("plain")).unwrap()).collect();
    let (bytes, mut at) = (vec![b'x'; 300], 0);
    let (mut gains, mut ours, mut reference, mut most) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut took = [Duration::ZERO; 2];
        for turn in 0..2 {
            let began = Instant::now();
            let first = (turn == 0) == ours_first(round);
            if first {
                sessions = runtime.block_on(append_at_once(sessions, &record));
            } else {
                for n in 0..EACH as u64 {
                    for file in &plain {
                        file.write_all_at(&bytes, at + n * 300).unwrap();
                        file.sync_data().unwrap();
                    }
                }
                at += EACH as u64 * 300;
            }
            took[usize::from(first)] = began.elapsed();
        }
        // what the disk and its file system allow: as many threads, with nothing but the system calls
        let began = Instant::now();
        std::thread::scope(|scope| {
            for file in &plain {
                scope.spawn(|| {
                    for n in 0..EACH as u64 {
                        file.write_all_at(&bytes, at + n * 300).unwrap();
                        file.sync_data().unwrap();
                    }
                });
            }
        });
        at += EACH as u64 * 300;
        most.push(took[0].as_secs_f64() / began.elapsed().as_secs_f64());
        let appends = (count * EACH) as f64;
        ours.push(appends / took[1].as_secs_f64());
        reference.push(appends / took[0].as_secs_f64());
        gains.push(took[0].as_secs_f64() / took[1].as_secs_f64());
    }
    let gain = median(gains);
    Row::new(format!("{count} sessions at once, {place}"), format!("{:.0} appends/s", median(ours)))
        .beside(
            format!("one thread, one after the other: {:.0}/s", median(reference)),
            format!("{gain:.1} ×; a thread each: {:.1} ×", median(most)),
        )
        .goal(format!("≥ {goal} ×"), gain >= goal)
}

async fn append_at_once(sessions: Vec<Session>, record: &boxmaker::proto::LogRecord) -> Vec<Session> {
    let tasks: Vec<_> = sessions
        .into_iter()
        .map(|mut session| {
            let record = record.clone();
            tokio::task::spawn_local(async move {
                for _ in 0..EACH {
                    session.append(record.clone()).await.unwrap();
                }
                session
            })
        })
        .collect();
    let mut back = Vec::new();
    for task in tasks {
        back.push(task.await.unwrap());
    }
    back
}
