//! Not a token twice: the slot's cache outlives its server, another session, and whoever meddles with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use support::rig::Rig;
use support::wait_until;

const QUIET: &str = "completion_tokens = 32\nslot_quiet_seconds = 1";
/// Saved only at a switch of sessions and at the end.
const LATE: &str = "completion_tokens = 32\nslot_quiet_seconds = 0";

fn lost(rig: &Rig, session: &str) -> Vec<u64> {
    rig.usage(session).iter().map(|row| row["lost_n"].as_u64().unwrap()).collect()
}

/// What the daemon logged.
fn journal(rig: &Rig) -> String {
    fs::read_to_string(rig.dir().join("loopd.log")).unwrap()
}

#[test]
fn a_server_that_is_started_again_gets_its_cache_back() {
    let Some(mut rig) = Rig::start(QUIET) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    rig.turn(&id, "What is the capital of France?");
    rig.wait_until_saved(&id);
    rig.replace_server();
    rig.turn(&id, "And of Spain?");
    // seen before the request, so that not even a batch of what was lost was evaluated
    let row = &rig.usage(&id)[2];
    assert_eq!(Some(rig.server.prompt_tokens_total()), row["prompt_n"].as_u64(), "{row:#}");
    rig.turn(&id, "Thank you.");
    rig.assert_nothing_evaluated_twice(&id, 4);
    assert!(journal(&rig).contains("EVENT=slot_restored"));
    // one kept slot a session is enough
    rig.wait_until_saved(&id);
    wait_until(Duration::from_secs(5), "the older one is removed", || rig.kept_slots(&id).len() == 1);
}

#[test]
fn the_board_is_rebooted_between_two_turns() {
    let Some(mut rig) = Rig::start(LATE) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    for text in ["What is the capital of France?", "And of Spain?"] {
        assert!(rig.daemon.take().unwrap().terminate().success());
        rig.replace_server();
        rig.start_daemon();
        rig.turn(&id, text);
    }
    rig.assert_nothing_evaluated_twice(&id, 3);
}

#[test]
fn two_sessions_share_the_slot_and_neither_pays() {
    let Some(rig) = Rig::start(LATE) else { return };
    let (a, _) = rig.first_turn("My name is Ada. Say hello.");
    let (b, _) = rig.first_turn("My name is Bob. Say hello.");
    for text in ["What is two plus two?", "And three plus three?"] {
        rig.turn(&a, text);
        rig.turn(&b, text);
    }
    rig.assert_nothing_evaluated_twice(&a, 3);
    rig.assert_nothing_evaluated_twice(&b, 3);
    // a deleted session leaves nothing behind
    assert!(!rig.kept_slots(&a).is_empty());
    assert_eq!(rig.ctl(&["delete", "--yes", &a]).code, 0);
    assert_eq!(rig.kept_slots(&a), Vec::<PathBuf>::new());
    assert!(!rig.kept_slots(&b).is_empty(), "the other session's stays");
}

#[test]
fn a_fork_goes_on_from_the_saved_cache_of_its_origin() {
    let Some(rig) = Rig::start(LATE) else { return };
    let (a, _) = rig.first_turn("My name is Ada. Say hello.");
    rig.turn(&a, "What is two plus two?");
    let (b, _) = rig.first_turn("My name is Bob. Say hello.");
    let ran = rig.ctl(&["fork", &a, "--turn", "1"]);
    let fork = ran.out.trim();
    rig.turn(fork, "What is three plus three?");
    // and one of the fork, which has no saved cache either as long as it holds the slot
    let ran = rig.ctl(&["fork", fork]);
    let second = ran.out.trim();
    rig.turn(second, "And four plus four?");
    for (id, turns) in [(a.as_str(), 2), (&b, 1), (fork, 2), (second, 3)] {
        rig.assert_nothing_evaluated_twice(id, turns);
    }
}

#[test]
fn another_client_on_the_slot_is_seen_before_its_damage_is_paid() {
    let Some(rig) = Rig::start(QUIET) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    rig.wait_until_saved(&id);
    let context = rig.session(&id)["context_n"].as_u64().unwrap();
    // as many tokens as the conversation has, so that the slot looks as before
    let foreign = vec![500; usize::try_from(context).unwrap()];
    rig.server.complete(&foreign, 4);
    let evaluated = rig.server.prompt_tokens_total();
    rig.turn(&id, "What is the capital of France?");
    rig.assert_nothing_evaluated_twice(&id, 2);
    let log = journal(&rig);
    assert!(log.contains("EVENT=slot_restored") && !log.contains("EVENT=cache_lost"), "{log}");
    let row = &rig.usage(&id)[1];
    let paid = rig.server.prompt_tokens_total() - evaluated;
    let fair = row["prompt_n"].as_u64().unwrap();
    // it evaluates a batch of 64 before it sees that the request is closed
    assert!(paid <= fair + 2 * 64, "the server evaluated {paid} tokens, of which {fair} were due");
}

