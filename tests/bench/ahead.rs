//! The experiment with written-ahead blocks: the same append through the same io_uring operations, into a file that
//! grows and into one that was filled and synced before.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use boxmaker::store::{Access, Storage as _, StorageFile as _, Uring, UringFile};

use crate::append::write;
use crate::measure::{Times, in_turns, median};
use crate::report::Row;

const FILES: usize = 8;
const ROUNDS: usize = 6;
const RECORDS: usize = 20;

/// Appends of both sizes into blocks that are written already.
pub fn rows(dir: &Path, place: &str) -> Vec<Row> {
    let runtime = Uring::runtime().expect("io_uring");
    [("300 B", 300), ("4 kB", 4096)]
        .map(|(name, bytes)| runtime.block_on(one(dir, place, name, bytes)))
        .into()
}

/// A new file, filled with newlines when it is to be written ahead.
async fn file(path: &Path, filled: usize) -> UringFile {
    let file = Uring.open(path, Access::New).await.unwrap();
    if filled > 0 {
        file.append(0, vec![b'\n'; filled]).await.synced.unwrap();
    }
    file
}

async fn one(dir: &Path, place: &str, name: &str, bytes: usize) -> Row {
    let record = vec![b'x'; bytes];
    let (mut ahead, mut growing, mut ratios, mut plain_ratios) =
        (Times::default(), Times::default(), vec![], vec![]);
    for n in 0..FILES {
        let path = |kind: &str| dir.join(format!("ahead-{bytes}-{n}-{kind}"));
        let filled = file(&path("filled"), ROUNDS * RECORDS * bytes).await;
        let grows = file(&path("grows"), 0).await;
        let plain = File::create_new(path("plain")).unwrap();
        for round in 0..ROUNDS {
            let mut took = [Duration::ZERO; 3];
            for which in in_turns(took.len(), round) {
                for record_n in 0..RECORDS {
                    let at = ((round * RECORDS + record_n) * bytes) as u64;
                    let began = Instant::now();
                    match which {
                        0 => filled.append(at, record.clone()).await.synced.unwrap(),
                        1 => grows.append(at, record.clone()).await.synced.unwrap(),
                        _ => write(&plain, &record, at),
                    }
                    let one = began.elapsed();
                    took[which] += one;
                    match which {
                        0 => ahead.push(one),
                        1 => growing.push(one),
                        _ => {}
                    }
                }
            }
            ratios.push(took[0].as_secs_f64() / took[1].as_secs_f64());
            plain_ratios.push(took[0].as_secs_f64() / took[2].as_secs_f64());
        }
    }
    let (ratio, to_plain) = (median(ratios), median(plain_ratios));
    Row::new(format!("append of {name} into written blocks, {place}"), ahead.shown()).beside(
        format!("into a file that grows: {}", growing.shown()),
        format!("{ratio:.2}; to pwrite + fdatasync {to_plain:.2}"),
    )
}
