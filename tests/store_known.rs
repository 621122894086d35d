//! Lists read only what is new, and say what a list that reads everything would say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::fs;
use std::os::unix::fs::FileExt as _;

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::{Rng, Sim};
use store_support::*;

fn others() -> Baseline {
    Baseline::freeze(BaselineContent { system_prompt: "Another.\n".to_owned(), ..content() }).unwrap()
}

/// What a catalog does between two looks at the trace.
async fn traced<T>(sim: &Sim, work: impl Future<Output = T>) -> (T, Vec<String>) {
    let before = sim.trace().len();
    let result = work.await;
    let trace = sim.trace();
    let done = trace[before..].iter().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
    (result, done)
}

#[test]
fn a_second_list_reads_no_log() {
    simulated(async {
        let sim = Sim::new(1);
        let catalog = catalog(&sim);
        for name in ["a", "b", "c"] {
            catalog.create(Some(id(name)), baseline(), 0, None).await.unwrap();
        }
        let (first, _) = traced(&sim, catalog.list()).await;
        let (second, done) = traced(&sim, catalog.list()).await;
        assert_eq!(first.unwrap(), second.unwrap());
        assert_eq!(done, ["list", "stamps", "stamps", "stamps"]);
        // one has grown: its log is read, and no baseline or other session
        let (mut session, _) = catalog.open(&id("b")).await.unwrap();
        catalog.list().await.unwrap();
        session.append_all(vec![user(1, "Hello")]).await.unwrap();
        let (grown, done) = traced(&sim, catalog.list()).await;
        assert_eq!(done.iter().filter(|what| *what == "open").count(), 1, "{done:?}");
        let grown = grown.unwrap();
        let b = grown.iter().find(|info| info.id == id("b")).unwrap();
        assert_eq!((b.turns, b.state, b.title.as_deref()), (1, SessionState::Interrupted, Some("Hello")));
    });
}

#[test]
fn a_page_reads_nothing_that_an_earlier_one_has_read() {
    simulated(async {
        let sim = Sim::new(1);
        let catalog = catalog(&sim);
        let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        for n in 1..=6 {
            if n % 2 == 1 && n > 1 {
                session.begin_epoch(others(), vec![carried(None, "s")]).await.unwrap();
            }
            for append in turn(n, "Hello") {
                session.append_all(append).await.unwrap();
            }
        }
        let (mut from, mut opened) = (0, Vec::new());
        loop {
            let (page, done) = traced(&sim, catalog.records(&id("a"), from, None, 1)).await;
            opened.push(done.iter().filter(|what| *what == "open").count());
            let (records, next) = page.unwrap();
            assert_eq!(records.len(), 1);
            let Some(next) = next else { break };
            from = next;
        }
        // two files of the epoch that it stands in, and of the next one where it goes over; none where an append of
        // several records goes on
        assert!(opened.iter().all(|files| *files <= 4) && opened.contains(&0), "{opened:?}");
        let (_, done) = traced(&sim, store_support::catalog(&sim).records(&id("a"), from, None, 1)).await;
        assert_eq!(done.iter().filter(|what| *what == "open").count(), 6);
        // it is not where the one before has ended: read from the first record on
        assert_eq!(catalog.records(&id("a"), 0, None, 1).await.unwrap().1, Some(1));
        assert_eq!(catalog.records(&id("a"), 5, None, 1).await.unwrap().1, Some(6));
        assert_eq!(catalog.records(&id("a"), 2, None, 1).await.unwrap().1, Some(3));
    });
}

/// Does something to some session.
async fn change(sim: &Sim, catalog: &Catalog<Sim>, rng: &mut Rng) {
    let name = id(["a", "b", "c"][rng.below(3)]);
    let log = log_of(name.as_str());
    let Ok((mut session, _)) = catalog.open(&name).await else {
        match rng.below(3) {
            0 => drop(catalog.repair(&name).await),
            1 => drop(catalog.delete(&name).await),
            _ => drop(catalog.create(Some(name), baseline(), 0, None).await),
        }
        return;
    };
    let next = session.next_turn().0;
    match rng.below(9) {
        0 => session.append(named(&format!("name {}", rng.below(100)))).await.unwrap(),
        1 => match session.sequence().open_turn() {
            Some(turn) => session.append(failed(turn.0)).await.unwrap(),
            None => session.append(user(next, "and stopped")).await.unwrap(),
        },
        2 if session.sequence().open_turn().is_none() => {
            session.begin_epoch(others(), vec![carried(None, "s")]).await.unwrap();
        }
        3 => {
            drop(session);
            catalog.delete(&name).await.unwrap();
        }
        4 => {
            // an append that is cut off
            let torn = [sim.read(&log).unwrap(), b"{\"prev\":\"".to_vec()].concat();
            sim.put(&log, torn);
        }
        5 => {
            // something is torn off
            let bytes = sim.read(&log).unwrap();
            sim.put(&log, bytes[..bytes.len() - 1 - rng.below(30)].to_vec());
        }
        6 => {
            // something is damaged in its place
            let mut bytes = sim.read(&log).unwrap();
            let at = rng.below(bytes.len());
            bytes[at] ^= 1;
            sim.put(&log, bytes);
        }
        _ if session.sequence().open_turn().is_none() => {
            for append in turn(next, "Hello there") {
                session.append_all(append).await.unwrap();
            }
        }
        _ => {}
    }
}

