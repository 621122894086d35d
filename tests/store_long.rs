//! Logs long enough to be checked on several processors at once: what is found is what a reader of one line after the
//! other would find.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::{Rng, Sim};
use store_support::*;

const TURNS: u64 = 900;

/// A log of some hundred kilobytes, its lines as unlike in length as may be.
async fn long(sim: &Sim) -> Vec<u8> {
    let mut session = catalog(sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
    for n in 1..=TURNS {
        let text = "word ".repeat(if n % 100 == 0 { 12_000 } else { usize::try_from(n % 90).unwrap() });
        for append in turn(n, &text) {
            session.append_all(append).await.unwrap();
        }
    }
    sim.read(&log_of("a")).unwrap()
}

#[test]
fn damage_is_found_in_its_line() {
    simulated(async {
        let sim = Sim::new(1);
        let whole = long(&sim).await;
        assert!(whole.len() > 900_000, "{}", whole.len());
        let (session, _) = catalog(&sim).open(&id("a")).await.unwrap();
        let records = session.records().to_vec();
        assert_eq!(session.next_turn(), TurnId(TURNS + 1));
        drop(session);
        let mut rng = Rng::new(7);
        for _ in 0..16 {
            let at = rng.below(whole.len() - 2000);
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            sim.put(&log_of("a"), bytes);
            let line = whole[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            let Err(SessionError::Torn { line: found, why, .. }) = catalog(&sim).open(&id("a")).await else {
                panic!("byte {at} is damaged")
            };
            assert_eq!(found, line, "{why}");
            // what is whole before it can be recovered: the appends before it, or its own up to it
            let copy = id(&format!("copy-{at}"));
            catalog(&sim).recover(&id("a"), Some(copy.clone())).await.unwrap().unwrap();
            let (recovered, _) = catalog(&sim).open(&copy).await.unwrap();
            let same = usize::try_from(line).unwrap() - 1;
            assert_eq!(recovered.records()[1..same], records[1..same]);
        }
    });
}

#[test]
fn two_lines_that_changed_places_are_found() {
    simulated(async {
        let sim = Sim::new(1);
        let whole = long(&sim).await;
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        let mut rng = Rng::new(9);
        for _ in 0..20 {
            let at = 1 + rng.below(lines.len() - 10);
            let mut moved = lines.clone();
            moved.swap(at, at + 1);
            sim.put(&log_of("a"), moved.concat());
            let error = catalog(&sim).open(&id("a")).await.unwrap_err();
            let SessionError::Torn { line, why, .. } = error else { panic!("{error}") };
            assert_eq!(line, at as u64 + 1);
            assert!(why.contains("\"prev\" is not the digest of the line before"), "{why}");
        }
    });
}
