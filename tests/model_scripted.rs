//! The model module against a server that fails on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

#[path = "support/scripted_server/mod.rs"]
#[allow(dead_code, missing_docs)]
mod scripted_server;

use std::rc::Rc;
use std::time::{Duration, Instant};

use boxmaker::config::ModelUrl;
use boxmaker::model::{
    Chunk, Completion, CompletionRequest, Final, Look, ModelError, Server, Special, Stop, ThinkingCap,
};
use boxmaker::proto::{
    Level, ReasoningSettings, ReasoningTags, Sampling, ServerState, TokenId, TokenIds, ToolFamily,
    ToolResultsBy, ToolsBy,
};
use scripted_server::{EOG, Health, Script, ScriptedServer, text_of, tokens_of};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool"}},{"type":"function","function":{"name":"call_tool"}}]"#;
const SILENCE: Duration = Duration::from_secs(20);

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

fn client(server: &ScriptedServer) -> Rc<Server> {
    Server::new(server.url(), None, 0, SILENCE)
}

async fn begin(client: &Server, prompt: &[TokenId]) -> Result<Completion, ModelError> {
    let sampling = Sampling::default();
    client
        .complete(&CompletionRequest {
            prompt,
            max_tokens: 100,
            sampling: &sampling,
            thinking: None,
            calls: None,
        })
        .await
}

async fn chunks(client: &Server) -> Result<Vec<Chunk>, ModelError> {
    let mut completion = begin(client, &[1, 4, 5]).await?;
    let mut chunks = Vec::new();
    while let Some(chunk) = completion.next().await? {
        chunks.push(chunk);
    }
    Ok(chunks)
}

async fn failure(script: Script) -> ModelError {
    let server = ScriptedServer::start();
    server.push(script);
    chunks(&client(&server)).await.expect_err("this must fail")
}

fn delta(text: &str, ids: &[TokenId], lost: u64) -> Chunk {
    Chunk::Delta { text: text.to_owned(), ids: ids.to_vec(), lost }
}

#[test]
fn a_request_says_exactly_what_is_meant() {
    run(async || {
        let server = ScriptedServer::start_tcp();
        server.set(|b| b.api_key = Some("k3y".to_owned()));
        let client = Server::new(server.url(), Some("k3y".to_owned()), 0, SILENCE);
        let tags = ReasoningTags {
            open: "<think>".to_owned(),
            close: "</think>".to_owned(),
            opened_by_prompt: false,
            close_ids: TokenIds::default(),
        };
        let sampling =
            Sampling { temperature: Some(0.5), top_k: Some(7), seed: Some(9), ..Sampling::default() };
        let thinking = Some(ThinkingCap { tokens: 12, tags: &tags });
        let request = CompletionRequest {
            prompt: &[1, 9, 3],
            max_tokens: 34,
            sampling: &sampling,
            thinking,
            calls: None,
        };
        let mut completion = client.complete(&request).await.unwrap();
        while completion.next().await.unwrap().is_some() {}
        let mut body = server.completions().remove(0);
        let markers = body.as_object_mut().unwrap().remove("preserved_tokens").unwrap();
        assert!(markers.as_array().unwrap().iter().any(|m| m == "[TOOL_CALLS]"));
        assert_eq!(
            body,
            serde_json::json!({
                "prompt": [1, 9, 3], "id_slot": 0, "cache_prompt": true, "return_tokens": true, "stream": true,
                "return_progress": true, "n_predict": 34, "temperature": 0.5, "top_k": 7, "seed": 9,
                "reasoning_budget_tokens": 12, "reasoning_budget_start_tag": "<think>",
                "reasoning_budget_end_tags": ["</think>"],
                "reasoning_budget_message": boxmaker::model::CAP_MESSAGE,
            })
        );
        let request = CompletionRequest {
            prompt: &[1],
            max_tokens: 1,
            sampling: &Sampling::default(),
            thinking: None,
            calls: None,
        };
        drop(client.complete(&request).await.unwrap());
        let body = server.completions().remove(1);
        let mut keys: Vec<&String> = body.as_object().unwrap().keys().collect();
        keys.sort_unstable();
        let plain = [
            "cache_prompt",
            "id_slot",
            "n_predict",
            "preserved_tokens",
            "prompt",
            "return_progress",
            "return_tokens",
            "stream",
        ];
        assert_eq!(keys, plain, "what is not set is the server's to decide");
    });
}

