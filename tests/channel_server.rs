//! The server as clients see it: framing, answers, limits, the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod channel_support;

use std::time::{Duration, Instant};

use boxmaker::channel::{ChannelLimits, Client, ClientError};
use boxmaker::proto::{ErrorCode, Event, EventKind, Reply, Request};
use channel_support::{Daemon, HELLO, LONG, SOON, id, run, until};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

fn attach(session: &str) -> Request {
    Request::Attach { session: id(session), after: None, approves: false }
}

fn cancel() -> Request {
    Request::Cancel { session: id("s") }
}

async fn event(client: &mut Client) -> Event {
    timeout(LONG, client.next_event()).await.expect("an event in time").unwrap()
}

#[test]
fn hello_comes_first_and_once() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut raw = daemon.raw().await;
        for request in [r#"{"id":5,"request":"metrics"}"#, r#"{"id":5,"request":"attach","session":"s"}"#] {
            let answer = raw.ask(request).await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&5.into(), &"hello_first".into()));
        }
        let hello = raw.ask(HELLO).await;
        assert_eq!(hello["ok"]["run"], "run1");
        assert_eq!(hello["ok"]["version"], 1);
        raw.check_alive().await;
        assert_eq!(raw.ask(HELLO).await["error"]["code"], "bad_request");
        raw.check_alive().await;
    });
}

#[test]
fn another_version_is_an_answer_that_names_both() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut raw = daemon.raw().await;
        for hello in [
            r#"{"id":1,"request":"hello","version":7,"client":"x"}"#,
            r#"{"id":1,"request":"hello","version":7,"client":"x","colour":"of a later version"}"#,
        ] {
            let answer = raw.ask(hello).await;
            assert_eq!(answer["error"]["code"], "version", "{answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains("version 1 ") && message.contains("version 7"), "{message}");
        }
        // not welcome yet, but not hung up on either
        assert_eq!(raw.ask(r#"{"id":2,"request":"metrics"}"#).await["error"]["code"], "hello_first");
        assert_eq!(raw.ask(HELLO).await["ok"]["reply"], "hello");
    });
}