#[test]
fn what_is_known_is_what_a_fresh_look_shows() {
    let mut states = std::collections::BTreeSet::new();
    for seed in 0..100 {
        simulated(async {
            let (sim, mut rng) = (Sim::new(seed), Rng::new(seed));
            let (knowing, mut pages) = (catalog(&sim), std::collections::BTreeMap::new());
            for step in 0..25 {
                // also what another process does: a catalog that knows nothing of the other's lists
                let other = catalog(&sim);
                let at_work = if rng.chance(2) { &knowing } else { &other };
                change(&sim, at_work, &mut rng).await;
                let (known, fresh) = (knowing.list().await.unwrap(), catalog(&sim).list().await.unwrap());
                assert_eq!(known, fresh, "seed {seed}, step {step}");
                let one = id(["a", "b", "c"][rng.below(3)]);
                for info in fresh {
                    assert_eq!(knowing.info(&info.id).await.unwrap(), info, "seed {seed}, step {step}");
                    states.insert(format!("{:?} {}", info.state, info.epoch));
                }
                // and a page goes on where the one before has ended
                let (from, max_bytes) = (pages.entry(one.clone()).or_insert(0), [1, 700, 3000][rng.below(3)]);
                let page = async |catalog: &Catalog<Sim>| {
                    let page = catalog.records(&one, *from, None, max_bytes).await;
                    page.map_err(|e| e.to_string())
                };
                let (known, fresh) = (page(&knowing).await, page(&catalog(&sim)).await);
                assert_eq!(known, fresh, "seed {seed}, step {step}, from {from}");
                *from = known.ok().and_then(|(_, next)| next).unwrap_or(0);
            }
        });
    }
    assert!(["Ok 0", "Ok 1", "Interrupted 0", "Damaged 0"].iter().all(|s| states.contains(*s)), "{states:?}");
}

/// The same on a real file system, whose stamps are its own.
#[test]
fn every_change_of_a_real_file_is_seen() {
    let home = home();
    uring(async {
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        let fresh = || Catalog::new(home.path().to_owned(), OpenOptions::default());
        let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        let log = session.dir().join("0.jsonl");
        for n in 1..40 {
            for append in turn(n, "Hello") {
                session.append_all(append).await.unwrap();
                let info = catalog.info(&id("a")).await.unwrap();
                assert_eq!(info, fresh().info(&id("a")).await.unwrap());
                assert_eq!(info.turns, n);
            }
        }
        let state = async |what: &str| {
            let info = catalog.info(&id("a")).await.unwrap();
            assert_eq!(info, fresh().info(&id("a")).await.unwrap(), "{what}");
            info.state
        };
        drop(session);
        assert_eq!(state("whole").await, SessionState::Ok);
        // in its place, with the length as it was
        let file = fs::File::options().write(true).open(&log).unwrap();
        let whole = fs::read(&log).unwrap();
        file.write_all_at(b"#", 300).unwrap();
        assert_eq!(state("damaged").await, SessionState::Damaged);
        file.write_all_at(&whole[300..301], 300).unwrap();
        assert_eq!(state("mended").await, SessionState::Ok);
        file.write_all_at(b"{", u64::try_from(whole.len()).unwrap()).unwrap();
        assert_eq!(state("torn").await, SessionState::Damaged);
        fs::write(&log, &whole).unwrap();
        assert_eq!(state("whole again").await, SessionState::Ok);
        // another file with the same name: it goes on as this one does, but is damaged before
        let (mut session, _) = fresh().open(&id("a")).await.unwrap();
        session.append(named("more")).await.unwrap();
        drop(session);
        let mut longer = fs::read(&log).unwrap();
        fs::write(&log, &whole).unwrap();
        assert_eq!(state("without it").await, SessionState::Ok);
        longer[300] = b'#';
        let other = log.with_extension("other");
        fs::write(&other, longer).unwrap();
        fs::rename(&other, &log).unwrap();
        assert_eq!(state("another file").await, SessionState::Damaged);
        fs::write(&log, &whole).unwrap();
        assert_eq!(state("the old one").await, SessionState::Ok);
        fs::remove_file(log.with_file_name("0.baseline.json")).unwrap();
        assert_eq!(state("without its baseline").await, SessionState::Damaged);
    });
}

/// After a sync that failed, the page cache may show what the disk never got: a fresh open finds out, and what was
/// known of before counts no more.
#[test]
fn a_fresh_open_forgets_what_was_only_remembered() {
    simulated(async {
        let mut lost = 0;
        for seed in 0..40 {
            let sim = Sim::new(seed);
            let catalog = catalog(&sim);
            let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
            session.append(named("first")).await.unwrap();
            sim.fail(1, store_support::sim::Fault::Sync);
            session.append(user(1, "perhaps")).await.unwrap_err();
            catalog.list().await.unwrap();
            drop(session);
            let opened = catalog.open(&id("a")).await.is_ok();
            let known = catalog.info(&id("a")).await.unwrap();
            assert_eq!(known, store_support::catalog(&sim).info(&id("a")).await.unwrap());
            assert_eq!(opened, known.state != SessionState::Damaged);
            lost += u32::from(known.turns == 0);
        }
        assert!(lost > 0);
    });
}