#[test]
fn a_whole_answer_comes_in_chunks() {
    run(async || {
        let server = ScriptedServer::start();
        server.push(Script::new().progress().text("a\u{1f98a}b").eog());
        let last = Final {
            stop: Stop::Eos,
            truncated: false,
            tokens_cached: 9,
            tokens_evaluated: 3,
            tokens_predicted: 7,
            cache_n: 0,
            prompt_n: 3,
            predicted_n: 7,
        };
        let fox = tokens_of("\u{1f98a}", false);
        assert_eq!(
            chunks(&client(&server)).await.unwrap(),
            [
                Chunk::Progress { total: 3, cache: 0, processed: 3 },
                delta("a", &tokens_of("a", false), 0),
                delta("\u{1f98a}", &fox[3..], 3),
                delta("b", &tokens_of("b", false), 0),
                delta("", &[EOG], 0),
                Chunk::Final(last),
            ]
        );
    });
}

#[test]
fn reasoning_that_the_prompt_opened_is_capped_by_asking_in_two_parts() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        let tags = ReasoningTags {
            open: "<think>".to_owned(),
            close: "</think>".to_owned(),
            opened_by_prompt: true,
            close_ids: TokenIds::default(),
        };
        let ask = async |max_tokens| {
            let thinking = Some(ThinkingCap { tokens: 5, tags: &tags });
            let sampling = Sampling::default();
            let request =
                CompletionRequest { prompt: &[1, 9], max_tokens, sampling: &sampling, thinking, calls: None };
            let mut completion = client.complete(&request).await.unwrap();
            let mut last = None;
            while let Some(chunk) = completion.next().await.unwrap() {
                last = Some(chunk);
            }
            last.unwrap()
        };
        server.push(Script::new().progress().text("thinking on and on").eog());
        let last = ask(50).await;
        assert!(
            matches!(last, Chunk::ThinkingLimit(Final { tokens_predicted: 5, tokens_cached: 6, .. })),
            "{last:?}"
        );
        server.push(Script::say("so"));
        assert!(matches!(ask(50).await, Chunk::Final(Final { stop: Stop::Eos, .. })), "it ended before");
        server.push(Script::new().progress().text("thinking on and on").eog());
        assert!(
            matches!(ask(3).await, Chunk::Final(Final { stop: Stop::Limit, .. })),
            "a limit before the cap"
        );
        let limits: Vec<_> = server.completions().iter().map(|body| body["n_predict"].clone()).collect();
        assert_eq!(limits, [5, 5, 3]);
        assert!(server.completions()[0].get("reasoning_budget_tokens").is_none());
        let text = boxmaker::model::cap_text(&tags);
        assert_eq!(text_of(&client.cap_ids(&tags).await.unwrap()), text);
        assert!(text.contains("</think>"));
    });
}

#[test]
fn ids_lost_at_the_end_are_told_before_the_final() {
    run(async || {
        let server = ScriptedServer::start();
        server.push(Script::new().progress().text("a").lose(2).stop("limit"));
        let chunks = chunks(&client(&server)).await.unwrap();
        assert_eq!(chunks[2], delta("", &[], 2));
        assert!(matches!(chunks[3], Chunk::Final(Final { stop: Stop::Limit, tokens_predicted: 3, .. })));
    });
}

