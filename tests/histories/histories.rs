//! A hundred thousand histories of the store on the simulated disk: failures, kills and power cuts.
//!
//! `cargo run --release -p boxmaker-histories -- [HISTORIES [FIRST_SEED]]`. Each history has a seed; a seed that breaks
//! a promise is printed, and becomes a test. Exit status 1 when there was one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../store_support/mod.rs"]
mod store_support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use store_support::history::{history, nth_operation};
use store_support::remedies;
use store_support::sim::{Bugs, FAULTS, Rng};

/// One history: of every sixteen, two are long, two are repairs or recoveries, and the others a create and
/// appends in which one operation fails.
async fn one(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let fault = FAULTS[rng.below(FAULTS.len())];
    match seed % 16 {
        0 | 8 => history(seed, Bugs::default(), 4).await,
        1 => remedies::repair(1 + rng.next() % 20, fault, seed).await.map(|_| ()),
        2 => remedies::recovery(1 + rng.next() % 25, fault, seed).await.map(|_| ()),
        _ => nth_operation(1 + rng.next() % 60, fault, seed).await.map(|_| ()),
    }
}

/// The next seed, and how many broke a promise so far.
static NEXT: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicU64 = AtomicU64::new(0);

/// Histories, one after the other, until all seeds below `end` are taken.
async fn some(end: u64) {
    loop {
        let seed = NEXT.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            break;
        }
        if let Err(why) = one(seed).await {
            BROKEN.fetch_add(1, Ordering::Relaxed);
            println!("seed {seed}: {why}");
        }
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let count = numbers.next().unwrap_or(100_000);
    let first = numbers.next().unwrap_or(0);
    NEXT.store(first, Ordering::Relaxed);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // without io_uring, and without a clock
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                tokio::task::LocalSet::new().block_on(&runtime, some(first + count));
            });
        }
    });
    let broken = BROKEN.load(Ordering::Relaxed);
    println!(
        "{count} histories, seeds {first} to {}, {threads} threads, {:.1} s: {broken} broke a promise",
        (first + count).saturating_sub(1),
        begin.elapsed().as_secs_f64(),
    );
    std::process::exit(i32::from(broken > 0));
}
