//! A random walk with a real model server: turns in several sessions, and between them whatever takes a cache away.
//! Wherever it leads, no token of a conversation is evaluated twice, by the server's own count too.
//!
//! Short here; `BOXMAKER_WALK=500` for a long one. `BOXMAKER_SEED=<n>` repeats a walk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use support::daemon::Watched;
use support::random::{Rng, number, seed};
use support::rig::{Rig, finished, nothing_evaluated_twice};

const LIMITS: &str = "completion_tokens = 24\nthinking_tokens = 8\nslot_quiet_seconds = 1";
/// As many sessions take turns; an old one is left when there are more.
const SESSIONS: usize = 3;
/// A session with so many turns is left, before its context is full.
const TURNS: usize = 16;
/// What the model server evaluates at once (`-b`).
const BATCH: u64 = 64;
const SAYINGS: [&str; 6] = [
    "What is the capital of France?",
    "Tell me a long story about a fox and a crow.",
    "And then?",
    "Naïve café — 日本語, 🦊!",
    "Count from one to ten.",
    "Thank you.",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Turn,
    NewSession,
    Fork,
    /// The client is killed in mid-answer; the turn goes on.
    ClientKilled,
    Cancelled,
    /// The daemon is killed in mid-answer, started again, and the turn asked again.
    KilledInMidTurn,
    DaemonKilled,
    /// In mid-answer, once the slot was saved; the turn fails and is asked again.
    ServerKilledInMidTurn,
    /// In mid-answer, for a moment.
    ServerStopped,
    /// Once the slot was saved.
    ServerKilled,
    /// Both are ended as a shutdown does, and started again.
    Rebooted,
    AnotherClient,
    SlotErased,
}

/// Turns are most of what happens.
const STEPS: [Step; 18] = [
    Step::Turn,
    Step::Turn,
    Step::Turn,
    Step::Turn,
    Step::Turn,
    Step::Turn,
    Step::NewSession,
    Step::Fork,
    Step::ClientKilled,
    Step::Cancelled,
    Step::KilledInMidTurn,
    Step::DaemonKilled,
    Step::ServerKilledInMidTurn,
    Step::ServerStopped,
    Step::ServerKilled,
    Step::Rebooted,
    Step::AnotherClient,
    Step::SlotErased,
];

struct Walk {
    rig: Rig,
    rng: Rng,
    sessions: Vec<String>,
    /// The session that had the slot last.
    last: String,
    /// Turns checked.
    checked: usize,
}

