//! Which record may follow which.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod store_support;

use boxmaker::proto::*;
use store_support::*;

fn start(epoch: u32) -> LogRecord {
    LogRecord::SessionStart(SessionStart {
        time: Timestamp::from_millis(0),
        session: id("a"),
        epoch: Epoch(epoch),
        slot: 0,
        baseline: Digest::of(b""),
        previous: (epoch > 0).then(|| Digest::of(b"x")),
        origin: None,
    })
}

fn ended(outcome: TurnOutcome) -> LogRecord {
    let time = Timestamp::from_millis(0);
    LogRecord::TurnEnd(TurnEnd { time, turn: TurnId(1), outcome, detail: None, millis: None })
}

/// All of them fit but the last, which leaves the state as it was.
fn last_is_refused(records: &[LogRecord]) {
    let mut sequence = Sequence::default();
    let (last, before) = records.split_last().unwrap();
    for record in before {
        sequence.check(record).unwrap();
    }
    let state = sequence.clone();
    let refused = sequence.check(last);
    assert!(refused.is_err(), "accepted: {last:?}");
    assert_eq!(sequence, state);
}

fn all_fit(records: &[LogRecord]) -> Sequence {
    let mut sequence = Sequence::default();
    for record in records {
        sequence.check(record).unwrap_or_else(|e| panic!("{record:?}: {e}"));
    }
    sequence
}

#[test]
fn a_turn_with_tools() {
    use ToolOutcome::{Denied, Interrupted, Ok};
    let sequence = all_fit(&[
        start(0),
        named("x"),
        user(1, "a"),
        calling(1, &[1, 2, 3]),
        usage(1, 1),
        tool_start(1, 1),
        tool_start(1, 2),
        tool_result(1, 1, Ok),
        tool_result(1, 2, Interrupted),
        tool_result(1, 3, Denied),
        assistant(1, "b"),
        usage(1, 2),
        turn_end(1),
        user(2, "c"),
    ]);
    assert_eq!((sequence.next_call(), sequence.next_turn()), (CallId(4), TurnId(3)));
    assert_eq!(sequence.open_turn(), Some(TurnId(2)));
}

#[test]
fn what_cannot_follow_is_refused() {
    use ToolOutcome::Ok;
    let s = || start(0);
    last_is_refused(&[user(1, "a")]);
    last_is_refused(&[s(), s()]);
    last_is_refused(&[start(0), user(2, "a")]);
    last_is_refused(&[s(), assistant(1, "a")]);
    last_is_refused(&[s(), usage(1, 1)]);
    last_is_refused(&[s(), user(1, "a"), user(2, "b")]);
    last_is_refused(&[s(), user(1, "a"), usage(1, 1)]);
    last_is_refused(&[s(), user(1, "a"), turn_end(1)]);
    last_is_refused(&[s(), user(1, "a"), assistant(1, "b"), assistant(1, "c")]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[2])]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1, 1])]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[])]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1]), tool_result(1, 1, Ok)]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1]), tool_start(1, 2)]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1]), tool_start(1, 1), tool_start(1, 1)]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1]), assistant(1, "b")]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1]), turn_end(1)]);
    last_is_refused(&[s(), user(1, "a"), calling(1, &[1, 2]), tool_start(1, 2), tool_result(1, 2, Ok)]);
    last_is_refused(&[s(), user(1, "a"), assistant(1, "b"), turn_end(1), usage(1, 1)]);
    last_is_refused(&[s(), user(1, "a"), assistant(1, "b"), turn_end(1), assistant(1, "c")]);
    last_is_refused(&[s(), user(1, "a"), assistant(1, "b"), turn_end(1), turn_end(1)]);
}

#[test]
fn a_call_is_decided_about_once_and_one_that_was_denied_never_starts() {
    use Decision::{Allow, Deny};
    use ToolOutcome::{Denied, Error, Interrupted, Ok, TimedOut};
    let decided = |call, decision| {
        let (time, turn) = (Timestamp::from_millis(0), TurnId(1));
        LogRecord::Approval(Approval { time, turn, call: CallId(call), decision, by: "uid 0".to_owned() })
    };
    let before = || vec![start(0), user(1, "a"), calling(1, &[1])];
    let with = |more: &[LogRecord]| [before(), more.to_vec()].concat();
    all_fit(&with(&[decided(1, Allow), tool_start(1, 1), tool_result(1, 1, Ok)]));
    // the turn may end between the decision and the start
    all_fit(&with(&[decided(1, Allow), tool_result(1, 1, Error)]));
    all_fit(&with(&[decided(1, Deny), tool_result(1, 1, Denied)]));
    all_fit(&with(&[decided(1, Deny), tool_result(1, 1, Error)]));
    last_is_refused(&with(&[decided(1, Deny), tool_start(1, 1)]));
    for ran in [Ok, TimedOut, Interrupted] {
        last_is_refused(&with(&[decided(1, Deny), tool_result(1, 1, ran)]));
        last_is_refused(&with(&[decided(1, Allow), tool_result(1, 1, ran)]));
    }
    for first in [Allow, Deny] {
        last_is_refused(&with(&[decided(1, first), decided(1, Allow)]));
        last_is_refused(&with(&[decided(1, first), decided(1, Deny)]));
    }
    last_is_refused(&with(&[decided(2, Allow)]));
    last_is_refused(&with(&[tool_start(1, 1), decided(1, Allow)]));
    last_is_refused(&with(&[decided(1, Allow), tool_result(1, 1, Denied)]));
    last_is_refused(&with(&[tool_start(1, 1), tool_result(1, 1, Denied)]));
}

