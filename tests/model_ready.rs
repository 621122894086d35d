//! Whether the model server is there, who it is, what it can do, and what its slot holds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

mod model_support;

use std::time::Duration;

use boxmaker::config::ModelUrl;
use boxmaker::model::{Look, ModelError, Server};
use boxmaker::proto::{Level, ServerState};
use model_support::scripted_server::{Health, Script, ScriptedServer};
use model_support::{SILENCE, chunks, client, run};

#[test]
fn waiting_is_visible_and_ends_when_the_server_is_there() {
    run(async || {
        let server = ScriptedServer::start();
        let (state, told) = (client(&server), std::cell::RefCell::new(Vec::<String>::new()));
        server.set(|b| b.health = Health::Hangup);
        let change = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            server.set(|b| b.health = Health::Loading);
            tokio::time::sleep(Duration::from_millis(1500)).await;
            server.set(|b| b.health = Health::Ready);
        };
        let wait = state.wait_ready(|why| told.borrow_mut().push(why.to_owned()));
        let (ready, ()) = tokio::join!(wait, change);
        ready.unwrap();
        let told = told.into_inner();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("closed the connection"), "{told:?}");
        assert!(told[1].contains("Loading model") && told[1].contains(" s)"), "{told:?}");
    });
}

#[test]
fn nobody_there_is_worth_waiting_for() {
    run(async || {
        let dir = tempfile::tempdir().unwrap();
        let refused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let urls = [
            ModelUrl::Unix(dir.path().join("missing.sock")),
            ModelUrl::Http { host: "127.0.0.1".to_owned(), port: refused, path: String::new() },
        ];
        for url in urls {
            let client = Server::new(url, None, 0, SILENCE);
            assert_eq!(client.state().await.0, ServerState::Unreachable);
            let e = client.props().await.unwrap_err();
            assert!(matches!(e, ModelError::Unreachable { .. }) && e.is_wait(), "{e:?}");
            let mut told = 0;
            let wait = client.wait_ready(|_| told += 1);
            assert!(tokio::time::timeout(Duration::from_millis(400), wait).await.is_err());
            assert_eq!(told, 1, "told once, not at each look");
        }
    });
}

#[test]
fn waiting_stops_where_it_cannot_help() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.api_key = Some("k3y".to_owned()));
        let wrong = Server::new(server.url(), Some("other".to_owned()), 0, SILENCE);
        let e = wrong.wait_ready(|_| panic!("nothing to wait for")).await.unwrap_err();
        assert!(matches!(e, ModelError::Unauthorized { key_sent: true, .. }), "{e:?}");
        assert!(!e.to_string().contains("other"), "no key in a message");
        assert!(!format!("{wrong:?}").contains("other"), "nor in the debug form");
        server.set(|b| b.health = Health::Error(500, "failed to load model".to_owned()));
        let e = wrong.wait_ready(|_| panic!("nothing to wait for")).await.unwrap_err();
        assert!(matches!(e, ModelError::LoadFailed { .. }), "{e:?}");
        assert_eq!(wrong.state().await.0, ServerState::Failing);
        server.set(|b| b.health = Health::Garbage(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()));
        let e = wrong.wait_ready(|_| panic!("nothing to wait for")).await.unwrap_err();
        assert!(matches!(e, ModelError::Garbage { .. }), "{e:?}");
        server.set(|b| b.health = Health::Loading);
        assert_eq!(wrong.state().await.0, ServerState::Loading);
    });
}

#[test]
fn a_mute_server_is_noticed() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.health = Health::Mute);
        let client = Server::new(server.url(), None, 0, Duration::from_millis(200));
        let e = client.props().await.unwrap_err();
        assert!(matches!(e, ModelError::Silent { .. }), "{e:?}");
        assert_eq!(client.state().await.0, ServerState::Failing);
    });
}

#[test]
fn features_that_are_off_are_told_with_their_flag() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        let e = client.save_slot("x.bin").await.unwrap_err();
        assert!(
            matches!(e, ModelError::Unsupported { .. }) && e.to_string().contains("--slot-save-path"),
            "{e}"
        );
        server.set(|b| b.slots = false);
        assert_eq!(client.slot_tokens().await.unwrap(), None);
        client.wait_idle().await.unwrap();
    });
}

#[test]
fn a_saved_slot_tells_what_it_holds() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.slot_dir = Some(server.dir().to_owned()));
        let client = client(&server);
        assert_eq!(client.slot_tokens().await.unwrap(), Some(0));
        chunks(&client).await.unwrap();
        let saved = client.save_slot("x.bin").await.unwrap();
        assert_eq!((saved.filename.as_str(), saved.n_saved), ("x.bin", 5));
        let written = std::fs::metadata(server.dir().join("x.bin")).unwrap().len();
        assert_eq!(saved.n_written, written);
        assert_eq!(client.slot_tokens().await.unwrap(), Some(5));
    });
}

#[test]
fn the_server_s_identity_is_told_without_folders_or_keys() {
    run(async || {
        let server = ScriptedServer::start();
        let identity = client(&server).identity().await.unwrap();
        assert_eq!((identity.file.as_str(), identity.alias.as_str()), ("scripted.gguf", "scripted"));
        assert_eq!((identity.n_ctx, identity.n_vocab, identity.size), (65_536, 259, 12_345));
        assert_eq!(identity.build, "scripted-1");
    });
}

#[test]
fn the_check_names_what_breaks_the_promise() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.slot_dir = Some(server.dir().to_owned()));
        let (findings, _) = client(&server).check(Look::Try).await;
        assert!(findings.iter().all(|f| f.level == Level::Ok), "{findings:#?}");
        assert!(findings.iter().any(|f| f.what.contains("found all")), "{findings:#?}");

        let held = server.cache();
        let (findings, _) = client(&server).check(Look::Try).await;
        assert_eq!(server.cache(), held, "a conversation's cache is left alone");
        assert!(findings.iter().any(|f| f.what.contains("not tried out")), "{findings:#?}");

        server.lose_cache();
        server.push(Script::say("x"));
        server.push(Script::say("x").cache(0));
        server.set(|b| {
            b.slot_dir = None;
            b.total_slots = 4;
            b.is_sleeping = true;
            b.n_ctx = 512;
        });
        let (findings, _) = client(&server).check(Look::Try).await;
        let remedy = |level, words: &str| {
            assert!(
                findings.iter().any(|f| f.level == level && f.remedy.contains(words)),
                "{words}: {findings:#?}"
            );
        };
        remedy(Level::Bad, "--swa-full");
        remedy(Level::Bad, "--sleep-idle-seconds");
        remedy(Level::Warn, "-np 1");
        remedy(Level::Warn, "--slot-save-path");
        remedy(Level::Warn, "-c 2048");

        server.set(|b| b.slots = false);
        let findings = Server::new(server.url(), None, 9, SILENCE).check(Look::Try).await.0;
        assert!(findings.iter().any(|f| f.level == Level::Warn && f.remedy == "--slots"), "{findings:#?}");
        assert!(findings.iter().any(|f| f.level == Level::Bad && f.remedy == "-np 10"), "{findings:#?}");
        server.set(|b| b.health = Health::Loading);
        let (findings, _) = client(&server).check(Look::Try).await;
        assert_eq!((findings.len(), findings[0].level), (1, Level::Bad));
    });
}