impl Walk {
    fn saying(&mut self) -> &'static str {
        SAYINGS[self.rng.below(SAYINGS.len())]
    }

    fn some_session(&mut self) -> String {
        let n = self.rng.below(self.sessions.len());
        self.sessions[n].clone()
    }

    fn begin_session(&mut self, id: String) {
        self.sessions.push(id.clone());
        self.last = id;
        if self.sessions.len() > SESSIONS {
            self.sessions.remove(0);
        }
    }

    fn turn(&mut self, id: String) {
        let text = self.saying();
        self.rig.turn(&id, text);
        self.last = id;
    }

    /// Begins a turn in some session, and comes back in the middle of its answer.
    fn begin_turn(&mut self) -> (String, Watched) {
        let id = self.some_session();
        let text = self.saying();
        let mut watched = self.rig.watch(&["send", "--session", &id, "--json", text]);
        watched.until("text", 1);
        self.last.clone_from(&id);
        (id, watched)
    }

    /// What the slot holds is saved after a quiet time; what this daemon did not put there itself is saved after
    /// the next turn.
    fn turn_and_save(&mut self) {
        let id = self.some_session();
        self.turn(id);
        self.rig.wait_until_saved(&self.last);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Turn => {
                let id = self.some_session();
                self.turn(id);
            }
            Step::NewSession => {
                let text = self.saying();
                let (id, _) = self.rig.first_turn(text);
                self.begin_session(id);
            }
            Step::Fork => {
                let id = self.some_session();
                let ran = self.rig.ctl(&["fork", &id, "--turn", "1"]);
                assert_eq!(ran.code, 0, "{ran:?}");
                let fork = ran.out.trim().to_owned();
                self.begin_session(fork.clone());
                self.turn(fork);
            }
            Step::ClientKilled => {
                let (id, watched) = self.begin_turn();
                drop(watched);
                support::wait_until(Duration::from_secs(60), "the turn ends", || {
                    self.rig.session(&id)["state"] == "ok"
                });
            }
            Step::Cancelled => {
                let (id, mut watched) = self.begin_turn();
                // the turn may have ended by itself meanwhile
                let ran = self.rig.ctl(&["cancel", &id]);
                assert!(ran.code == 0 || ran.err.contains("no turn"), "{ran:?}");
                watched.until("turn_end", 1);
            }
            Step::KilledInMidTurn => {
                let (id, watched) = self.begin_turn();
                self.rig.replace_daemon();
                drop(watched);
                if self.rig.session(&id)["state"] == "interrupted" {
                    finished(&self.rig.ctl(&["retry", &id, "--json"]));
                }
            }
            Step::ServerKilledInMidTurn => {
                self.turn_and_save();
                let (id, mut watched) = self.begin_turn();
                self.rig.replace_server();
                let end = watched.until("turn_end", 1).pop().unwrap();
                if end["outcome"] == "failed" {
                    finished(&self.rig.ctl(&["retry", &id, "--json"]));
                }
            }
            Step::ServerStopped => {
                let (_, mut watched) = self.begin_turn();
                self.rig.server.pause(Duration::from_millis(300));
                let end = watched.until("turn_end", 1).pop().unwrap();
                assert!(end["outcome"] == "done" || end["outcome"] == "limit", "{end:#}");
            }
            Step::DaemonKilled => self.rig.replace_daemon(),
            Step::ServerKilled => {
                self.turn_and_save();
                self.rig.replace_server();
            }
            Step::Rebooted => {
                assert!(self.rig.daemon.take().unwrap().terminate().success());
                self.rig.replace_server();
                self.rig.start_daemon();
            }
            Step::AnotherClient => {
                self.turn_and_save();
                let length = 1 + self.rng.below(300);
                self.rig.server.complete(&vec![500; length], 2);
            }
            Step::SlotErased => {
                self.turn_and_save();
                self.rig.server.erase_slot();
            }
        }
        for old in self.sessions.clone() {
            if self.rig.usage(&old).len() >= TURNS && self.sessions.len() > 1 {
                self.sessions.retain(|id| *id != old);
            }
        }
    }

    /// The promise, in each session: nothing was lost, and no more was evaluated than what was new.
    fn check(&mut self) {
        for id in &self.sessions {
            let rows = self.rig.usage(id);
            nothing_evaluated_twice(id, &rows);
            self.checked += rows.len();
        }
    }

    /// Tokens that all turns of the sessions evaluated, as their logs say.
    fn told(&self) -> u64 {
        let rows = self.sessions.iter().flat_map(|id| self.rig.usage(id));
        rows.filter_map(|row| row["prompt_n"].as_u64()).sum()
    }

    /// A turn, for which the server evaluates what is told, to the token; or so many more.
    fn check_by_the_server(&mut self, more: u64) {
        let before = (self.rig.server.prompt_tokens_total(), self.told());
        let id = self.some_session();
        self.turn(id);
        let evaluated = self.rig.server.prompt_tokens_total() - before.0;
        let told = self.told() - before.1;
        assert!(
            evaluated >= told && evaluated <= told + more,
            "the server evaluated {evaluated}, and {told} are told"
        );
    }
}

#[test]
fn no_walk_makes_the_model_evaluate_a_token_twice() {
    let Some(rig) = Rig::start(LIMITS) else { return };
    let (begin, steps, mut rng) = (Instant::now(), number("BOXMAKER_WALK", 28), Rng::new(seed()));
    // each kind once, in some order; then as it comes
    let mut path: Vec<Step> = STEPS.into_iter().skip(6).collect();
    for n in (1..path.len()).rev() {
        path.swap(n, rng.below(n + 1));
    }
    let (id, _) = rig.first_turn("Hello! Who are you?");
    let mut walk = Walk { rig, rng, sessions: vec![id.clone()], last: id, checked: 0 };
    let mut taken: BTreeMap<Step, usize> = BTreeMap::new();
    for n in 0..usize::try_from(steps).unwrap() {
        let step = path.get(n).copied().unwrap_or_else(|| STEPS[walk.rng.below(STEPS.len())]);
        println!("{n}: {step:?}");
        *taken.entry(step).or_default() += 1;
        walk.step(step);
        walk.check();
        // where another client left as many tokens in the slot, only the first event tells, and a batch is evaluated
        walk.check_by_the_server(if step == Step::AnotherClient { BATCH } else { 0 });
        walk.check();
    }
    println!(
        "{steps} steps {taken:?}, {} rows checked, {:.1} s",
        walk.checked,
        begin.elapsed().as_secs_f64()
    );
    assert!(walk.told() > 0);
}