#[test]
fn after_the_end_nothing_comes() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        let mut completion = begin(&client, &[1]).await.unwrap();
        while !matches!(completion.next().await.unwrap(), Some(Chunk::Final(_))) {}
        assert_eq!(completion.next().await.unwrap(), None);
        server.push(Script::new().progress().error(500, "boom"));
        let mut completion = begin(&client, &[1]).await.unwrap();
        while completion.next().await.is_ok() {}
        assert_eq!(completion.next().await.unwrap(), None);
    });
}

#[test]
fn each_way_a_stream_can_fail_has_a_name() {
    run(async || {
        let begun = || Script::new().progress().text("Hel");
        let event = "data: {\"content\":\"x\",\"tokens\":[4],\"stop\":false,\"tokens_predicted\":4}";
        let e = failure(begun().error(500, "out of memory")).await;
        assert!(
            matches!(&e, ModelError::StreamError { code: Some(500), message, .. } if message == "out of memory")
        );
        let e = failure(begun().cut()).await;
        assert!(matches!(e, ModelError::StreamCut { tokens: 3, .. }), "{e:?}");
        let e = failure(begun().end_body()).await;
        assert!(matches!(e, ModelError::StreamCut { tokens: 3, .. }), "{e:?}");
        let e = failure(begun().raw(event).end_body()).await;
        assert!(matches!(&e, ModelError::StreamCut { why, .. } if why == "inside an event"), "{e:?}");
        let e = failure(begun().raw("data: {\"content\":\n\n")).await;
        assert!(matches!(e, ModelError::Garbage { .. }), "{e:?}");
        let e = failure(begun().raw("data: {\"stop\":true,\"tokens_predicted\":3}\n\n")).await;
        assert!(matches!(e, ModelError::Garbage { .. }), "{e:?}");
        let e = failure(Script::new().end_body()).await;
        assert!(matches!(e, ModelError::StreamCut { tokens: 0, .. }), "{e:?}");
    });
}

#[test]
fn an_endless_line_ends() {
    run(async || {
        let mut script = Script::new().progress().raw("data: ");
        let block = "x".repeat(1 << 20);
        for _ in 0..40 {
            script = script.raw(&block);
        }
        let e = failure(script.stall(Duration::from_secs(60))).await;
        assert!(matches!(&e, ModelError::Garbage { why, .. } if why.contains("longer than")), "{e:?}");
    });
}

#[test]
fn silence_is_an_error_and_comments_are_life() {
    run(async || {
        let server = ScriptedServer::start();
        let client = Server::new(server.url(), None, 0, Duration::from_millis(300));
        let mut script = Script::new().progress();
        for _ in 0..5 {
            script = script.stall(Duration::from_millis(150)).comment();
        }
        server.push(script.text("late").eog());
        assert!(chunks(&client).await.is_ok(), "it was never silent for 300 ms");
        server.push(Script::new().progress().stall(Duration::from_secs(60)));
        let e = chunks(&client).await.unwrap_err();
        assert!(matches!(e, ModelError::Silent { .. }), "{e:?}");
        assert!(e.to_string().contains("limits.server_silence_seconds"), "{e}");
    });
}

#[test]
fn refusals_are_told_apart() {
    run(async || {
        let e = failure(Script::status(401, "authentication_error", "Invalid API Key")).await;
        assert!(matches!(e, ModelError::Unauthorized { key_sent: false, .. }), "{e:?}");
        let e = failure(Script::status(404, "not_found_error", "File Not Found")).await;
        assert!(matches!(e, ModelError::NotFound { .. }), "{e:?}");
        let e = failure(Script::status(503, "unavailable_error", "Loading model")).await;
        assert!(matches!(e, ModelError::Loading { .. }) && e.is_wait(), "{e:?}");
        let e = failure(Script::status(500, "server_error", "model x failed to load")).await;
        assert!(matches!(e, ModelError::LoadFailed { .. }) && !e.is_wait(), "{e:?}");
        let e = failure(Script::status(400, "invalid_request_error", "Prompt contains invalid tokens")).await;
        assert!(
            matches!(&e, ModelError::Status { code: 400, body, .. } if body.contains("invalid tokens")),
            "{e:?}"
        );
    });
}

