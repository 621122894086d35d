//! Clients that do not read, and clients that send anything at all.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod channel_support;

use std::cell::Cell;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use boxmaker::channel::{ChannelLimits, Client};
use boxmaker::proto::{EventKind, Phase, Request};
use channel_support::memory::memory;
use channel_support::{Daemon, LONG, Raw, id, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use proptest::prelude::*;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// Which socket the helper process below talks to.
const HELPER: &str = "BOXMAKER_TEST_WATCHER";

fn attach() -> Request {
    Request::Attach { session: id("s"), after: None, approves: false }
}

/// Reads events up to the turn's end, or to a snapshot that shows it: how many, how many snapshots; none may be missing between them.
async fn watch(client: &mut Client, seen: &Cell<u64>) -> (u64, u64) {
    let (mut events, mut snapshots, mut last) = (0, 0, None);
    loop {
        let event = tokio::time::timeout(LONG, client.next_event()).await.expect("an event").unwrap();
        let ended = match event.kind {
            EventKind::Snapshot { snapshot } => {
                snapshots += 1;
                assert!(last < Some(event.seq), "a snapshot that goes back, to {} after {last:?}", event.seq);
                snapshot.phase == Phase::Idle
            }
            kind => {
                events += 1;
                assert!(last.is_none_or(|last| last + 1 == event.seq), "{} after {last:?}", event.seq);
                matches!(kind, EventKind::TurnEnd { .. })
            }
        };
        last = Some(event.seq);
        seen.set(event.seq);
        if ended {
            return (events, snapshots);
        }
    }
}

/// Not a test by itself: the process that is stopped below.
#[test]
fn helper_watcher() {
    let Some(path) = std::env::var_os(HELPER) else { return };
    run(async {
        let mut client = Client::connect(Path::new(&path)).await.unwrap();
        client.request(attach()).await.unwrap();
        println!("\nwatching");
        let (events, snapshots) = watch(&mut client, &Cell::new(0)).await;
        println!("\nwatched {events} {snapshots}");
    });
}

#[test]
fn a_stopped_client_holds_up_nobody_and_costs_no_memory() {
    const EVENTS: u64 = 100_000;
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut helper = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args(["helper_watcher", "--exact", "--nocapture", "--test-threads=1"])
            .env(HELPER, &daemon.path)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(helper.stdout.take().unwrap()).lines();
        while said.next_line().await.unwrap().expect("it watches") != "watching" {}
        let pid = Pid::from_raw(helper.id().unwrap().try_into().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();

        // one more that does not read, in a session of its own, and one that does
        let mut stuck = daemon.greeted().await;
        stuck.say(r#"{"id":2,"request":"attach","session":"s"}"#).await;
        let mut healthy = daemon.client().await;
        healthy.request(attach()).await.unwrap();
        daemon.begin("s");
        let (before, seen) = (memory("self", "VmRSS"), Cell::new(0));
        let publish = async {
            for n in 1..=EVENTS {
                daemon.say("s", &"x".repeat(200));
                // the one that reads is not to be too slow by accident
                while (n + 1) - seen.get() > 500 {
                    tokio::time::sleep(Duration::from_micros(1)).await;
                }
            }
            let grown = memory("self", "VmRSS").saturating_sub(before);
            assert!(grown < 8 << 20, "{grown} bytes for {EVENTS} events of 300 bytes");
            kill(pid, Signal::SIGCONT).unwrap();
            daemon.end("s");
        };
        let ((events, snapshots), ()) = tokio::join!(watch(&mut healthy, &seen), publish);
        assert_eq!((events, snapshots), (EVENTS + 2, 0), "the one that reads misses nothing");

        let watched = loop {
            let line = said.next_line().await.unwrap().expect("it has watched");
            if let Some(watched) = line.strip_prefix("watched ") {
                break watched.to_owned();
            }
        };
        let (events, snapshots) = watched.split_once(' ').unwrap();
        assert!(events.parse::<u64>().unwrap() < EVENTS / 10, "{watched}");
        assert!(snapshots.parse::<u64>().unwrap() <= 2, "{watched}");
        assert!(helper.wait().await.unwrap().success());
        daemon.greeted().await.check_alive().await;
    });
}

#[test]
fn a_client_that_comes_to_itself_gets_one_snapshot_and_goes_on() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut slow = daemon.greeted().await;
        assert_eq!(slow.ask(r#"{"id":2,"request":"attach","session":"s"}"#).await["ok"]["seq"], 0);
        daemon.begin("s");
        for _ in 0..5000 {
            daemon.say("s", &"x".repeat(500));
            tokio::task::yield_now().await;
        }
        // its answers get through nevertheless, behind what was written before
        slow.say(r#"{"id":3,"request":"metrics"}"#).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (mut last, mut snapshots, mut answered) = (0, 0, false);
        while last < 5001 {
            let line = slow.hear().await.unwrap();
            if line["event"] == "snapshot" {
                snapshots += 1;
                last = line["seq"].as_u64().unwrap();
            } else if line["id"] == 3 {
                answered = true;
            } else {
                assert_eq!(line["seq"], last + 1);
                last += 1;
            }
        }
        assert_eq!((last, snapshots), (5001, 1));
        if !answered {
            assert_eq!(slow.hear().await.unwrap()["id"], 3);
        }
        daemon.say("s", "on");
        assert_eq!(slow.hear().await.unwrap()["seq"], 5002);
        slow.check_alive().await;
    });
}

fn lines() -> impl Strategy<Value = Vec<u8>> {
    let request = prop_oneof![
        Just(r#"{"id":1,"request":"hello","version":1,"client":"p"}"#.to_owned()),
        Just(r#"{"id":2,"request":"attach","session":"s"}"#.to_owned()),
        Just(r#"{"id":2,"request":"attach","session":"s","after":{"run":"run1","seq":3}}"#.to_owned()),
        Just(r#"{"id":3,"request":"detach","session":"s"}"#.to_owned()),
        Just(r#"{"id":4,"request":"latest"}"#.to_owned()),
        Just(r#"{"id":5,"request":"usage","session":"s"}"#.to_owned()),
        Just("[".repeat(300)),
    ];
    let part = prop_oneof![
        3 => request.prop_map(|line| (line + "\n").into_bytes()),
        1 => proptest::collection::vec(any::<u8>(), 0..200),
        // a request with one byte changed
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| {
            let mut line = b"{\"id\":2,\"request\":\"attach\",\"session\":\"s\"}\n".to_vec();
            let at = at.index(line.len());
            line[at] = byte;
            line
        }),
        1 => Just(vec![b'x'; 3000]),
    ];
    proptest::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
}

#[test]
fn no_bytes_end_the_server() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    // what panics in the toy is meant to; 300 traces of it help nobody
    std::panic::set_hook(Box::new(|_| {}));
    let inputs = lines();
    let result = runner.run(&inputs, |bytes| {
        run(async {
            let limits = ChannelLimits { message_bytes: 2000, ..ChannelLimits::default() };
            let daemon = Daemon::start(limits);
            let mut raw = Raw::connect(&daemon.path).await;
            daemon.begin("s");
            // the server may have closed already
            let _ = raw.write.write_all(&bytes).await;
            daemon.say("s", "x");
            drop(raw.write);
            daemon.greeted().await.check_alive().await;
            tokio::time::timeout(LONG, async {
                let mut sink = tokio::io::sink();
                let _ = tokio::io::copy(&mut raw.read, &mut sink).await;
                while daemon.hub.clients() > 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .map_err(|_| TestCaseError::fail("the client's place is not free again"))?;
            prop_assert_eq!(daemon.hub.attached(&id("s")), 0);
            Ok(())
        })
    });
    let _ = std::panic::take_hook();
    result.unwrap();
}

#[test]
fn clients_that_say_no_hello_lose_their_places() {
    run(async {
        let hello = Duration::from_millis(300);
        let daemon = Daemon::start(ChannelLimits { clients: 2, hello, ..ChannelLimits::default() });
        // one that says nothing, and one that talks without a hello and reads nothing
        let (mut silent, mut rude) = (daemon.raw().await, daemon.raw().await);
        rude.say("not a hello").await;
        let mut third = daemon.raw().await;
        assert_eq!(third.hear().await.expect("an answer")["error"]["code"], "limit");
        let told = silent.hear().await.expect("it is told why it is closed");
        assert_eq!((&told["id"], &told["error"]["code"]), (&serde_json::Value::Null, &"hello_first".into()));
        assert!(told["error"]["message"].as_str().unwrap().contains("limits.hello_seconds"), "{told}");
        assert_eq!(silent.hear().await, None, "closed");
        assert_eq!(rude.hear().await.expect("an answer")["error"]["code"], "bad_request");
        assert_eq!(rude.hear().await.expect("an answer")["error"]["code"], "hello_first");
        assert_eq!(rude.hear().await, None, "closed");
        // their places are free, and one that said hello may be silent for as long as it likes
        let (mut first, mut second) = (daemon.greeted().await, daemon.greeted().await);
        tokio::time::sleep(hello * 3).await;
        first.check_alive().await;
        second.check_alive().await;
    });
}
