//! Many sessions: listing, finding, naming, paging, deleting; and sessions of several epochs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::path::Path;

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::Sim;
use store_support::*;

fn at(millis: i64, name: &str) -> LogRecord {
    LogRecord::Named(Named { time: Timestamp::from_millis(millis), name: name.to_owned() })
}

/// A session whose last record is of this time; it has the name.
async fn session_at(sim: &Sim, session: &str, millis: i64, name: &str) {
    let mut session = catalog(sim).create(Some(id(session)), baseline(), 0, None).await.unwrap();
    session.append(at(millis, name)).await.unwrap();
}

const LATER: i64 = 4_000_000_000_000;

#[test]
fn a_list_is_derived_from_the_logs() {
    simulated(async {
        let sim = Sim::new(1);
        assert!(catalog(&sim).list().await.unwrap().is_empty());
        assert!(catalog(&sim).latest().await.unwrap().is_none());
        session_at(&sim, "a", LATER, "first").await;
        session_at(&sim, "c", LATER + 2000, "third").await;
        session_at(&sim, "b", LATER + 1000, "second").await;
        let (mut session, _) = catalog(&sim).open(&id("b")).await.unwrap();
        for append in turn(1, "Hello") {
            session.append_all(append).await.unwrap();
        }
        session.append_all(vec![user(2, "more"), at(LATER + 1500, "renamed")]).await.unwrap();
        let list = catalog(&sim).list().await.unwrap();
        let ids: Vec<_> = list.iter().map(|info| info.id.as_str()).collect();
        assert_eq!(ids, ["c", "b", "a"], "the newest record first");
        let b = &list[1];
        assert_eq!(b.name.as_deref(), Some("renamed"));
        assert_eq!((b.messages, b.turns, b.state), (3, 2, SessionState::Interrupted));
        // 3 of the head, 2 of the prompt, 1 of 2 sampled
        assert_eq!(b.context_n, 6);
        assert_eq!(b.model.as_deref(), Some("tiny"));
        assert!(b.started.is_some());
        assert_eq!(b.last, Some(Timestamp::from_millis(LATER + 1500)));
        assert!(b.reason.as_deref().unwrap().contains("turn 2 has no end"));
        assert_eq!(catalog(&sim).latest().await.unwrap(), Some(id("c")));
        assert_eq!(catalog(&sim).info(&id("b")).await.unwrap(), *b);
    });
}

#[test]
fn resolving_takes_an_id_a_name_or_an_unambiguous_prefix_and_nothing_else() {
    simulated(async {
        let sim = Sim::new(1);
        session_at(&sim, "ab1", 1, "letters").await;
        session_at(&sim, "ab12", 2, "ab").await;
        session_at(&sim, "cd", 3, "twice").await;
        session_at(&sim, "ef", 4, "twice").await;
        session_at(&sim, "gh", 5, "cd").await;
        let catalog = catalog(&sim);
        for (text, found) in
            [("ab1", "ab1"), ("ab12", "ab12"), ("ab", "ab12"), ("letters", "ab1"), ("cd", "cd"), ("e", "ef")]
        {
            assert_eq!(catalog.resolve(text).await.unwrap(), id(found), "{text}");
        }
        for text in ["", "zz", "*", "%", "_", "let", "../cd", "AB1", "ab1 "] {
            let error = catalog.resolve(text).await.unwrap_err();
            assert!(matches!(&error, SessionError::NoMatch(t) if t == text), "{text}: {error}");
        }
        for (text, ids) in [("a", ["ab1", "ab12"]), ("twice", ["cd", "ef"])] {
            let Err(SessionError::Ambiguous { prefix, mut candidates }) = catalog.resolve(text).await else {
                panic!()
            };
            candidates.sort();
            assert_eq!((prefix.as_str(), candidates), (text, vec![id(ids[0]), id(ids[1])]));
        }
        assert_eq!(catalog.list().await.unwrap().len(), 5, "nothing was made");
    });
}