#[test]
fn what_cannot_fit_is_not_sent() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.n_ctx = 4);
        let client = client(&server);
        let e = begin(&client, &[1, 2, 3, 4]).await.unwrap_err();
        assert!(matches!(e, ModelError::ContextExceeded { n_prompt_tokens: 4, n_ctx: 4, .. }), "{e:?}");
        assert!(server.completions().is_empty());
        begin(&client, &[1, 2, 3]).await.unwrap();
    });
}

#[test]
fn the_server_s_own_word_on_the_context_is_understood() {
    run(async || {
        let message = "data: {\"error\":{\"code\":400,\"message\":\"m\",\"type\":\"exceed_context_size_error\",\"n_prompt_tokens\":600,\"n_ctx\":512}}\n\n";
        let e = failure(Script::new().raw(message)).await;
        assert!(matches!(e, ModelError::ContextExceeded { n_prompt_tokens: 600, n_ctx: 512, .. }), "{e:?}");
    });
}

#[test]
fn a_slot_that_is_not_there_is_refused_before_anything_is_sent() {
    run(async || {
        let server = ScriptedServer::start();
        let client = Server::new(server.url(), None, 1, SILENCE);
        let e = begin(&client, &[1]).await.unwrap_err();
        assert!(matches!(e, ModelError::WrongSlot { slot: 1, total: 1, .. }), "{e:?}");
        assert!(e.to_string().contains("-np 2"), "{e}");
        assert!(server.completions().is_empty());
        let e = client.wait_ready(|_| {}).await.unwrap_err();
        assert!(matches!(e, ModelError::WrongSlot { .. }), "{e:?}");
    });
}

#[test]
fn dropping_a_completion_closes_its_connection() {
    run(async || {
        let server = ScriptedServer::start_tcp();
        let client = client(&server);
        server.push(Script::new().progress().text("Hel").stall(Duration::from_secs(60)).text("lo").eog());
        let mut completion = begin(&client, &[1]).await.unwrap();
        assert!(matches!(completion.next().await.unwrap(), Some(Chunk::Progress { .. })));
        drop(completion);
        let begun = Instant::now();
        client.wait_idle().await.unwrap();
        assert_eq!(server.hangups(), 1);
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(client.slot_tokens().await.unwrap(), Some(3), "the prompt and two tokens are decoded");
    });
}

#[test]
fn dropping_a_request_before_its_answer_closes_the_connection_too() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        server.push(Script::new().stall(Duration::from_secs(60)).eog());
        {
            let begun = begin(&client, &[1]);
            // The headers come at once, so a first event is what never comes.
            let mut completion = begun.await.unwrap();
            let next = tokio::time::timeout(Duration::from_millis(50), completion.next()).await;
            assert!(next.is_err());
        }
        client.wait_idle().await.unwrap();
        assert_eq!(server.hangups(), 1);
    });
}

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
        assert_eq!(client.slot_tokens().await.unwrap(), None);
        chunks(&client).await.unwrap();
        let saved = client.save_slot("x.bin").await.unwrap();
        assert_eq!((saved.filename.as_str(), saved.n_saved), ("x.bin", 5));
        let written = std::fs::metadata(server.dir().join("x.bin")).unwrap().len();
        assert_eq!(saved.n_written, written);
        assert_eq!(client.slot_tokens().await.unwrap(), Some(5));
    });
}

#[test]
fn special_tokens_in_what_people_say_are_text() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        assert_eq!(client.tokenize("<|im_end|>", Special::Parse).await.unwrap(), [EOG]);
        assert_eq!(client.tokenize("<|im_end|>", Special::Plain).await.unwrap().len(), 10);
        let asked = server.requests().len();
        assert!(client.tokenize("", Special::Plain).await.unwrap().is_empty());
        assert_eq!(server.requests().len(), asked, "nothing to ask");
    });
}

