//! Bad input at each door: bytes from the disk, the socket, the model server and a person.
//! See `driver` for how; the corpus is in `corpus/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs, reason = "tests")]

#[path = "../channel_support/mod.rs"]
mod channel_support;
mod driver;
#[path = "../support/scripted_server/mod.rs"]
#[allow(dead_code)]
mod scripted_server;
#[path = "../store_support/mod.rs"]
mod store_support;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use boxmaker::channel::ChannelLimits;
use boxmaker::config::{Config, Overrides};
use boxmaker::model::{CompletionRequest, ReplyParser, Server, Special};
use boxmaker::proto::{ReasoningSettings, Sampling, ToolFamily};
use boxmaker::store::{Access, SlotFiles, Storage, StorageFile};
use driver::drive;
use scripted_server::{Health, Script, ScriptedServer};
use store_support::sim::Sim;
use store_support::{catalog, log_of, simulated};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test)
}

/// A disk with one session of some turns, tools among them.
async fn a_session() -> Sim {
    let sim = Sim::new(1);
    let catalog = catalog(&sim);
    let id = store_support::id("a");
    let mut session = catalog.create(Some(id), store_support::baseline(), 0, None).await.unwrap();
    for append in store_support::turn(1, "Hello").into_iter().chain([
        vec![store_support::user(2, "With a tool, \u{1f980}")],
        vec![store_support::calling(2, &[1]), store_support::usage(2, 9)],
        vec![store_support::tool_start(2, 1)],
        vec![store_support::tool_result(2, 1, boxmaker::proto::ToolOutcome::Ok)],
        vec![store_support::assistant(2, "So."), store_support::usage(2, 12), store_support::turn_end(2)],
    ]) {
        session.append_all(append).await.unwrap();
    }
    session.close().await.unwrap();
    sim
}

#[test]
fn a_log_of_any_bytes() {
    simulated(async {
        let sim = a_session().await;
        let whole = sim.read(&log_of("a")).unwrap();
        drive("log", vec![whole], async |bytes: Vec<u8>| {
            // another disk for each, since repair and recovery leave things behind
            let sim = sim.killed();
            sim.put(&log_of("a"), bytes.clone());
            let catalog = catalog(&sim);
            let id = store_support::id("a");
            let listed = catalog.list().await.unwrap();
            assert_eq!(listed.len(), 1, "a damaged session is listed all the same");
            let opens = catalog.open(&id).await.is_ok();
            let _ = catalog.records(&id, 0, None, 1 << 20).await;
            assert_eq!(sim.read(&log_of("a")).unwrap(), bytes, "an open and a list write nothing");
            if !opens {
                let _ = catalog.recover(&id, Some(store_support::id("b"))).await;
                assert_eq!(
                    sim.read(&log_of("a")).unwrap(),
                    bytes,
                    "a recovery leaves the old session as it is"
                );
                if matches!(catalog.repair(&id).await, Ok(boxmaker::store::Remedy::Cut(_))) {
                    let now = sim.read(&log_of("a")).unwrap();
                    assert!(bytes.starts_with(&now), "a repair only cuts");
                    catalog.open(&id).await.expect("what was repaired opens");
                }
            }
        })
        .await;
    });
}

#[test]
fn a_baseline_of_any_bytes() {
    simulated(async {
        let sim = a_session().await;
        let path = Path::new("/home/sessions/a/0.baseline.json");
        let whole = sim.read(path).unwrap();
        drive("config", vec![whole.clone()], async |bytes: Vec<u8>| {
            let sim = sim.killed();
            sim.put(path, bytes.clone());
            let catalog = catalog(&sim);
            let opens = catalog.open(&store_support::id("a")).await.is_ok();
            assert!(!opens || bytes == whole, "another baseline was taken for the session's");
            assert_eq!(catalog.list().await.unwrap().len(), 1);
        })
        .await;
    });
}