#[test]
fn records_come_in_pages() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
        for n in 1..=9 {
            for append in turn(n, &"x".repeat(300)) {
                session.append_all(append).await.unwrap();
            }
        }
        for max_bytes in [0, 1, 700, 2500, u64::MAX] {
            let (mut all, mut from, mut pages) = (Vec::new(), Some(0), 0);
            let one = catalog(&sim);
            while let Some(start) = from {
                let (page, next) = one.records(&id("a"), start, None, max_bytes).await.unwrap();
                // as another one gives it, which has read no page before
                assert_eq!(
                    (&page, next),
                    (&catalog(&sim).records(&id("a"), start, None, max_bytes).await.unwrap().0, next)
                );
                assert!(!page.is_empty());
                all.extend(page);
                (from, pages) = (next, pages + 1);
            }
            assert_eq!(all, session.records(), "{max_bytes}");
            assert_eq!(pages, if max_bytes == u64::MAX { 1 } else { pages.max(2) });
        }
        let (page, next) = catalog(&sim).records(&id("a"), 1000, None, 100).await.unwrap();
        assert!(page.is_empty() && next.is_none());
    });
}

#[test]
fn deleting_really_deletes_and_an_open_session_is_not_deleted() {
    let home = home();
    uring(async {
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        let session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        assert!(matches!(catalog.delete(&id("a")).await, Err(SessionError::Locked(_))));
        std::fs::create_dir_all(session.dir().join("output/deep")).unwrap();
        std::fs::write(session.dir().join("output/deep/file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", session.dir().join("output/link")).unwrap();
        session.close().await.unwrap();
        catalog.create(Some(id("b")), baseline(), 0, None).await.unwrap();
        // what a deletion that was cut off left behind goes with the next one
        std::fs::create_dir(home.path().join("sessions/.deleted-x-1")).unwrap();
        catalog.delete(&id("a")).await.unwrap();
        let left: Vec<_> = std::fs::read_dir(home.path().join("sessions")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(Path::new("/etc").exists());
        assert!(matches!(catalog.delete(&id("a")).await, Err(SessionError::NotFound(_))));
        assert!(matches!(catalog.open(&id("a")).await, Err(SessionError::NotFound(_))));
        catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
    });
}

#[test]
fn listing_and_opening_write_nothing() {
    let home = home();
    uring(async {
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        let log = home.path().join("sessions/a/0.jsonl");
        let before = (std::fs::read(&log).unwrap(), std::fs::metadata(&log).unwrap().modified().unwrap());
        catalog.list().await.unwrap();
        catalog.open(&id("a")).await.unwrap();
        assert!(matches!(catalog.repair(&id("a")).await.unwrap(), Remedy::None));
        let after = (std::fs::read(&log).unwrap(), std::fs::metadata(&log).unwrap().modified().unwrap());
        assert_eq!(before, after);
        assert_eq!(std::fs::read_dir(home.path().join("sessions/a")).unwrap().count(), 2);
    });
}

/// Another baseline.
fn second() -> Baseline {
    let content = BaselineContent { system_prompt: "Another prompt.".to_owned(), ..content() };
    Baseline::freeze(content).unwrap()
}

#[test]
fn only_the_newest_epoch_is_in_memory_and_all_of_them_are_one_chain() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
        session.append(user(1, "old")).await.unwrap();
        session.append(calling(1, &[1])).await.unwrap();
        session.append(tool_result(1, 1, ToolOutcome::Denied)).await.unwrap();
        session.append_all(vec![assistant(1, "."), usage(1, 4), turn_end(1)]).await.unwrap();
        let old = session.records().to_vec();
        session.begin_epoch(second(), Vec::new()).await.unwrap();
        assert_eq!((session.epoch(), session.records().len()), (Epoch(1), 1));
        session.append(user(2, "new")).await.unwrap();
        drop(session);

        let (mut session, _) = catalog(&sim).open(&id("a")).await.unwrap();
        assert_eq!(session.epoch(), Epoch(1));
        assert_eq!(session.records().len(), 2);
        assert_eq!(session.baseline().content().system_prompt, "Another prompt.");
        assert_eq!((session.next_call(), session.next_turn()), (CallId(2), TurnId(3)));
        assert_eq!(session.last_usage().unwrap().cache_n, 4);
        session.append(calling(2, &[2])).await.unwrap();
        drop(session);

        let (records, next) = catalog(&sim).records(&id("a"), 0, None, u64::MAX).await.unwrap();
        assert_eq!((records.len(), next), (old.len() + 3, None));
        assert_eq!(records[..old.len()], old);
        let (page, _) = catalog(&sim).records(&id("a"), old.len() as u64, None, 1).await.unwrap();
        assert!(matches!(&page[0], LogRecord::SessionStart(start) if start.epoch == Epoch(1)));
        let info = catalog(&sim).info(&id("a")).await.unwrap();
        assert_eq!((info.turns, info.messages, info.context_n), (2, 5, 6));

        // an earlier epoch that was cut, even at a line's end, does not fit the next any more
        let path = log_of("a");
        let whole = sim.read(&path).unwrap();
        let line_end = whole[..whole.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
        for cut in [line_end, whole.len() - 5] {
            sim.put(&path, whole[..cut].to_vec());
            let error = catalog(&sim).open(&id("a")).await.unwrap_err().to_string();
            assert!(!error.contains("loopd repair") && error.contains("loopd recover a"), "{error}");
        }
        sim.put(&path, whole);
        catalog(&sim).open(&id("a")).await.unwrap();
        let rows = catalog(&sim).usage(&id("a")).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.turn.0).collect::<Vec<_>>(), [1, 2]);
        // a recovery keeps both epochs
        let newest = Path::new("/home/sessions/a/1.jsonl");
        let log = [sim.read(newest).unwrap(), b"{".to_vec()].concat();
        sim.put(newest, log);
        catalog(&sim).recover(&id("a"), Some(id("b"))).await.unwrap().unwrap();
        let (session, _) = catalog(&sim).open(&id("b")).await.unwrap();
        assert_eq!((session.epoch(), session.records().len()), (Epoch(1), 3));
    });
}

