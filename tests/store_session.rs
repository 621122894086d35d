//! One session on a real disk: create, open, append.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::Sim;
use store_support::*;

#[test]
fn what_was_appended_is_there_after_opening_again() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 2).await.unwrap();
        for append in turn(1, "Hello \u{2028} \0 \"") {
            session.append_all(append).await.unwrap();
        }
        session.append(user(2, "")).await.unwrap();
        session.append(calling(2, &[1, 2])).await.unwrap();
        session.append_all(vec![tool_start(2, 1), tool_result(2, 1, ToolOutcome::Ok)]).await.unwrap();
        session.append(tool_result(2, 2, ToolOutcome::Denied)).await.unwrap();
        let before = session.records().to_vec();
        assert_eq!(session.next_call(), CallId(3));
        assert_eq!(before.len(), 10);
        session.close().await.unwrap();

        let mut session = Session::open(home.path(), &id("a")).await.unwrap();
        assert_eq!(session.records(), before);
        assert_eq!(session.next_call(), CallId(3));
        assert_eq!(session.next_turn(), TurnId(3));
        assert_eq!(session.last_usage().unwrap().cache_n, 7);
        assert_eq!(session.baseline(), &baseline());
        assert_eq!(session.sequence().open_turn(), Some(TurnId(2)));
        let LogRecord::SessionStart(start) = &session.records()[0] else { panic!() };
        assert_eq!((start.slot, &start.session, start.baseline), (2, &id("a"), baseline().hash()));
        session.append(assistant(2, "so")).await.unwrap();
    });
}

#[test]
fn a_log_can_be_checked_with_sha256sum() {
    let home = home();
    let dir = uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        for append in turn(1, "x") {
            session.append_all(append).await.unwrap();
        }
        session.dir().to_owned()
    });
    let log = std::fs::read(dir.join("0.jsonl")).unwrap();
    let mut before = std::fs::read(dir.join("0.baseline.json")).unwrap();
    for line in log.split_inclusive(|b| *b == b'\n') {
        let value: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!(value["prev"], Digest::of(&before).to_string());
        before = line.to_vec();
    }
}

#[test]
fn a_record_or_a_session_over_its_limit_is_refused_before_the_write() {
    let home = home();
    uring(async {
        let limits = StoreLimits { record_bytes: 2000, session_bytes: 3500 };
        let options = OpenOptions { limits, ..OpenOptions::default() };
        let catalog = Catalog::new(home.path().to_owned(), options);
        let mut session = catalog.create(Some(id("a")), baseline(), 0, None).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let before = std::fs::read(&log).unwrap();
        let error = session.append(user(1, &"x".repeat(2000))).await.unwrap_err();
        assert!(matches!(error, SessionError::TooLarge { limit: "record_bytes", max: 2000, .. }), "{error}");
        assert!(error.to_string().contains("limits.record_bytes") && !error.unknown(), "{error}");
        assert_eq!(std::fs::read(&log).unwrap(), before);
        session.append(user(1, &"x".repeat(1500))).await.unwrap();
        let error = session.append(assistant(1, &"x".repeat(1700))).await.unwrap_err();
        assert!(matches!(error, SessionError::TooLarge { limit: "session_bytes", .. }), "{error}");
        // what a limit ends can be ended
        session.append(calling(1, &[1])).await.unwrap();
        session.append(tool_start(1, 1)).await.unwrap();
        while session.append(named(&"n".repeat(200))).await.is_ok() {}
        session.append(tool_result(1, 1, ToolOutcome::Interrupted)).await.unwrap();
        session.append(failed(1)).await.unwrap();
        let records = session.records().len();
        session.close().await.unwrap();
        assert_eq!(catalog.open(&id("a")).await.unwrap().0.records().len(), records);
    });
}

#[test]
fn a_record_out_of_order_is_refused_before_the_write() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        session.append(user(1, "x")).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let before = std::fs::read(&log).unwrap();
        for records in [
            vec![user(2, "y")],
            vec![tool_start(1, 1)],
            vec![assistant(1, "x"), assistant(1, "y")],
            vec![assistant(1, "x"), turn_end(2)],
        ] {
            let error = session.append_all(records).await.unwrap_err();
            assert!(matches!(error, SessionError::Sequence(..)), "{error}");
        }
        session.append_all(Vec::new()).await.unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), before);
        assert_eq!(session.records().len(), 2);
        session.append(assistant(1, "x")).await.unwrap();
    });
}

