//! New sessions from the earlier turns of others, and finding what was said in all of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use boxmaker::proto::*;
use boxmaker::store::*;
use store_support::sim::Sim;
use store_support::*;

/// A session with these turns.
async fn talk(sim: &Sim, session: &str, texts: &[&str]) -> Session<Sim> {
    let mut session = catalog(sim).create(Some(id(session)), baseline(), 0, None).await.unwrap();
    for (n, text) in (1..).zip(texts) {
        for append in turn(n, text) {
            session.append_all(append).await.unwrap();
        }
    }
    session
}

/// All but what a copy must have of its own.
fn without_starts(records: &[LogRecord]) -> Vec<LogRecord> {
    let kept = |record: &&LogRecord| !matches!(record, LogRecord::SessionStart(_) | LogRecord::Named(_));
    records.iter().filter(kept).cloned().collect()
}

async fn all(sim: &Sim, session: &SessionId) -> Vec<LogRecord> {
    catalog(sim).records(session, 0, None, u64::MAX).await.unwrap().0
}

#[test]
fn a_fork_has_the_turns_up_to_the_one_and_nothing_else() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = talk(&sim, "a", &["one", "two"]).await;
        session.append(named("garden")).await.unwrap();
        session.append(user(3, "three")).await.unwrap();
        session.append_all(vec![failed(3)]).await.unwrap();
        session.append_all(vec![assistant(3, "At last."), usage(3, 4), turn_end(3)]).await.unwrap();
        session.append(user(4, "four")).await.unwrap();
        let original = session.records().to_vec();

        // the original is open and in the middle of a turn, and stays so
        for (turn, last) in [(Some(TurnId(2)), 2), (Some(TurnId(3)), 3), (None, 3)] {
            let fork = catalog(&sim).fork(&id("a"), turn, Some("copy".to_owned())).await.unwrap();
            let forked = fork.id().clone();
            let records = all(&sim, &forked).await;
            let expected: Vec<LogRecord> = without_starts(&original)
                .into_iter()
                .filter(|record| record.turn().is_none_or(|turn| turn.0 <= last))
                .collect();
            assert_eq!(without_starts(&records), expected, "{turn:?}");
            let LogRecord::SessionStart(start) = &records[0] else { panic!("{records:?}") };
            let lines = original.iter().position(|r| r.turn() == Some(TurnId(last + 1))).unwrap();
            // the name stands between turns 2 and 3
            let lines = if last == 2 { lines - 1 } else { lines };
            let origin = Origin { session: id("a"), epoch: Epoch(0), line: lines as u64 };
            assert_eq!(start.origin, Some(origin), "{turn:?}");
            assert_eq!(start.session, forked);
            let info = catalog(&sim).info(&forked).await.unwrap();
            assert_eq!(
                (info.name.as_deref(), info.turns, info.state),
                (Some("copy"), last, SessionState::Ok)
            );
            drop(fork);
            // it goes on by itself
            let (mut fork, _) = catalog(&sim).open(&forked).await.unwrap();
            assert_eq!(fork.next_turn(), TurnId(last + 1));
            fork.append(user(last + 1, "elsewhere")).await.unwrap();
        }
        session.append_all(vec![assistant(4, "."), usage(4, 1), turn_end(4)]).await.unwrap();
        assert_eq!(session.records()[..original.len()], original);
    });
}

#[test]
fn an_earlier_epoch_can_be_forked() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = talk(&sim, "a", &["one", "two"]).await;
        let old = session.records().to_vec();
        session.begin_epoch(baseline(), vec![carried(None, "It was about numbers.")]).await.unwrap();
        session.append(user(3, "three")).await.unwrap();
        session.append_all(vec![assistant(3, "Yes."), usage(3, 4), turn_end(3)]).await.unwrap();
        drop(session);
        let early = catalog(&sim).fork(&id("a"), Some(TurnId(1)), None).await.unwrap();
        assert_eq!((early.epoch(), early.records().len()), (Epoch(0), 5));
        assert_eq!(without_starts(early.records()), without_starts(&old[..5]));
        let late = catalog(&sim).fork(&id("a"), Some(TurnId(3)), None).await.unwrap();
        assert_eq!(late.epoch(), Epoch(1));
        assert_eq!(without_starts(&all(&sim, late.id()).await), without_starts(&all(&sim, &id("a")).await));
    });
}

#[test]
fn what_cannot_be_forked_is_said_and_leaves_nothing() {
    simulated(async {
        let sim = Sim::new(1);
        let mut session = talk(&sim, "a", &["one"]).await;
        session.append(user(2, "open")).await.unwrap();
        drop(talk(&sim, "empty", &[]).await);
        for (session, turn, told) in [
            ("a", Some(TurnId(2)), "no turn 2 that has ended"),
            ("a", Some(TurnId(9)), "no turn 9 that has ended"),
            ("empty", None, "no turn that has ended yet"),
            ("nobody", None, "no session nobody"),
        ] {
            let error = catalog(&sim).fork(&id(session), turn, None).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::NotFound);
            assert!(error.to_string().contains(told), "{error}");
        }
        assert_eq!(catalog(&sim).ids().await.unwrap().len(), 2);
    });
}

#[test]
fn what_was_said_is_found_in_every_session() {
    simulated(async {
        let sim = Sim::new(1);
        drop(talk(&sim, "a", &["Plant the BEANS in May", "and water the beans"]).await);
        let mut newer = talk(&sim, "b", &["Do beans like May?"]).await;
        let name = Named { time: Timestamp::from_millis(4_000_000_000_000), name: "garden".to_owned() };
        newer.append(LogRecord::Named(name)).await.unwrap();
        drop(newer);
        drop(talk(&sim, "d", &["beans, but damaged"]).await);
        let path = log_of("d");
        let mut bytes = sim.read(&path).unwrap();
        bytes[200] ^= 1;
        sim.put(&path, bytes);

        let search = async |text: &str, session: Option<&str>, most| {
            catalog(&sim).search(text, session.map(id).as_ref(), most).await.unwrap()
        };
        let found = search("may Beans", None, 10).await;
        let told: Vec<_> =
            found.hits.iter().map(|h| (h.session.as_str(), h.turn.0, h.who, h.name.as_deref())).collect();
        let user = Speaker::User;
        assert_eq!(told, [("b", 1, user, Some("garden")), ("a", 1, user, None)]);
        assert_eq!(found.hits[1].passage, "Plant the BEANS in May");
        assert_eq!((found.more, found.unread), (false, vec![id("d")]), "damage is told, not hidden");

        let found = search("may beans", Some("a"), 10).await;
        assert_eq!((found.hits.len(), found.unread.len()), (1, 0));
        let found = search("hi.", None, 2).await;
        assert_eq!((found.hits.len(), found.more), (2, true));
        assert!(found.hits.iter().all(|hit| hit.who == Speaker::Assistant));
        assert!(search("cabbage", None, 10).await.hits.is_empty());
        assert!(matches!(
            catalog(&sim).search("x", Some(&id("nobody")), 1).await,
            Err(SessionError::NotFound(_))
        ));
    });
}
