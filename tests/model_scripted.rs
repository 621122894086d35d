//! Requests and streams against a server that fails on demand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

mod model_support;

use std::time::{Duration, Instant};

use boxmaker::model::{Chunk, CompletionRequest, Final, ModelError, Server, Stop, ThinkingCap};
use boxmaker::proto::{ReasoningTags, Sampling, TokenId, TokenIds};
use model_support::scripted_server::{EOG, Script, ScriptedServer, text_of, tokens_of};
use model_support::{SILENCE, begin, chunks, client, run};

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
