//! SIGKILL and SIGSTOP for daemon, model server and client, at random moments of turns with a tool.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use boxmaker::proto::{ErrorCode, Request, SessionId, SessionState};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::bench::Bench;
use crate::support::daemon::{bxctl, socket_in};
use crate::support::random::{Rng, number, seed};
use crate::support::scripted_server::{Script, installed_call};
use crate::support::talk::told;
use crate::support::wait_until;

const PATIENCE: Duration = Duration::from_secs(30);

fn note(dir: &Path) -> String {
    format!(
        "[tools.command.note]\nprogram = \"/bin/sh\"\n\
         args = [\"-c\", \"read -r line || exit 1; echo \\\"$line\\\" >> {}; sleep 0.01; printf noted\"]\n\
         description = \"Notes its arguments.\"\npolicy = \"allow\"\n\
         schema = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }} }}\n",
        dir.join("notes").display()
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Daemon,
    DaemonStopped,
    Server,
    Client,
    ClientStopped,
}

const VICTIMS: [Victim; 8] = [
    Victim::Daemon,
    Victim::Daemon,
    Victim::Daemon,
    Victim::DaemonStopped,
    Victim::Server,
    Victim::Server,
    Victim::Client,
    Victim::ClientStopped,
];

fn signal(pid: u32, signal: Signal) {
    // it may have ended by itself
    let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal);
}

/// A client that sends a message and follows the turn; what it is told goes to a file.
fn client(bench: &Bench, id: &SessionId, text: &str, output: &Path) -> Child {
    let mut command = bxctl(&socket_in(bench.dir()), &["send", "--session", id.as_str(), "--json", text]);
    command.stdout(File::create(output).unwrap()).stderr(File::create(output.with_extension("err")).unwrap());
    command.spawn().unwrap()
}

fn ends(mut child: Child, what: &str) {
    wait_until(PATIENCE, what, || child.try_wait().unwrap().is_some());
}

