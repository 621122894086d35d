//! Durable appends, one at a time, beside the plain system calls; and many sessions' at once beside one thread that
//! makes them one after the other. With both, what io_uring alone takes for them: less is not to be had.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::slice;
use std::time::{Duration, Instant};

use boxmaker::store::{Session, Uring};

use crate::measure::{Pair, in_turns, median};
use crate::report::Row;
use crate::ring::Ring;
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
        let (mut pair, mut least) = (Pair::default(), Vec::new());
        for n in 0..FILES {
            let id = format!("bench-{text}-{n}");
            runtime.block_on(one_file(dir, &id, text, &mut pair, &mut least));
        }
        let (ratio, p99, least) = (pair.ratio(), pair.p99_ratio(), median(least));
        Row::new(format!("durable append, {name}, {place}"), pair.ours.shown())
            .beside(
                format!("pwrite + fdatasync: {}", pair.reference.shown()),
                format!("{ratio:.2}; p99 {p99:.2}; io_uring alone: {least:.2}"),
            )
            .goal(format!("≤ {MEDIAN}; p99 ≤ {P99}"), ratio <= MEDIAN && p99 <= P99)
    });
    rows.into()
}

/// Who appends: they take turns in beginning.
const SIDES: [Side; 3] = [Side::Ours, Side::Calls, Side::Ring];

#[derive(Clone, Copy)]
enum Side {
    /// The store.
    Ours,
    /// The two system calls.
    Calls,
    /// The two operations on io_uring.
    Ring,
}

/// Measures with a new session and two new plain files beside its log. `least` takes io_uring's part, as a multiple of
/// the system calls'.
async fn one_file(home: &Path, id: &str, text: usize, pair: &mut Pair, least: &mut Vec<f64>) {
    let mut session = Session::create(home, id.parse().unwrap(), baseline(), 0).await.unwrap();
    let record = named(&"x".repeat(text));
    session.append(record.clone()).await.unwrap();
    let log = session.dir().join("0.jsonl");
    let before = std::fs::metadata(&log).unwrap().len();
    session.append(record.clone()).await.unwrap();
    let bytes = vec![b'x'; usize::try_from(std::fs::metadata(&log).unwrap().len() - before).unwrap()];
    let plain = File::create_new(session.dir().join("plain")).unwrap();
    let by_ring = File::create_new(session.dir().join("by-ring")).unwrap();
    let mut ring = Ring::new();
    for block in 0..BLOCKS {
        let mut took = [Duration::ZERO; 3];
        for side in in_turns(SIDES.len(), block).map(|side| SIDES[side]) {
            for n in 0..RECORDS {
                let (record, at) = (record.clone(), ((block * RECORDS + n) * bytes.len()) as u64);
                let began = Instant::now();
                match side {
                    Side::Ours => session.append(record).await.unwrap(),
                    Side::Calls => write(&plain, &bytes, at),
                    Side::Ring => ring.append(slice::from_ref(&by_ring), &bytes, at, 1),
                }
                let one = began.elapsed();
                took[side as usize] += one;
                match side {
                    Side::Ours => pair.ours.push(one),
                    Side::Calls => pair.reference.push(one),
                    Side::Ring => {}
                }
            }
        }
        pair.round(took[Side::Ours as usize], took[Side::Calls as usize]);
        least.push(took[Side::Ring as usize].as_secs_f64() / took[Side::Calls as usize].as_secs_f64());
    }
}

/// The reference: the two system calls.
pub fn write(file: &File, bytes: &[u8], at: u64) {
    file.write_all_at(bytes, at).unwrap();
    file.sync_data().unwrap();
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
    let files = |name: &str| -> Vec<File> {
        sessions.iter().map(|s| File::create_new(s.dir().join(name)).unwrap()).collect()
    };
    let (plain, threads, by_ring) = (files("plain"), files("threads"), files("by-ring"));
    let (bytes, mut ring) = (vec![b'x'; 300], Ring::new());
    let (mut ours, mut reference, mut gains) = (vec![], vec![], [vec![], vec![], vec![]]);
    for round in 0..ROUNDS {
        let at = (round * EACH * bytes.len()) as u64;
        let mut took = [Duration::ZERO; 4];
        for side in in_turns(took.len(), round) {
            let began = Instant::now();
            match side {
                0 => sessions = runtime.block_on(append_at_once(sessions, &record)),
                1 => ring.append(&by_ring, &bytes, at, EACH),
                // what the disk and its file system allow: as many threads, with nothing but the system calls
                2 => std::thread::scope(|scope| {
                    for file in &threads {
                        scope.spawn(|| write_each(slice::from_ref(file), &bytes, at));
                    }
                }),
                _ => write_each(&plain, &bytes, at),
            }
            took[side] = began.elapsed();
        }
        let seconds = took.map(|time| time.as_secs_f64());
        let appends = (count * EACH) as f64;
        ours.push(appends / seconds[0]);
        reference.push(appends / seconds[3]);
        for (gains, seconds_of_it) in gains.iter_mut().zip(seconds) {
            gains.push(seconds[3] / seconds_of_it);
        }
    }
    let [gain, ring, threads] = gains.map(median);
    Row::new(format!("{count} sessions at once, {place}"), format!("{:.0} appends/s", median(ours)))
        .beside(
            format!("one thread, one after the other: {:.0}/s", median(reference)),
            format!("{gain:.1} ×; io_uring alone: {ring:.1} ×; a thread each: {threads:.1} ×"),
        )
        .goal(format!("≥ {goal} ×"), gain >= goal)
}

/// One append to each file, and again behind that.
fn write_each(files: &[File], bytes: &[u8], at: u64) {
    for n in 0..EACH {
        files.iter().for_each(|file| write(file, bytes, at + (n * bytes.len()) as u64));
    }
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