#[test]
fn an_append_whose_caller_goes_away_is_there_before_the_next() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        begin_only(session.append(named("first"))).await;
        session.append(named("second")).await.unwrap();
        begin_only(session.append(named("third"))).await;
        session.close().await.unwrap();
        let session = Session::open(home.path(), &id("a")).await.unwrap();
        assert_eq!(session.records()[1..], ["first", "second", "third"].map(named));
    });
}

#[test]
fn a_session_that_is_dropped_in_mid_append_is_locked_until_the_append_has_ended() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        begin_only(session.append(named("last words"))).await;
        drop(session);
        // whoever can open it, finds the append in it
        let session = when_free(async || Session::open(home.path(), &id("a")).await).await;
        assert_eq!(session.records()[1..], [named("last words")]);
    });
}

#[test]
fn one_opener_at_a_time() {
    let home = home();
    uring(async {
        let session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        for _ in 0..2 {
            let error = Session::open(home.path(), &id("a")).await.unwrap_err();
            assert!(matches!(error, SessionError::Locked(_)), "{error}");
        }
        let error = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap_err();
        assert!(matches!(error, SessionError::Exists(_)), "{error}");
        // readers need no lock
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        assert_eq!(catalog.list().await.unwrap().len(), 1);
        session.close().await.unwrap();
        Session::open(home.path(), &id("a")).await.unwrap();
        let error = Session::open(home.path(), &id("b")).await.unwrap_err();
        assert!(matches!(error, SessionError::NotFound(_)), "{error}");
    });
}

#[test]
fn of_two_creations_one_succeeds() {
    let home = home();
    uring(async {
        for n in 0..10 {
            let id = id(&format!("s{n}"));
            let create = || Session::create(home.path(), id.clone(), baseline(), 0);
            let (one, two) = tokio::join!(create(), create());
            assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
            let error = one.err().or(two.err()).unwrap();
            assert!(matches!(error, SessionError::Exists(_)), "{error}");
        }
    });
}

#[test]
fn a_symlink_is_no_session() {
    let home = home();
    uring(async {
        let session = Session::create(home.path(), id("real"), baseline(), 0).await.unwrap();
        session.close().await.unwrap();
        let sessions = home.path().join("sessions");
        std::os::unix::fs::symlink(sessions.join("real"), sessions.join("link")).unwrap();
        assert!(Session::open(home.path(), &id("link")).await.is_err());
        let catalog = Catalog::new(home.path().to_owned(), OpenOptions::default());
        let list = catalog.list().await.unwrap();
        let link = list.iter().find(|info| info.id == id("link")).unwrap();
        assert_eq!(link.state, SessionState::Damaged);
        assert!(link.reason.as_deref().unwrap().contains("symlink"), "{link:?}");
        assert!(catalog.delete(&id("link")).await.is_err());
        // nor is a log that is one
        std::fs::rename(sessions.join("real/0.jsonl"), sessions.join("real/1")).unwrap();
        std::os::unix::fs::symlink(sessions.join("real/1"), sessions.join("real/0.jsonl")).unwrap();
        assert!(Session::open(home.path(), &id("real")).await.is_err());
    });
}

#[test]
fn a_saved_slots_ids_are_read_from_its_header() {
    let home = home();
    let word = |w: u32| w.to_le_bytes();
    let header = [word(0x6767_7371), word(4), word(6), word(u32::MAX), word(1), word(3)].concat();
    let ids = [word(1), word(49_000), word(7)].concat();
    let write = |name: &str, bytes: &[u8]| std::fs::write(home.path().join(name), bytes).unwrap();
    write("good.bin", &[&header[..], &ids, b"kv data"].concat());
    write("cut.bin", &[&header[..], &ids[..10]].concat());
    write("short.bin", &header[..20]);
    write("empty.bin", b"");
    write("other.bin", &[&word(1)[..], &header[4..], &ids].concat());
    write("huge.bin", &[&header[..20], &word(u32::MAX)].concat());
    uring(async {
        let slots = SlotFiles::new(home.path().to_owned());
        assert_eq!(slots.read_ids("good.bin").await.unwrap(), [1, 49_000, 7]);
        for name in
            ["cut.bin", "short.bin", "empty.bin", "other.bin", "huge.bin", "none", "", "../x", ".hidden"]
        {
            let error = slots.read_ids(name).await.unwrap_err();
            assert!(matches!(error, SessionError::Io(..)), "{name}: {error}");
        }
    });
}