#[test]
fn an_epoch_that_was_only_begun_is_no_torn_end_and_its_session_can_be_recovered() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = catalog(&sim).create(Some(id("a")), baseline(), 0, None).await.unwrap();
        session.append(user(1, "open")).await.unwrap();
        let error = session.begin_epoch(second(), Vec::new()).await.unwrap_err();
        assert!(error.to_string().contains("turn 1"), "an open turn must go on: {error}");
        session.begin_epoch(second(), vec![carried(Some(1), "short")]).await.unwrap();
        assert_eq!(session.sequence().open_turn(), Some(TurnId(1)));
        drop(session);
        let newest = Path::new("/home/sessions/a/1.jsonl");
        let whole = sim.read(newest).unwrap();
        for (n, cut) in [0, 10, whole.len() - 3].into_iter().enumerate() {
            sim.put(newest, whole[..cut].to_vec());
            let error = catalog(&sim).open(&id("a")).await.unwrap_err().to_string();
            assert!(error.contains("loopd recover a") && !error.contains("loopd repair"), "{cut}: {error}");
            let copy = id(&format!("copy{n}"));
            catalog(&sim).recover(&id("a"), Some(copy.clone())).await.unwrap().unwrap();
            let (mut session, _) = catalog(&sim).open(&copy).await.unwrap();
            assert_eq!((session.epoch(), session.records().len()), (Epoch(0), 2));
            session.append(failed(1)).await.unwrap();
        }
    });
}