#[test]
fn bad_input_gets_an_error_that_says_what_and_where() {
    let deep = format!(r#"{{"id":3,"request":"open","session":{}"x"{}}}"#, "[".repeat(200), "]".repeat(200));
    let long_name = format!(r#"{{"id":3,"request":"{}"}}"#, "\\u0007x".repeat(10_000));
    let table: &[(&[u8], Option<u64>, &str, &str)] = &[
        (b"", None, "bad_request", "not JSON: EOF while parsing a value at line 1 column 0"),
        (b"hello", None, "bad_request", "not JSON: expected value at line 1 column 1"),
        (b"{\"id\":1,", None, "bad_request", "not JSON: EOF while parsing"),
        (b"{\"id\":3}{\"id\":4}", None, "bad_request", "trailing characters at line 1 column 9"),
        (b"\xef\xbb\xbf{}", None, "bad_request", "not JSON: expected value"),
        (b"{\"id\":3,\"request\":\"\xff\"}", None, "bad_request", "not UTF-8: the byte at 19"),
        (b"\0\0\0", None, "bad_request", "not JSON"),
        (b"[1]", None, "bad_request", "not a JSON object"),
        (b"{\"request\":\"list\"}", None, "bad_request", "\"id\" is missing"),
        (b"{\"id\":\"3\",\"request\":\"list\"}", None, "bad_request", "\"id\" is not a whole number"),
        (b"{\"id\":-3,\"request\":\"list\"}", None, "bad_request", "\"id\" is not a whole number"),
        (b"{\"id\":3}", Some(3), "bad_request", "\"request\" is missing"),
        (b"{\"id\":3,\"request\":7}", Some(3), "bad_request", "\"request\" is missing or not a text"),
        (b"{\"id\":3,\"request\":\"fly\"}", Some(3), "unknown_request", "unknown request \"fly\"; known are"),
        (b"{\"id\":3,\"request\":\"open\"}", Some(3), "bad_request", "\"open\": missing field `session`"),
        (
            b"{\"id\":3,\"request\":\"open\",\"session\":7}",
            Some(3),
            "bad_request",
            "invalid type: integer `7`",
        ),
        (
            b"{\"id\":3,\"request\":\"open\",\"session\":\"../../x\"}",
            Some(3),
            "bad_request",
            "not a session id",
        ),
        (b"{\"id\":3,\"request\":\"list\",\"x\":1}", Some(3), "bad_request", "unknown field `x`"),
        (
            b"{\"id\":3,\"request\":\"send\",\"session\":\"a\",\"text\":\"\\ud800\"}",
            None,
            "bad_request",
            "not JSON",
        ),
        (deep.as_bytes(), None, "bad_request", "nested deeper than 64 levels at line 1 column"),
        (
            b"{\"id\":3,\"request\":\"list\",\"request\":\"shutdown\"}",
            None,
            "bad_request",
            "JSON that is not taken: the key \"request\" stands twice",
        ),
        (b"{\"id\":3,\"id\":4,\"request\":\"list\"}", None, "bad_request", "the key \"id\" stands twice"),
        (
            b"{\"id\":3,\"request\":\"attach\",\"session\":\"a\",\"after\":{\"run\":\"r\",\"seq\":1,\"\\u0073eq\":2}}",
            None,
            "bad_request",
            "the key \"seq\" stands twice",
        ),
        (long_name.as_bytes(), Some(3), "unknown_request", "unknown request"),
    ];
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut raw = daemon.greeted().await;
        for (input, id, code, says) in table {
            let shown = String::from_utf8_lossy(input);
            let answer = raw.ask(input).await;
            assert_eq!(answer["id"].as_u64(), *id, "{shown}: {answer}");
            assert_eq!(answer["error"]["code"], *code, "{shown}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.contains(says), "{shown}: {message}");
            assert!(message.len() <= 1010, "{} bytes", message.len());
            raw.check_alive().await;
        }
    });
}

#[test]
fn only_a_newline_ends_a_line() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut raw = daemon.greeted().await;
        // U+2028, U+0085 and a carriage return in and around a line
        let line = "{\"id\":4,\"request\":\"resolve\",\"text\":\"a\u{2028}b\u{85}c\"}\r";
        assert_eq!(raw.ask(line).await["ok"]["reply"], "done");
        // two lines in one write, one line in many
        raw.write
            .write_all(b"{\"id\":5,\"request\":\"metrics\"}\n{\"id\":6,\"request\":\"metrics\"}\n")
            .await
            .unwrap();
        assert_eq!(raw.hear().await.unwrap()["id"], 5);
        assert_eq!(raw.hear().await.unwrap()["id"], 6);
        for byte in b"{\"id\":7,\"request\":\"metrics\"}\n" {
            raw.write.write_all(&[*byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(raw.hear().await.unwrap()["id"], 7);
    });
}

#[test]
fn a_line_over_the_limit_gets_an_error_and_the_end() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { message_bytes: 1000, ..ChannelLimits::default() });
        let mut other = daemon.greeted().await;
        for terminated in [true, false] {
            let mut raw = daemon.greeted().await;
            let mut line = br#"{"id":77,"request":"metrics"}"#.to_vec();
            line.resize(1000, b' ');
            assert_eq!(raw.ask(&line).await["ok"]["text"], "fine");
            line.push(b' ');
            if terminated {
                line.push(b'\n');
            }
            raw.write.write_all(&line).await.unwrap();
            let answer = raw.hear().await.unwrap();
            assert_eq!(answer["error"]["code"], "too_long");
            assert!(answer["error"]["message"].as_str().unwrap().contains("1000 bytes"), "{answer}");
            assert_eq!(raw.hear().await, None);
        }
        other.check_alive().await;
    });
}

#[test]
fn a_slow_request_blocks_no_other_and_their_number_is_bounded() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { in_flight: 3, ..ChannelLimits::default() });
        let mut raw = daemon.greeted().await;
        for n in [10, 11] {
            raw.say(format!(r#"{{"id":{n},"request":"cancel","session":"s"}}"#)).await;
        }
        raw.check_alive().await;
        raw.say(r#"{"id":12,"request":"cancel","session":"s"}"#).await;
        raw.say(r#"{"id":13,"request":"metrics"}"#).await;
        raw.hear_nothing().await;
        daemon.greeted().await.check_alive().await;
        daemon.toy.release.notify_one();
        assert_eq!(raw.hear().await.unwrap()["id"], 10);
        assert_eq!(raw.hear().await.unwrap()["id"], 13);
        daemon.toy.release.notify_waiters();
        let rest = [raw.hear().await.unwrap()["id"].clone(), raw.hear().await.unwrap()["id"].clone()];
        assert_eq!(rest, [11, 12]);
        raw.hear_nothing().await;
    });
}

#[test]
fn a_client_that_reads_no_answers_is_read_no_further() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { in_flight: 4, ..ChannelLimits::default() });
        let mut raw = daemon.greeted().await;
        for n in 0..20 {
            raw.say(format!(r#"{{"id":{n},"request":"export","session":"s"}}"#)).await;
        }
        until(|| daemon.toy.begun.get() == 4).await;
        tokio::time::sleep(SOON).await;
        // four with an answer of a megabyte each, of which the kernel takes less than one
        assert_eq!(daemon.toy.begun.get(), 4);
        daemon.greeted().await.check_alive().await;
        for n in 0..20 {
            assert_eq!(raw.hear().await.unwrap()["id"], n);
        }
    });
}