/// What must be true after every blow. `before` are the log's bytes as they were before the turn.
fn check(bench: &Bench, id: &SessionId, before: &[u8], text: &str, output: &Path) {
    let log = bench.log_bytes(id);
    assert!(log.starts_with(before), "what was told is gone");
    let words = bench.log(id);
    let saved = words.iter().find(|word| word.ends_with(&format!(": {text}")));
    // the last line may have been cut off in the client
    let seen = fs::read_to_string(output).unwrap();
    for event in seen.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let saved = saved.unwrap_or_else(|| panic!("the client was told {event}, and the message is gone"));
        let turn: u64 = saved.split([' ', ':']).nth(1).unwrap().parse().unwrap();
        if event["event"] == "turn_end" && event["certainty"] == "durable" {
            let end = format!("turn_end {turn} {}", event["outcome"].as_str().unwrap());
            assert!(words.contains(&end), "the client was told of {end}: {words:#?}");
        }
        if event["event"] == "tool_result" {
            let call = event["call"].as_u64().unwrap();
            let result = format!("tool_result {call} ");
            assert!(words.iter().any(|word| word.starts_with(&result)), "told of {result}: {words:#?}");
        }
    }
    let notes = fs::read_to_string(bench.dir().join("notes")).unwrap_or_default();
    let log = String::from_utf8(log).unwrap();
    let mut ran = BTreeSet::new();
    for note in notes.lines() {
        assert!(ran.insert(note), "the tool ran twice with {note}");
        let text = serde_json::from_str::<Value>(note).unwrap()["text"].as_str().unwrap().to_owned();
        assert!(log.contains(&format!(r#"\"{text}\""#)), "the tool ran with {text}, which no log holds");
    }
}

/// Waits until no turn runs; one that waits for something is cancelled.
fn quiet(bench: &Bench, id: &SessionId) {
    let mut talk = bench.talk();
    let begin = Instant::now();
    while talk.info(id).state == SessionState::Running {
        assert!(begin.elapsed() < PATIENCE, "the turn does not end");
        if begin.elapsed() > Duration::from_secs(5)
            && let Err(error) = talk.ask(Request::Cancel { session: id.clone() })
        {
            assert_eq!(error.code, ErrorCode::Nothing, "{error}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn repair_if_torn(bench: &Bench, id: &SessionId) -> bool {
    if bench.talk().info(id).state != SessionState::Damaged {
        return false;
    }
    bench.repair(id);
    true
}

/// A hundred blows, or as many as `BOXMAKER_KILLS` says.
#[test]
fn no_blow_loses_a_record_runs_a_tool_twice_or_hangs_a_client() {
    let times = number("BOXMAKER_KILLS", 100);
    let (mut random, begin) = (Rng::new(seed()), Instant::now());
    let mut bench = Bench::start_with("", note);
    (bench.loses_cache, bench.drops_half) = (true, true);
    // all of it in one epoch, whose log is looked at
    bench.server.set(|behaviour| behaviour.n_ctx = 1 << 24);
    let id = bench.talk().create();
    let output = bench.dir().join("told");
    let (mut torn, mut hit, mut took) = (0, [0; 5], [Duration::ZERO; 5]);
    for n in 0..times {
        let before = bench.log_bytes(&id);
        for (name, text) in [("one", n), ("two", n)] {
            let call = installed_call("note", &format!("{{\"text\": \"{name}-{text}\"}}"));
            bench.server.push(Script::say(&call));
        }
        bench.server.push(Script::say(&format!("Done {n}.")));
        let text = format!("Message {n}");
        let mut child = client(&bench, &id, &text, &output);
        let victim = VICTIMS[random.below(VICTIMS.len())];
        hit[victim as usize] += 1;
        let blow = Instant::now();
        std::thread::sleep(Duration::from_micros(random.next() % 120_000));
        match victim {
            Victim::Daemon => {
                bench.kill_daemon();
                bench.server.clear();
                // a client waits some seconds for its daemon to come back; one has to do without
                if hit[Victim::Daemon as usize] == 1 {
                    ends(child, "a client whose daemon is gone ends");
                    bench.start_daemon();
                } else {
                    bench.start_daemon();
                    ends(child, "a client whose daemon is killed ends");
                }
            }
            Victim::DaemonStopped => {
                signal(bench.daemon().pid(), Signal::SIGSTOP);
                std::thread::sleep(Duration::from_millis(random.next() % 80));
                signal(bench.daemon().pid(), Signal::SIGCONT);
                ends(child, "a client whose daemon stood still ends");
            }
            Victim::Server => {
                bench.server.go_down();
                std::thread::sleep(Duration::from_millis(random.next() % 40));
                bench.server.come_back();
                ends(child, "a client whose model server went ends");
            }
            Victim::Client => {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            Victim::ClientStopped => {
                signal(child.id(), Signal::SIGSTOP);
                quiet(&bench, &id);
                signal(child.id(), Signal::SIGCONT);
                ends(child, "a client that stood still ends");
            }
        }
        let log = bench.daemon().log();
        let last = log.lines().rev().take(30).collect::<Vec<_>>().join("\n");
        let alive = std::os::unix::net::UnixStream::connect(socket_in(bench.dir())).is_ok();
        assert!(
            alive,
            "blow {n}, {victim:?}: nobody listens; the last lines of its log, newest first:\n{last}"
        );
        torn += u64::from(repair_if_torn(&bench, &id));
        quiet(&bench, &id);
        bench.server.clear();
        took[victim as usize] += blow.elapsed();
        check(&bench, &id, &before, &text, &output);
    }
    println!("{took:?}");
    // nothing is locked, and the conversation goes on
    let mut talk = bench.talk();
    talk.attach(&id, None);
    assert_eq!(told(&talk.turn(&id, "At last")).last().unwrap(), "turn_end done");
    let notes = fs::read_to_string(bench.dir().join("notes")).unwrap_or_default().lines().count();
    println!(
        "{times} blows (daemon killed {}, stopped {}, server {}, client killed {}, stopped {}), {notes} runs of the \
         tool, {torn} torn ends, {:.1} s",
        hit[0],
        hit[1],
        hit[2],
        hit[3],
        hit[4],
        begin.elapsed().as_secs_f64()
    );
    assert!(notes as u64 > times / 4, "hardly a tool ran");
}