#[test]
fn a_turn_that_ended_without_an_answer_can_be_taken_up_again() {
    for outcome in [TurnOutcome::Failed, TurnOutcome::Cancelled, TurnOutcome::Limit] {
        let mut sequence = all_fit(&[start(0), user(1, "a"), ended(outcome)]);
        assert_eq!((sequence.retriable_turn(), sequence.open_turn()), (Some(TurnId(1)), None));
        sequence.check(&assistant(1, "b")).unwrap();
        sequence.check(&turn_end(1)).unwrap();
        assert_eq!(sequence.retriable_turn(), None);
    }
}

#[test]
fn numbers_go_on_in_the_next_epoch() {
    let first = all_fit(&[
        start(0),
        user(1, "a"),
        calling(1, &[1]),
        tool_result(1, 1, ToolOutcome::Denied),
        assistant(1, "b"),
        turn_end(1),
    ]);
    let mut next = first.next_epoch();
    assert!(next.check(&user(2, "b")).is_err());
    next.check(&start(1)).unwrap();
    assert!(next.check(&user(1, "b")).is_err());
    next.check(&user(2, "b")).unwrap();
    assert!(next.check(&calling(2, &[1])).is_err());
    next.check(&calling(2, &[2])).unwrap();
    assert_eq!(next.unanswered(), [(CallId(2), "t".to_owned(), false)]);
}

#[test]
fn what_an_epoch_takes_over_stands_right_behind_its_start() {
    let done = [start(0), user(1, "a"), assistant(1, "b"), turn_end(1)];
    let next = all_fit(&done).next_epoch();
    let fits = |records: &[LogRecord]| {
        let mut sequence = next.clone();
        records.iter().try_for_each(|record| sequence.check(record)).map(|()| sequence)
    };
    assert_eq!(fits(&[start(1), carried(None, "s"), user(2, "c")]).unwrap().open_turn(), Some(TurnId(2)));
    assert!(fits(&[start(1), user(2, "c")]).is_ok(), "an epoch may take nothing over");
    assert!(fits(&[carried(None, "s")]).is_err());
    assert!(fits(&[start(1), carried(None, "s"), carried(None, "s")]).is_err());
    assert!(fits(&[start(1), named("n"), carried(None, "s")]).is_err());
    assert!(fits(&[start(1), carried(Some(1), "s")]).is_err(), "turn 1 has its answer");
    assert!(all_fit(&[start(0)]).check(&carried(None, "s")).is_err(), "not in the first epoch");
}

#[test]
fn a_turn_without_its_answer_goes_on_in_the_next_epoch() {
    let next = |records: &[LogRecord]| {
        let mut sequence = all_fit(records).next_epoch();
        sequence.check(&start(1)).unwrap();
        sequence
    };
    let open = next(&[start(0), user(1, "a"), calling(1, &[1]), tool_result(1, 1, ToolOutcome::Denied)]);
    assert_eq!(open.left_open(), Some(TurnId(1)));
    for record in [user(2, "b"), named("n"), assistant(1, "b"), carried(None, "s"), carried(Some(2), "s")] {
        let mut refuses = open.clone();
        assert!(refuses.check(&record).is_err(), "{record:?}");
        assert_eq!(refuses, open);
    }
    let mut goes_on = open;
    goes_on.check(&carried(Some(1), "s")).unwrap();
    assert_eq!((goes_on.left_open(), goes_on.open_turn()), (None, Some(TurnId(1))));
    assert!(goes_on.check(&user(2, "b")).is_err());
    goes_on.check(&calling(1, &[2])).unwrap();
    // with a call that has no result, it cannot
    let mut called = next(&[start(0), user(1, "a"), calling(1, &[1])]);
    assert!(called.check(&carried(Some(1), "s")).is_err());
    // one that had ended may be left behind, or be taken up again
    let ended = next(&[start(0), user(1, "a"), ended(TurnOutcome::Limit)]);
    let (mut left, mut taken) = (ended.clone(), ended);
    left.check(&carried(None, "s")).unwrap();
    assert_eq!(left.retriable_turn(), None);
    taken.check(&carried(Some(1), "s")).unwrap();
    assert_eq!((taken.open_turn(), taken.retriable_turn()), (None, Some(TurnId(1))));
    taken.check(&assistant(1, "b")).unwrap();
}