#[test]
fn a_request_that_panics_is_answered() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut client = daemon.client().await;
        let refused = client.request(Request::Latest {}).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Internal), "{refused}");
        assert_eq!(
            client.request(Request::Metrics {}).await.unwrap(),
            Reply::Metrics { text: "fine".into() }
        );
    });
}

#[test]
fn a_request_outlives_its_client_and_keeps_its_place() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { clients: 1, ..ChannelLimits::default() });
        for unread in [false, true] {
            let mut client = daemon.greeted().await;
            daemon.toy.begun.set(0);
            if unread {
                client.say(r#"{"id":2,"request":"metrics"}"#).await;
            }
            client.say(r#"{"id":3,"request":"cancel","session":"s"}"#).await;
            until(|| daemon.toy.begun.get() == 1 + u32::from(unread)).await;
            drop(client);
            tokio::time::sleep(SOON).await;
            // coming again gets around no limit
            let refused = Client::connect(&daemon.path).await.unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::Limit), "{refused}");
            daemon.toy.release.notify_one();
            until(|| daemon.toy.ended.get() == 1).await;
            daemon.toy.ended.set(0);
            until(|| daemon.hub.clients() == 0).await;
        }
        daemon.client().await;
    });
}

#[test]
fn the_service_learns_who_asks() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        daemon.client().await;
        let mut client = Client::connect_as(&daemon.path, "te\nst 2", LONG).await.unwrap();
        client.request(Request::Resolve { text: "x".into() }).await.unwrap();
        let peer = daemon.toy.peers.borrow()[0].clone();
        assert_eq!(peer.uid, nix::unistd::getuid().as_raw());
        assert_eq!(peer.pid, i32::try_from(std::process::id()).ok());
        assert_eq!((peer.client, peer.name.as_str()), (2, "test 2"));
    });
}

#[test]
fn closing_ones_own_side_ends_it_after_the_answers() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut raw = daemon.greeted().await;
        raw.say(r#"{"id":2,"request":"usage","session":"s"}"#).await;
        raw.write.write_all(br#"{"id":3,"request":"metrics"}"#).await.unwrap();
        raw.write.shutdown().await.unwrap();
        let unterminated = raw.hear().await.unwrap();
        assert_eq!(unterminated["error"]["code"], "bad_request");
        assert!(unterminated["error"]["message"].as_str().unwrap().contains("28 bytes of a line"));
        assert_eq!(raw.hear().await.unwrap()["ok"]["reply"], "usage");
        assert_eq!(raw.hear().await, None);
    });
}

#[test]
fn the_end_lets_answers_through_and_closes_clients() {
    run(async {
        let limits = ChannelLimits { flush: Duration::from_secs(2), ..ChannelLimits::default() };
        let daemon = Daemon::start(limits);
        let (mut quick, mut endless) = (daemon.greeted().await, daemon.client().await);
        let mut watching = daemon.client().await;
        // neither asks nor reads
        let mut stuck = daemon.greeted().await;
        stuck.attach(2).await;
        watching.request(attach("s")).await.unwrap();
        daemon.begin("s");
        for _ in 0..300 {
            daemon.say("s", &"x".repeat(1000));
        }
        quick.say(r#"{"id":2,"request":"usage","session":"s"}"#).await;
        endless.ask(cancel()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        daemon.end("s");
        let (path, began) = (daemon.path.clone(), Instant::now());
        let (ended, _home) = daemon.stop();
        tokio::task::yield_now().await;
        assert_eq!(quick.hear().await.unwrap()["ok"]["reply"], "usage");
        assert_eq!(quick.hear().await, None);
        // while others are still waited for
        let no_daemon = Client::connect(&path).await.unwrap_err();
        assert!(matches!(no_daemon, ClientError::NoDaemon(..)), "{no_daemon}");
        while !matches!(event(&mut watching).await.kind, EventKind::TurnEnd { .. }) {}
        assert!(matches!(watching.next_event().await, Err(ClientError::Closed)));
        let refused = match endless.next().await.unwrap() {
            boxmaker::proto::Incoming::Answer(Some(2), Err(error)) => error.code,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused, ErrorCode::ShuttingDown);
        ended.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(!path.exists());
        drop(stuck);
    });
}

#[test]
fn it_runs_inside_tokio_uring() {
    tokio_uring::start(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut client = daemon.client().await;
        client.request(attach("s")).await.unwrap();
        daemon.begin("s");
        assert_eq!(event(&mut client).await.seq, 1);
        let refused = client.request(Request::Latest {}).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Internal));
        let (ended, _home) = daemon.stop();
        ended.await.unwrap();
        assert!(matches!(client.next_event().await, Err(ClientError::Closed)));
    });
}
