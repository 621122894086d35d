//! The store on a simulated disk: every operation fails once, and thousands of seeded histories of
//! failures, kills and power cuts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::future::Future;

use store_support::model::history;
use store_support::sim::Bugs;

/// Runs without io_uring, on a clock that does not let anybody wait.
fn simulated<T>(future: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// How many seeds; more with `BOXMAKER_SEEDS`, from another one on with `BOXMAKER_FIRST_SEED`.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let first = number("BOXMAKER_FIRST_SEED").unwrap_or(0);
    first..first + number("BOXMAKER_SEEDS").unwrap_or(default)
}

#[test]
fn nothing_acknowledged_is_lost_in_any_history() {
    for seed in seeds(3000) {
        if let Err(why) = simulated(history(seed, Bugs::default(), 4)) {
            panic!("seed {seed}: {why}");
        }
    }
}

/// The checks above are worth something only if they find what they look for.
#[test]
fn planted_bugs_are_found() {
    let ok = Bugs::default();
    let planted = [
        ("ack before sync", Bugs { ack_before_sync: true, ..ok }),
        ("sync overtakes write", Bugs { sync_overtakes: true, ..ok }),
        ("no directory sync", Bugs { no_dir_sync: true, ..ok }),
        ("failed sync hidden", Bugs { sync_failure_hidden: true, ..ok }),
        ("page cache believed", Bugs { no_refresh: true, ..ok }),
    ];
    for (name, bugs) in planted {
        let found = (0..3000).find(|seed| simulated(history(*seed, bugs, 4)).is_err());
        let seed = found.unwrap_or_else(|| panic!("the planted bug {name:?} was not found"));
        println!("{name}: found by seed {seed}");
    }
}
