//! Events as clients see them: who is attached, in which order, and what one that comes back gets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod channel_support;

use std::time::Duration;

use boxmaker::channel::{ChannelLimits, Client};
use boxmaker::proto::{ErrorCode, Event, EventKind, Reply, Request};
use channel_support::{Daemon, LONG, SOON, id, run, until};
use tokio::time::timeout;

fn attach(session: &str) -> Request {
    Request::Attach { session: id(session), after: None, approves: false }
}

async fn event(client: &mut Client) -> Event {
    timeout(LONG, client.next_event()).await.expect("an event in time").unwrap()
}

#[test]
fn events_follow_the_answer_and_go_to_all_who_are_attached() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let (mut a, mut b) = (daemon.greeted().await, daemon.client().await);
        assert_eq!(
            a.ask(r#"{"id":2,"request":"attach","session":"missing"}"#).await["error"]["code"],
            "not_found"
        );
        daemon.begin("s");
        daemon.say("s", "Hel");
        a.attach(3).await;
        let snapshot = a.hear().await.unwrap();
        assert_eq!(
            (&snapshot["event"], &snapshot["seq"], &snapshot["text"], &snapshot["user_text"]),
            (&"snapshot".into(), &2.into(), &"Hel".into(), &"hi".into())
        );
        b.request(attach("s")).await.unwrap();
        assert_eq!(daemon.hub.attached(&id("s")), 2);
        daemon.say("s", "lo");
        daemon.say("other", "not for them");
        let text = a.hear().await.unwrap();
        assert_eq!((&text["seq"], &text["text"], &text["turn"]), (&3.into(), &"lo".into(), &1.into()));
        assert!(matches!(event(&mut b).await.kind, EventKind::Snapshot { .. }));
        assert_eq!(event(&mut b).await.kind, EventKind::Text { text: "lo".into() });
        assert_eq!(a.ask(r#"{"id":4,"request":"detach","session":"s"}"#).await["ok"]["reply"], "done");
        daemon.say("s", "!");
        assert_eq!(event(&mut b).await.seq, 4);
        a.hear_nothing().await;
        drop(b);
        until(|| daemon.hub.attached(&id("s")) == 0).await;
    });
}

#[test]
fn attaching_and_detaching_happen_in_the_order_asked() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        daemon.toy.attach_delay.set(Duration::from_millis(30));
        let mut raw = daemon.greeted().await;
        raw.say(r#"{"id":2,"request":"attach","session":"s"}"#).await;
        raw.say(r#"{"id":3,"request":"detach","session":"s"}"#).await;
        raw.check_alive().await;
        assert_eq!(raw.hear().await.unwrap()["ok"]["reply"], "attached");
        assert_eq!(raw.hear().await.unwrap()["ok"]["reply"], "done");
        daemon.begin("s");
        raw.hear_nothing().await;
        // a client that goes while it is being attached leaves nothing behind; one with an answer that it
        // has not read counts as broken, not as closed
        for unread in [false, true] {
            let mut raw = daemon.greeted().await;
            raw.say(r#"{"id":2,"request":"attach","session":"s"}"#).await;
            if unread {
                raw.say(r#"{"id":3,"request":"metrics"}"#).await;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            drop(raw);
            tokio::time::sleep(SOON).await;
            assert_eq!(daemon.hub.attached(&id("s")), 0, "unread: {unread}");
        }
    });
}

#[test]
fn the_number_of_attached_sessions_is_bounded() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { attached: 2, ..ChannelLimits::default() });
        let mut client = daemon.client().await;
        client.request(attach("a")).await.unwrap();
        client.request(attach("b")).await.unwrap();
        client.request(attach("b")).await.unwrap();
        let refused = client.request(attach("c")).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::Limit));
        daemon.hub.forget(&id("a"));
        client.request(attach("c")).await.unwrap();
        client.request(Request::Detach { session: id("b") }).await.unwrap();
        client.request(attach("a")).await.unwrap();
    });
}

#[test]
fn a_client_that_comes_back_gets_what_it_missed_once() {
    run(async {
        let daemon = Daemon::start(ChannelLimits::default());
        let mut client = daemon.client().await;
        client.request(attach("s")).await.unwrap();
        daemon.begin("s");
        for n in 0..50 {
            daemon.say("s", &format!("{n} "));
        }
        let mut last = 0;
        while last < 20 {
            let event = event(&mut client).await;
            assert_eq!(event.seq, last + 1);
            last = event.seq;
        }
        let position = client.position(last);
        drop(client);
        daemon.end("s");
        let mut client = daemon.client().await;
        let request = Request::Attach { session: id("s"), after: Some(position.clone()), approves: false };
        assert_eq!(client.request(request).await.unwrap(), Reply::Attached { seq: 52, running: true });
        for seq in 21..=52 {
            let event = event(&mut client).await;
            assert_eq!(event.seq, seq);
            assert!(!matches!(event.kind, EventKind::Snapshot { .. }));
        }
        // of another run of the daemon: numbers say nothing
        let after = boxmaker::proto::Position { run: "run0".into(), ..position };
        client
            .request(Request::Attach { session: id("s"), after: Some(after), approves: false })
            .await
            .unwrap();
        let event = event(&mut client).await;
        assert_eq!(event.seq, 52);
        assert!(matches!(event.kind, EventKind::Snapshot { .. }));
    });
}

#[test]
fn seventy_clients_see_every_event_and_one_more_is_turned_away() {
    run(async {
        let daemon = Daemon::start(ChannelLimits { clients: 70, ..ChannelLimits::default() });
        let mut clients = Vec::new();
        for _ in 0..70 {
            let mut client = daemon.client().await;
            client.request(attach("s")).await.unwrap();
            clients.push(client);
        }
        for _ in 0..2 {
            let mut raw = daemon.raw().await;
            let answer = raw.hear().await.unwrap();
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&().into(), &"limit".into()));
            assert!(answer["error"]["message"].as_str().unwrap().contains("70 clients"), "{answer}");
            assert_eq!(raw.hear().await, None);
            let refused = Client::connect(&daemon.path).await.unwrap_err();
            assert_eq!(refused.code(), Some(ErrorCode::Limit), "{refused}");
        }
        daemon.begin("s");
        for n in 0..200 {
            daemon.say("s", &n.to_string());
        }
        for client in &mut clients {
            for seq in 1..=201 {
                assert_eq!(event(client).await.seq, seq);
            }
        }
        clients.pop();
        until(|| daemon.hub.clients() == 69).await;
        clients.push(daemon.client().await);
    });
}