#[test]
fn a_slot_that_was_emptied_is_restored_before_anything_is_paid() {
    let Some(rig) = Rig::start(QUIET) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    rig.wait_until_saved(&id);
    rig.server.erase_slot();
    rig.turn(&id, "What is the capital of France?");
    rig.assert_nothing_evaluated_twice(&id, 2);
    let log = journal(&rig);
    assert!(log.contains("EVENT=slot_restored") && !log.contains("EVENT=cache_lost"), "{log}");
}

#[test]
fn a_server_whose_flags_no_longer_fit_what_was_saved_is_told() {
    let Some(mut rig) = Rig::start(QUIET) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    rig.wait_until_saved(&id);
    // a cache of another type takes no file of this one
    rig.server.add_flags(&["-ctk", "q8_0"]);
    rig.replace_server();
    let events = rig.ctl(&["send", "--session", &id, "--json", "What is the capital of France?"]).events();
    let notice = events.iter().find(|e| e["event"] == "notice" && e["code"] == "cache_lost").unwrap();
    let message = notice["message"].as_str().unwrap();
    let (much, rest) = message.split_once(' ').unwrap();
    assert_eq!(much.parse::<u64>().ok(), rig.usage(&id)[1]["lost_n"].as_u64(), "how much: {message}");
    assert!(rest.contains("the model server was restarted"), "why: {message}");
    assert!(rest.contains("could not be restored") && rest.contains("restore"), "what was tried: {message}");
    rig.turn(&id, "And of Spain?");
    assert_eq!(lost(&rig, &id)[2], 0);
}

#[test]
fn a_damaged_file_is_never_given_to_the_server() {
    let Some(mut rig) = Rig::start(QUIET) else { return };
    let (id, _) = rig.first_turn("Hello! Who are you?");
    rig.wait_until_saved(&id);
    let file = rig.kept_slots(&id).remove(0);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    rig.replace_server();
    rig.turn(&id, "What is the capital of France?");
    let rows = lost(&rig, &id);
    assert!(rows[1] > 0, "the loss is told: {rows:?}");
    let log = journal(&rig);
    assert!(log.contains("EVENT=cache_lost") && log.contains("is damaged"), "{log}");
    assert!(!log.contains("EVENT=slot_restored"));
    // the server lives, and the next turn is whole again
    rig.turn(&id, "And of Spain?");
    assert_eq!(lost(&rig, &id)[2], 0);
}

#[test]
fn the_budget_for_saved_caches_is_kept() {
    // a saved cache of this model has 23 kB a token: room for one conversation
    let limits = "completion_tokens = 16\nslot_quiet_seconds = 1\nslot_files_bytes = 8000000";
    let Some(rig) = Rig::start(limits) else { return };
    let (a, _) = rig.first_turn("My name is Ada. Say hello.");
    rig.wait_until_saved(&a);
    let (b, _) = rig.first_turn("My name is Bob. Say hello.");
    rig.wait_until_saved(&b);
    wait_until(Duration::from_secs(20), "the older one is removed", || rig.kept_slots(&a).is_empty());
    assert_eq!(rig.kept_slots(&b).len(), 1);
    wait_until(Duration::from_secs(5), "that is told", || journal(&rig).contains("EVENT=slot_evicted"));
    // what was evicted is evaluated again, and told
    rig.turn(&a, "What is my name?");
    assert!(lost(&rig, &a)[1] > 0);
}

#[test]
fn a_daemon_that_was_killed_leaves_word_whose_tokens_the_slot_holds() {
    let Some(mut rig) = Rig::start(LATE) else { return };
    let (a, _) = rig.first_turn("My name is Ada. Say hello.");
    let (b, _) = rig.first_turn("My name is Bob. Say hello.");
    rig.replace_daemon();
    rig.turn(&a, "What is two plus two?");
    rig.turn(&b, "And three plus three?");
    rig.assert_nothing_evaluated_twice(&a, 2);
    rig.assert_nothing_evaluated_twice(&b, 2);
}
