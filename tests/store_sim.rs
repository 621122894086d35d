//! The store on a simulated disk: every operation fails once, and thousands of seeded histories of
//! failures, kills and power cuts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::future::Future;

use boxmaker::store::*;
use store_support::history::{history, nth_of_an_epoch, nth_operation};
use store_support::remedies;
use store_support::sim::{Bugs, FAULTS, Fault, Rng, Sim, number};
use store_support::*;

/// How many seeds; more with `BOXMAKER_SEEDS`, from another one on with `BOXMAKER_FIRST_SEED`.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let first = number("BOXMAKER_FIRST_SEED", 0);
    first..first + number("BOXMAKER_SEEDS", default)
}

/// Histories of one quarter of the seeds, so that they run beside each other.
fn histories(quarter: u64) {
    for seed in seeds(240).filter(|seed| seed % 4 == quarter) {
        if let Err(why) = simulated(history(seed, Bugs::default(), 4)) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn nothing_acknowledged_is_lost_in_any_history_1() {
    histories(0);
}

#[test]
fn nothing_acknowledged_is_lost_in_any_history_2() {
    histories(1);
}

#[test]
fn nothing_acknowledged_is_lost_in_any_history_3() {
    histories(2);
}

#[test]
fn nothing_acknowledged_is_lost_in_any_history_4() {
    histories(3);
}

#[test]
fn nothing_acknowledged_is_lost_in_any_short_history() {
    for seed in seeds(2000) {
        let mut rng = Rng::new(seed);
        let (n, fault) = (1 + rng.next() % 50, FAULTS[rng.below(FAULTS.len())]);
        if let Err(why) = simulated(nth_operation(n, fault, seed)) {
            panic!("seed {seed}, operation {n}, {fault:?}: {why}");
        }
    }
}

/// The checks above are worth something only if they find what they look for.
fn is_found(bugs: Bugs) {
    let found = (0..3000).find_map(|seed| Some((seed, simulated(history(seed, bugs, 4)).err()?)));
    let (seed, why) = found.unwrap_or_else(|| panic!("the planted bug was not found: {bugs:?}"));
    println!("found by seed {seed}: {}", why.lines().next().unwrap());
}

#[test]
fn a_planted_acknowledgement_before_the_sync_is_found() {
    is_found(Bugs { ack_before_sync: true, ..Bugs::default() });
}

#[test]
fn a_planted_sync_before_the_write_is_found() {
    is_found(Bugs { sync_overtakes: true, ..Bugs::default() });
}

#[test]
fn a_planted_pair_without_order_is_found() {
    is_found(Bugs { unordered: true, ..Bugs::default() });
}

#[test]
fn a_planted_second_try_after_a_failed_sync_is_found() {
    is_found(Bugs { sync_again: true, ..Bugs::default() });
}

#[test]
fn a_planted_lack_of_directory_syncs_is_found() {
    is_found(Bugs { no_dir_sync: true, ..Bugs::default() });
}

#[test]
fn a_planted_record_in_two_writes_is_found() {
    is_found(Bugs { two_writes: true, ..Bugs::default() });
}

#[test]
fn a_planted_sync_failure_that_is_not_told_is_found() {
    is_found(Bugs { sync_failure_hidden: true, ..Bugs::default() });
}

#[test]
fn a_planted_trust_in_the_page_cache_is_found() {
    is_found(Bugs { no_refresh: true, ..Bugs::default() });
}

/// Each operation of a piece of work fails once, in each way; it must have more than `least`.
fn each_operation<F: Future<Output = Result<bool, String>>>(
    seeds: std::ops::Range<u64>,
    least: u64,
    work: impl Fn(u64, Fault, u64) -> F,
) {
    for fault in FAULTS {
        for seed in seeds.clone() {
            let mut n = 1;
            loop {
                match simulated(work(n, fault, seed)) {
                    Ok(true) => n += 1,
                    Ok(false) => break,
                    Err(why) => panic!("operation {n}, {fault:?}, seed {seed}: {why}"),
                }
            }
            assert!(n > least, "the work has {n} operations only");
        }
    }
}

#[test]
fn create_append_and_open_survive_the_failure_of_any_operation() {
    each_operation(0..2, 30, nth_operation);
}

#[test]
fn an_epoch_begins_whole_or_not_at_all_whatever_fails() {
    each_operation(0..16, 8, |n, fault, seed| nth_of_an_epoch(n, fault, seed, Bugs::default()));
}

#[test]
fn bugs_planted_in_the_beginning_of_an_epoch_are_found() {
    let ok = Bugs::default();
    let planted = [
        ("ack before sync", Bugs { ack_before_sync: true, ..ok }),
        ("no directory sync", Bugs { no_dir_sync: true, ..ok }),
    ];
    for (name, bugs) in planted {
        // no operation has this number: the power goes when the epoch has begun, or so it was told
        let found =
            (0..500).find(|seed| simulated(nth_of_an_epoch(1000, Fault::Crash, *seed, bugs)).is_err());
        let seed = found.unwrap_or_else(|| panic!("the planted bug {name:?} was not found"));
        println!("{name}: found by seed {seed}");
    }
}

#[test]
fn closing_tells_of_an_append_that_failed_after_its_caller_went_away() {
    for fault in FAULTS {
        simulated(async {
            let sim = Sim::new(7);
            let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
            session.append(named("first")).await.unwrap();
            sim.fail(1, fault);
            begin_only(session.append(user(1, "perhaps"))).await;
            let error = session.close().await.expect_err("its append failed");
            let may_be_there = error.unknown() || sim.crashed();
            match catalog(&sim.power_cut(3)).open(&id("a")).await {
                Ok((session, _)) => {
                    assert!(session.records().len() == 2 || may_be_there, "{fault:?}: {error}");
                }
                Err(e) => {
                    assert!(
                        matches!(e, SessionError::Torn { .. }) && may_be_there,
                        "{fault:?}: {error}: {e}"
                    );
                }
            }
        });
    }
}

/// Giving back the room behind the log's end is a cut at that end: one that came late would cut what came after it.
#[test]
fn room_is_given_back_before_anybody_else_appends() {
    for seed in seeds(100) {
        simulated(async {
            let sim = Sim::new(seed);
            let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
            session.append(named("first")).await.unwrap();
            let mut closing = Box::pin(session.close());
            for _ in 0..seed % 20 {
                // it has ended, or goes on without its caller
                tokio::select! { biased; _ = &mut closing => break, () = tokio::task::yield_now() => {} }
            }
            drop(closing);
            let (mut session, _) = when_free(async || catalog(&sim).open(&id("a")).await).await;
            session.append(named("second")).await.unwrap();
            session.close().await.unwrap();
            let session = catalog(&sim).open(&id("a")).await.unwrap().0;
            assert_eq!(session.records()[1..], ["first", "second"].map(named), "seed {seed}");
        });
    }
}

#[test]
fn a_repair_that_is_cut_off_loses_nothing() {
    each_operation(0..1, 15, |n, fault, _| remedies::repair(n, fault, n));
}

#[test]
fn a_recovery_that_is_cut_off_leaves_the_old_session_and_no_half_of_a_new_one() {
    each_operation(0..1, 15, |n, fault, _| remedies::recovery(n, fault, n));
}

#[test]
fn a_full_disk_is_told_cut_back_and_forgotten() {
    for fault in [Fault::Short, Fault::Error(28), Fault::Done(28)] {
        simulated(async {
            let sim = Sim::new(7);
            let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
            session.append(user(1, "kept")).await.unwrap();
            let before = sim.read(&log_of("a")).unwrap();
            sim.fail(1, fault);
            let batch = vec![assistant(1, "lost"), usage(1, 1), turn_end(1)];
            let error = session.append_all(batch.clone()).await.unwrap_err();
            assert!(matches!(&error, SessionError::Io(path, _) if *path == log_of("a")), "{error}");
            assert!(!error.unknown() && !session.is_poisoned());
            assert_eq!(session.records().len(), 2);
            assert_eq!(sim.power_cut(1).read(&log_of("a")).unwrap(), before, "cut back, durably");
            session.append_all(batch).await.unwrap();
            assert_eq!(session.records().len(), 5);
        });
    }
}

#[test]
fn a_failed_sync_is_final() {
    simulated(async {
        let sim = Sim::new(7);
        let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
        session.append(named("first")).await.unwrap();
        sim.fail(1, Fault::Sync);
        let error = session.append(user(1, "perhaps")).await.unwrap_err();
        assert!(error.unknown(), "{error}");
        assert!(error.to_string().contains("unknown"), "{error}");
        assert_eq!(session.records().len(), 2);
        let ops = sim.ops();
        for _ in 0..2 {
            let error = session.append(user(1, "again")).await.unwrap_err();
            assert!(matches!(error, SessionError::Poisoned(_)), "{error}");
        }
        assert_eq!(sim.ops(), ops, "nothing was tried again");
        assert!(matches!(catalog(&sim).open(&id("a")).await, Err(SessionError::Locked(_))));
        drop(session);
        match catalog(&sim).open(&id("a")).await {
            Ok((session, _)) => assert!((2..=3).contains(&session.records().len())),
            Err(e) => assert!(matches!(e, SessionError::Torn { line: 3, .. }), "{e}"),
        }
    });
}

#[test]
fn an_append_goes_on_when_its_caller_goes_away() {
    simulated(async {
        let sim = Sim::new(7);
        let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
        begin_only(session.append(user(1, "still written"))).await;
        session.append_all(vec![assistant(1, "a"), usage(1, 1), turn_end(1)]).await.unwrap();
        let records = session.records().to_vec();
        assert_eq!(records.len(), 5);
        assert_eq!(records[1], user(1, "still written"));
        session.close().await.unwrap();
        let (session, _) = catalog(&sim.power_cut(3)).open(&id("a")).await.unwrap();
        assert_eq!(session.records(), records);
    });
}
