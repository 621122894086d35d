//! What a daemon keeps in memory when it has nothing to do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::time::Duration;

use support::bench::begun;
use support::wait_until;

/// It looks every five seconds whether there is nothing to do.
const PATIENCE: Duration = Duration::from_secs(40);

#[test]
fn what_work_needs_is_given_back_when_there_is_none() {
    let (bench, mut talk, id) = begun("");
    let rss = || bench.daemon().rss_kb();
    for round in 1..=2 {
        talk.turn(&id, "Hello");
        let at_work = rss();
        wait_until(PATIENCE, "it gives memory back", || rss() < at_work / 2);
        println!("round {round}: at work {at_work} kB, then {} kB", rss());
    }
    // and nothing that it needs is missing
    talk.turn(&id, "Hello again");
    assert_eq!(bench.log(&id).last().unwrap(), "turn_end 3 done");
}
