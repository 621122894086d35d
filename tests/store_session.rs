//! One session on a real disk: create, open, append.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use boxmaker::proto::*;
use boxmaker::store::*;
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