#[test]
fn a_saved_slot_of_any_bytes() {
    simulated(async {
        let mut words: Vec<u32> = vec![0x6767_7371, 3, 0, u32::MAX, 1, 6, 1, 2, 3, 4, 5, 6];
        let mut more = vec![bytes_of(&words)];
        words[5] = u32::MAX;
        more.push(bytes_of(&words));
        let sim = Sim::new(1);
        sim.create_dir(Path::new("/slots")).await.unwrap();
        let path = Path::new("/slots/s.bin");
        let file = sim.open(path, Access::New).await.unwrap();
        file.append(0, vec![0]).await.synced.unwrap();
        drive("slot", more, async |bytes: Vec<u8>| {
            let sim = sim.killed();
            sim.put(path, bytes.clone());
            if let Ok(ids) = SlotFiles::on(sim.clone(), "/slots".into()).read_ids("s.bin").await {
                assert!(ids.len() * 4 <= bytes.len(), "{} ids from {} bytes", ids.len(), bytes.len());
            }
        })
        .await;
    });
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_configuration_of_any_bytes() {
    run(async {
        let example = include_bytes!("../../docs/loopd.example.toml").to_vec();
        drive("config", vec![example], async |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(config) = Config::from_toml(&text, Path::new("loopd.toml"), &Overrides::default()) {
                let again = config.to_toml();
                Config::from_toml(&again, Path::new("again.toml"), &Overrides::default())
                    .expect("its own words");
            }
        })
        .await;
    });
}

#[test]
fn a_channel_of_any_bytes() {
    run(async {
        let daemon = channel_support::Daemon::start(ChannelLimits::default());
        let mut good = daemon.greeted().await;
        let good = &mut good;
        let good = tokio::sync::Mutex::new(good);
        drive("channel", Vec::new(), async |bytes: Vec<u8>| {
            let mut raw = daemon.raw().await;
            // it may close before all is written
            let _ = raw.write.write_all(&bytes).await;
            let _ = raw.write.shutdown().await;
            let mut heard = Vec::new();
            let ends =
                tokio::time::timeout(Duration::from_millis(200), raw.read.read_to_end(&mut heard)).await;
            for line in heard.split_inclusive(|b| *b == b'\n').filter(|_| matches!(ends, Ok(Ok(_)))) {
                serde_json::from_slice::<serde_json::Value>(line).expect("each line is JSON");
            }
            drop(raw);
            good.lock().await.check_alive().await;
        })
        .await;
    });
}

fn client(server: &ScriptedServer) -> Rc<Server> {
    Server::new(server.url(), None, 0, Duration::from_millis(500))
}

#[test]
fn a_stream_of_any_bytes() {
    run(async {
        let server = ScriptedServer::start();
        let client = client(&server);
        drive("stream", Vec::new(), async |bytes: Vec<u8>| {
            server.push(Script::new().raw(&String::from_utf8_lossy(&bytes)).end_body());
            let sampling = Sampling::default();
            let request = CompletionRequest {
                prompt: &[1, 2],
                max_tokens: 9,
                sampling: &sampling,
                thinking: None,
                calls: None,
            };
            let mut parser = ReplyParser::new(ToolFamily::Hermes, None);
            if let Ok(mut completion) = client.complete(&request).await {
                while let Ok(Some(chunk)) = completion.next().await {
                    if let boxmaker::model::Chunk::Delta { text, .. } = chunk {
                        parser.feed(&text);
                    }
                }
            }
            let _ = parser.finish();
        })
        .await;
    });
}

#[test]
fn a_model_server_that_answers_any_bytes() {
    run(async {
        let server = ScriptedServer::start();
        let client = client(&server);
        drive("template", Vec::new(), async |bytes: Vec<u8>| {
            server.set(|b| b.health = Health::Garbage(bytes));
            let _ = client.props().await;
            let _ = client.tokenize("x", Special::Parse).await;
            let _ = client.compile_framing("Be brief.", "[]", &ReasoningSettings { enabled: true }).await;
        })
        .await;
    });
}

#[test]
fn a_template_of_any_text() {
    run(async {
        let server = ScriptedServer::start();
        let client = client(&server);
        drive("template", Vec::new(), async |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            server.set(|b| {
                b.generation_prompt.clone_from(&text.chars().take(60).collect());
                b.template = text;
            });
            let _ = client.identity().await;
            let _ = client.compile_framing("Be brief.", "[]", &ReasoningSettings { enabled: true }).await;
        })
        .await;
    });
}