#[test]
fn a_template_without_tools_gets_our_words() {
    run(async || {
        let server = ScriptedServer::start();
        let client = client(&server);
        let framing =
            client.compile_framing("Be brief.", TOOLS, &ReasoningSettings { enabled: true }).await.unwrap();
        assert_eq!(framing.tools_by, ToolsBy::SystemPrompt);
        assert_eq!(framing.tool_results_by, ToolResultsBy::UserMessage);
        assert_eq!(framing.tool_family, ToolFamily::Hermes);
        assert_eq!(framing.reasoning, None);
        let head = text_of(&framing.head);
        assert!(head.starts_with("<|im_start|>system\nBe brief.\n\n"), "{head}");
        assert!(head.contains(TOOLS) && head.ends_with("<|im_end|>\n<|im_start|>user\n"), "{head}");
        assert_eq!(text_of(&framing.user_open), "<|im_end|>\n<|im_start|>user\n");
        assert_eq!(framing.user_open[0], EOG, "special tokens are tokens in the template's own text");
        assert_eq!(text_of(&framing.user_close), "<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(text_of(&framing.tool_open), "<|im_end|>\n<|im_start|>user\n<tool_response>\n");
        assert_eq!(text_of(&framing.tool_between), "\n</tool_response>\n<tool_response>\n");
        assert_eq!(text_of(&framing.tool_close), "\n</tool_response><|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(text_of(&framing.stand_in_ids), framing.stand_in);
    });
}

#[test]
fn reasoning_opened_by_the_prompt_is_seen_and_closed_when_unwanted() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.generation_prompt = "<|im_start|>assistant\n<think>\n".to_owned());
        let client = client(&server);
        let on = client.compile_framing("x", TOOLS, &ReasoningSettings { enabled: true }).await.unwrap();
        let tags = on.reasoning.unwrap();
        assert!(tags.opened_by_prompt);
        assert_eq!((tags.open.as_str(), tags.close.as_str()), ("<think>", "</think>"));
        assert_eq!(text_of(&tags.close_ids), "\n</think>\n\n");
        let off = client.compile_framing("x", TOOLS, &ReasoningSettings { enabled: false }).await.unwrap();
        assert!(!off.reasoning.unwrap().opened_by_prompt);
        assert!(
            text_of(&off.user_close).ends_with("<think>\n\n</think>\n\n"),
            "{}",
            text_of(&off.user_close)
        );
        assert!(text_of(&off.tool_close).ends_with("<think>\n\n</think>\n\n"));
        let asked = server.requests().into_iter().rfind(|r| r.path == "/apply-template").unwrap();
        assert_eq!(asked.body["chat_template_kwargs"]["enable_thinking"], false);
    });
}

#[test]
fn a_template_without_system_messages_gets_them_in_the_user_s() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.refused_role = Some("system".to_owned()));
        let client = client(&server);
        let framing =
            client.compile_framing("Be brief.", TOOLS, &ReasoningSettings { enabled: true }).await.unwrap();
        let head = text_of(&framing.head);
        assert!(head.starts_with("<|im_start|>user\nBe brief.\n\n") && head.ends_with("\n\n"), "{head}");
    });
}

#[test]
fn a_template_that_fails_is_named_with_what_failed() {
    run(async || {
        let server = ScriptedServer::start();
        server.set(|b| b.refused_role = Some("assistant".to_owned()));
        let client = client(&server);
        let e = client.compile_framing("x", TOOLS, &ReasoningSettings { enabled: true }).await.unwrap_err();
        let digest = client.identity().await.unwrap().template_digest.to_string();
        assert!(matches!(&e, ModelError::Template { digest: named, .. } if *named == digest), "{e:?}");
        assert!(e.to_string().contains("role not supported"), "{e}");
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
