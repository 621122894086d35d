//! What a durable append through the session costs, against a plain pwrite and fdatasync of the same
//! bytes in the same run: `cargo bench --bench append`. The directory is `BOXMAKER_BENCH_DIR`, or one
//! under `target`.
//!
//! The two take turns in blocks, so that a busy disk slows both; the ratio is the median over the blocks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::cast_precision_loss)]

#[path = "../store_support/mod.rs"]
mod store_support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use boxmaker::store::{Session, Uring};
use store_support::{baseline, named};

/// The goal: an append may cost this much more than the plain system calls.
const GOAL: f64 = 1.15;
/// Fresh files, since how one lies on the disk makes a difference that has nothing to do with who writes it:
/// with more than four extents, say, ext4 has one more block to sync.
const FILES: usize = 12;
const BLOCKS: usize = 8;
const RECORDS: usize = 20;

fn main() {
    let dir = std::env::var_os("BOXMAKER_BENCH_DIR")
        .map_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned(), PathBuf::from);
    let home = tempfile::Builder::new().prefix("bench-").tempdir_in(dir).unwrap();
    let runtime = Uring::runtime().expect("io_uring");
    let mut worst = 0f64;
    for (name, text) in [("300 B", 120), ("4 KB", 3900)] {
        let ratio = runtime.block_on(compare(home.path(), name, text));
        worst = worst.max(ratio);
    }
    println!(
        "{}, goal: at most {GOAL} times; {}",
        home.path().display(),
        if worst <= GOAL { "met" } else { "NOT met" }
    );
}

/// What was measured, of one kind of append.
#[derive(Default)]
struct Times {
    plain: Vec<Duration>,
    session: Vec<Duration>,
    /// Session to plain, of each block.
    ratios: Vec<f64>,
}

/// Compares appends of records with `text` bytes of text; gives the ratio.
async fn compare(home: &Path, name: &str, text: usize) -> f64 {
    let (mut times, mut bytes) = (Times::default(), 0);
    for n in 0..FILES {
        bytes = one_file(home, &format!("bench-{text}-{n}"), text, &mut times).await;
    }
    times.ratios.sort_by(f64::total_cmp);
    let ratio = times.ratios[times.ratios.len() / 2];
    let describe = |times: &mut Vec<Duration>| {
        times.sort();
        format!("{:?} (99 %: {:?})", times[times.len() / 2], times[times.len() * 99 / 100])
    };
    println!(
        "{name}, line of {bytes} bytes: session {}, pwrite+fdatasync {}: {ratio:.3} times",
        describe(&mut times.session),
        describe(&mut times.plain),
    );
    ratio
}

/// Measures with a new session and a new plain file beside its log; gives a line's length.
async fn one_file(home: &Path, id: &str, text: usize, times: &mut Times) -> usize {
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
        // who begins changes from block to block
        for turn in 0..2 {
            let which = (turn + block) % 2;
            for _ in 0..RECORDS {
                let record = record.clone();
                let begun = Instant::now();
                if which == 0 {
                    plain.write_all_at(&bytes, at).unwrap();
                    plain.sync_data().unwrap();
                    at += bytes.len() as u64;
                } else {
                    session.append(record).await.unwrap();
                }
                let one = begun.elapsed();
                took[which] += one;
                if which == 0 { times.plain.push(one) } else { times.session.push(one) }
            }
        }
        times.ratios.push(took[1].as_secs_f64() / took[0].as_secs_f64());
    }
    bytes.len()
}