#[test]
fn a_baseline_holds_no_credentials_and_reads_back_the_same() {
    let mut content = content();
    for url in ["http://user:secret@box/", "https://token@box:8080/v1"] {
        content.model.url = url.to_owned();
        assert!(matches!(Baseline::freeze(content.clone()), Err(BaselineError::Freeze(_))), "{url}");
    }
    content.model.url = "http://box:8080/a@b".to_owned();
    content.sampling.top_p = Some(0.123_456_789_012_345_67);
    content.sampling.min_p = Some(5e-324);
    let baseline = Baseline::freeze(content.clone()).unwrap();
    assert_eq!(baseline.content(), &content);
    assert_eq!(baseline.hash(), Digest::of(baseline.to_json().as_bytes()));
    content.sampling.temperature = Some(f64::NAN);
    assert!(Baseline::freeze(content.clone()).is_err(), "it would be written as null");
    content.sampling.temperature = None;
    content.format = 2;
    assert!(Baseline::freeze(content).is_err());
}

#[test]
fn a_session_s_kept_slot_is_found_without_reading_those_of_others() {
    let sim = Sim::new(1);
    let dir = Path::new("/slots");
    simulated(sim.create_dir(dir)).unwrap();
    let keep = |session: &str, tokens: u64| {
        let manifest = SlotManifest {
            format: SlotManifest::FORMAT,
            session: id(session),
            epoch: Epoch(0),
            saved: Timestamp::from_millis(0),
            bytes: 24,
            sha256: Digest::of(b"kept"),
            tokens,
            slot: 0,
            model: content().model,
        };
        let path = dir.join(format!("{session}.0123456789abcdef.json"));
        let json = serde_json::to_vec(&manifest).unwrap();
        simulated(async {
            let file = sim.open(&path, Access::New).await.unwrap();
            file.append(0, json).await.written.unwrap();
        });
    };
    let files = SlotFiles::on(sim.clone(), dir.to_owned());
    let find = || {
        let before = sim.ops();
        let found = simulated(files.find(&id("a"), Epoch(0))).unwrap();
        (found.map(|kept| kept.manifest.tokens), sim.ops() - before)
    };
    keep("b", 1);
    assert_eq!(find().0, None);
    keep("a", 7);
    let (found, alone) = find();
    assert_eq!(found, Some(7));
    for n in 0..50 {
        keep(&format!("other-{n}"), 9);
    }
    assert_eq!(find(), (Some(7), alone));
    // a name that begins with this one's is another session's all the same
    keep("a.b", 9);
    assert_eq!(find().0, Some(7));
}

#[test]
fn room_is_set_aside_behind_a_log_and_given_back() {
    const MB: u64 = 1024 * 1024;
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let sizes = || {
            let metadata = std::fs::metadata(&log).unwrap();
            (metadata.len(), metadata.blocks() * 512)
        };
        let mut len = sizes().0;
        for n in 0..300 {
            let record = named(&format!("{n} {}", "x".repeat(4000)));
            len += count(encode_line(Digest::of(b""), Place::default(), &record).unwrap().len());
            session.append(record).await.unwrap();
            let (length, room) = sizes();
            assert_eq!(length, len, "the log is as long as its lines");
            assert!((len..len + MB + 64 * 1024).contains(&room), "{room} for {len}");
        }
        assert!(sizes().1 > len + MB / 2, "{:?}", sizes());
        session.close().await.unwrap();
        let (length, room) = sizes();
        assert_eq!(length, len);
        assert!(room < len + 64 * 1024, "{room} for {len}");
        assert_eq!(Session::open(home.path(), &id("a")).await.unwrap().records().len(), 301);
    });
}

#[test]
fn a_runtime_that_ends_in_mid_append_leaves_the_log_locked() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        begin_only(session.append(named("last words"))).await;
        drop(session);
        // and with this the runtime ends; what the kernel was given it may still do
    });
    uring(async {
        let error = Session::open(home.path(), &id("a")).await.unwrap_err();
        assert!(matches!(error, SessionError::Locked(_)), "{error}");
    });
}

#[test]
fn what_somebody_else_wrote_behind_a_log_is_not_cut_with_the_room() {
    let home = home();
    uring(async {
        let mut session = Session::create(home.path(), id("a"), baseline(), 0).await.unwrap();
        session.append(named("ours")).await.unwrap();
        let log = session.dir().join("0.jsonl");
        let mut whole = std::fs::read(&log).unwrap();
        whole.extend_from_slice(b"theirs");
        std::fs::write(&log, &whole).unwrap();
        session.close().await.unwrap();
        assert_eq!(std::fs::read(&log).unwrap(), whole);
    });
}