#[test]
fn what_the_beginning_of_an_epoch_leaves_is_told_and_repaired() {
    let home = home();
    uring(async {
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        session.append(user(1, "x")).await.unwrap();
        let dir = session.dir().to_owned();
        drop(session);
        let names = ["1.baseline.json", "1.baseline.json.tmp", "1.jsonl.tmp"];
        for name in names {
            std::fs::write(dir.join(name), "{").unwrap();
        }
        let inspected = catalog.inspect(&id("a")).await.unwrap();
        assert_eq!(
            (inspected.remains, inspected.info.state),
            (names.map(str::to_owned).to_vec(), SessionState::Interrupted)
        );
        let (session, _) = catalog.open(&id("a")).await.unwrap();
        assert_eq!((session.epoch(), session.remains().len()), (Epoch(0), 3));
        drop(session);
        assert!(dir.join(names[0]).exists(), "opening writes nothing");
        let Remedy::MoveRemains(moved) = catalog.repair(&id("a")).await.unwrap() else { panic!() };
        assert!(moved.len() == 3 && moved.iter().all(|(from, to)| !from.exists() && to.exists()));
        assert!(matches!(catalog.plan_repair(&id("a")).await.unwrap(), Remedy::None));
        let (mut session, _) = catalog.open(&id("a")).await.unwrap();
        session.append(failed(1)).await.unwrap();
        session.begin_epoch(second(), vec![carried(Some(1), "s")]).await.unwrap();
        assert_eq!((mode(&dir.join("1.jsonl")), mode(&dir.join("1.baseline.json"))), (0o600, 0o600));
        drop(session);
        let mut told = Vec::new();
        let (session, _) = catalog.open(&id("a")).await.unwrap();
        let epochs = session.earlier().each(&mut |record| told.push(record.kind())).await.unwrap();
        assert_eq!((epochs, told), (1, vec!["session_start", "user_message", "turn_end"]));
    });
}

#[test]
fn what_is_half_created_is_said_clearly_and_can_be_moved_away() {
    let home = home();
    uring(async {
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        catalog.create(Some(id("good")), baseline(), 0, None).await.unwrap();
        let dir = home.path().join("sessions/half");
        let empty = |_: &Path| ();
        let only_tmp = |dir: &Path| std::fs::write(dir.join("0.baseline.json.tmp"), "{").unwrap();
        let no_log = |dir: &Path| std::fs::write(dir.join("0.baseline.json"), baseline().to_json()).unwrap();
        let empty_log = |dir: &Path| {
            no_log(dir);
            std::fs::write(dir.join("0.jsonl"), "").unwrap();
        };
        let torn_log = |dir: &Path| {
            no_log(dir);
            std::fs::write(dir.join("0.jsonl"), "{\"prev\":").unwrap();
        };
        let log_alone = |dir: &Path| std::fs::write(dir.join("0.jsonl"), "").unwrap();
        let states: [&dyn Fn(&Path); 6] = [&empty, &only_tmp, &no_log, &empty_log, &torn_log, &log_alone];
        for (n, make) in states.iter().enumerate() {
            std::fs::create_dir(&dir).unwrap();
            make(&dir);
            let error = catalog.create(Some(id("half")), baseline(), 0, None).await.unwrap_err();
            assert!(matches!(error, SessionError::HalfCreated { .. }), "{n}: {error}");
            assert!(error.to_string().contains("loopd repair half"), "{n}: {error}");
            let list = catalog.list().await.unwrap();
            let half = list.iter().find(|info| info.id == id("half")).unwrap();
            assert_eq!((list.len(), half.state), (2, SessionState::Damaged), "{n}");
            assert!(half.reason.as_deref().unwrap().contains("creation was cut off"), "{n}: {half:?}");
            let opened = catalog.open(&id("half")).await.unwrap_err();
            let has_log = dir.join("0.jsonl").exists();
            assert_eq!(matches!(opened, SessionError::NotFound(_)), !has_log, "{n}: {opened}");
            assert!(matches!(catalog.plan_repair(&id("half")).await.unwrap(), Remedy::MoveAway(_)));
            assert!(dir.exists());
            let Remedy::MoveAway(to) = catalog.repair(&id("half")).await.unwrap() else { panic!() };
            assert!(to.exists() && !dir.exists());
            drop(catalog.create(Some(id("half")), baseline(), 0, None).await.unwrap());
            let error = catalog.create(Some(id("half")), baseline(), 0, None).await.unwrap_err();
            assert!(matches!(error, SessionError::Exists(_)), "{n}: {error}");
            catalog.delete(&id("half")).await.unwrap();
        }
        catalog.open(&id("good")).await.unwrap();
    });
}
