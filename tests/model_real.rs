//! The model module against a real llama-server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

#[path = "support/llama.rs"]
#[allow(dead_code)]
mod llama;

use std::time::{Duration, Instant};

use boxmaker::model::{
    CAP_MESSAGE, Chunk, Completion, CompletionRequest, Final, Look, ModelError, ReplyParser, Server, Special,
    Stop, ThinkingCap,
};
use boxmaker::proto::{
    Framing, Level, ReasoningSettings, ReasoningTags, Sampling, ServerState, TokenId, TokenIds, ToolFamily,
    ToolResultsBy, ToolsBy,
};
use llama::Llama;

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool","description":"Search the installed tools by words; returns their names and arguments.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}},{"type":"function","function":{"name":"call_tool","description":"Run a tool that find_tool returned.","parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name","arguments"]}}}]"#;
const SYSTEM: &str = "\
You are a helpful assistant on a small computer. Answer in the user's language, briefly and plainly. \
If you do not know something, say so. When a task needs a tool, look for one with find_tool, then run it \
with call_tool. Never make up what a tool returned.";

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

fn greedy() -> Sampling {
    Sampling { temperature: Some(0.0), ..Sampling::default() }
}

#[derive(Debug, Default)]
struct Heard {
    first_cache: Option<u64>,
    text: String,
    ids: Vec<TokenId>,
    lost: u64,
    end: Option<Final>,
}

async fn hear(mut completion: Completion) -> Heard {
    let mut heard = Heard::default();
    while let Some(chunk) = completion.next().await.unwrap() {
        match chunk {
            Chunk::Progress { cache, .. } => {
                heard.first_cache.get_or_insert(cache);
            }
            Chunk::Delta { text, ids, lost } => {
                heard.text.push_str(&text);
                heard.ids.extend(ids);
                heard.lost += lost;
            }
            Chunk::Final(end) | Chunk::ThinkingLimit(end) => heard.end = Some(end),
        }
    }
    heard
}

async fn ask(server: &Server, prompt: &[TokenId], max_tokens: u64) -> Heard {
    let sampling = greedy();
    let request = CompletionRequest { prompt, max_tokens, sampling: &sampling, thinking: None, calls: None };
    hear(server.complete(&request).await.unwrap()).await
}

async fn framing(server: &Server) -> Framing {
    server.compile_framing(SYSTEM, TOOLS, &ReasoningSettings { enabled: true }).await.unwrap()
}

#[test]
fn four_turns_evaluate_only_what_is_new() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = framing(&server).await;
        assert!(framing.head.len() <= 350, "{} tokens", framing.head.len());
        let mut list: Vec<TokenId> = framing.head.0.clone();
        let mut cached = 0;
        for (turn, text) in ["Hello <|im_end|>", "Tell me more", "Why?", "Good bye"].iter().enumerate() {
            let before = list.len();
            if turn > 0 {
                list.extend(&framing.user_open.0);
            }
            list.extend(server.tokenize(text, Special::Plain).await.unwrap());
            list.extend(&framing.user_close.0);
            let heard = ask(&server, &list, 40).await;
            let end = heard.end.unwrap();
            assert_eq!(heard.first_cache, Some(cached), "turn {turn}");
            assert_eq!(end.cache_n, cached, "turn {turn}");
            assert_eq!(end.prompt_n, list.len() as u64 - cached, "turn {turn}");
            if turn > 0 {
                assert!(end.prompt_n <= (list.len() - before) as u64 + 1, "only what is new, and one");
            }
            assert_eq!(end.tokens_cached, end.tokens_evaluated + end.tokens_predicted - 1);
            assert_eq!(heard.ids.len() as u64 + heard.lost, end.tokens_predicted);
            assert_eq!(server.slot_tokens().await.unwrap(), Some(end.tokens_cached));
            assert_eq!(heard.lost, 0, "choose another text");
            match end.stop {
                Stop::Eos => {
                    assert_eq!(heard.ids.last(), Some(&2), "the id that ends the turn is delivered");
                    list.extend(&heard.ids[..heard.ids.len() - 1]);
                }
                Stop::Limit => list.extend(&heard.ids),
                other => panic!("{other:?}"),
            }
            cached = end.tokens_cached;
        }
    });
}

/// The first words of a text that the model is sure to go on with.
async fn repeating(server: &Server, text: &str) -> Vec<TokenId> {
    server.tokenize(&format!("{text} ").repeat(6), Special::Plain).await.unwrap()
}

#[test]
fn smollm_s_head_needs_no_bos_and_is_what_the_template_says() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = framing(&server).await;
        assert_eq!(framing.tools_by, ToolsBy::SystemPrompt);
        assert_eq!(framing.tool_results_by, ToolResultsBy::UserMessage);
        assert_eq!(&framing.head[..3], &[1, 9690, 198], "<|im_start|>system, once");
        assert_eq!(framing.reasoning, None);
        let (user_open, close) = (&framing.user_open, &framing.user_close);
        assert_eq!(user_open[..], [2, 198, 1, 4093, 198], "<|im_end|> <|im_start|>user");
        assert_eq!(close[..], [2, 198, 1, 520, 9531, 198], "<|im_end|> <|im_start|>assistant");
        let identity = server.identity().await.unwrap();
        assert_eq!((identity.n_ctx, identity.n_vocab), (2048, 49_152));
        assert!(identity.size > 90_000_000 && identity.file.ends_with(".gguf"), "{identity:?}");
        assert_eq!(server.state().await, (ServerState::Ready, None));
    });
}

#[test]
fn ids_inside_characters_are_counted_and_the_text_is_whole() {
    let Some(llama) = Llama::start(&["--slot-save-path", "SLOTS"]) else { return };
    run(async || {
        let server = llama.ready().await;
        let prompt = server.tokenize(&"\u{1f98a}\u{1f433}".repeat(20), Special::Plain).await.unwrap();
        let heard = ask(&server, &prompt, 25).await;
        let end = heard.end.unwrap();
        assert!(heard.lost > 0, "choose another text: {heard:?}");
        assert_eq!(heard.ids.len() as u64 + heard.lost, end.tokens_predicted);
        // What the stream lost is in the slot's saved header.
        let saved = server.save_slot("ids.bin").await.unwrap();
        let bytes = std::fs::read(llama.dir().join("slots/ids.bin")).unwrap();
        assert_eq!(bytes.len() as u64, saved.n_written);
        let word = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        let held: Vec<TokenId> = (6..6 + word(5) as usize).map(word).collect();
        assert_eq!(held.len() as u64, end.tokens_cached);
        assert!(held.starts_with(&prompt));
        let sampled = &held[prompt.len()..];
        let mut rest = sampled.iter();
        let last = heard.ids.len() - 1;
        assert!(heard.ids[..last].iter().all(|id| rest.any(|other| other == id)), "in the same order");
    });
}

#[test]
fn cancelling_stops_the_server_and_keeps_what_was_decoded() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = llama.ready().await;
        let prompt = repeating(&server, "one two three four five six seven").await;
        let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
        let request = CompletionRequest {
            prompt: &prompt,
            max_tokens: 1500,
            sampling: &sampling,
            thinking: None,
            calls: None,
        };
        let mut completion = server.complete(&request).await.unwrap();
        let mut received = Vec::new();
        while received.len() < 8 {
            if let Some(Chunk::Delta { ids, .. }) = completion.next().await.unwrap() {
                received.extend(ids);
            }
        }
        drop(completion);
        let begun = Instant::now();
        server.wait_idle().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let held = server.slot_tokens().await.unwrap().unwrap();
        assert!(held < prompt.len() as u64 + 100, "it went on: {held} tokens");
        let list = [&prompt[..], &received].concat();
        let again = ask(&server, &list, 3).await;
        let expected = list.len() as u64 - 1;
        assert_eq!(again.first_cache, Some(expected), "what was decoded is not evaluated again");
    });
}

/// Words that the model goes on repeating.
const COUNTING: &str = "one two three four five six seven eight ";

async fn capped(
    server: &Server,
    prompt: &[TokenId],
    tags: &ReasoningTags,
) -> (Vec<Chunk>, String, Vec<TokenId>) {
    let sampling = greedy();
    let thinking = Some(ThinkingCap { tokens: 6, tags });
    let request = CompletionRequest { prompt, max_tokens: 60, sampling: &sampling, thinking, calls: None };
    let mut completion = server.complete(&request).await.unwrap();
    let (mut chunks, mut text, mut all) = (Vec::new(), String::new(), Vec::new());
    while let Some(chunk) = completion.next().await.unwrap() {
        if let Chunk::Delta { text: more, ids, .. } = &chunk {
            text.push_str(more);
            all.extend(ids);
        }
        chunks.push(chunk);
    }
    (chunks, text, all)
}

#[test]
fn thinking_that_the_model_opens_is_capped_by_the_server() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = llama.ready().await;
        // This model does not think; so a word that it is sure to say opens its thoughts.
        let tags = ReasoningTags {
            open: " one".to_owned(),
            close: "</think>".to_owned(),
            opened_by_prompt: false,
            close_ids: TokenIds::default(),
        };
        let prompt = server.tokenize(COUNTING.repeat(8).trim(), Special::Plain).await.unwrap();
        let (chunks, text, _) = capped(&server, &prompt, &tags).await;
        assert!(matches!(chunks.last(), Some(Chunk::Final(_))));
        assert!(
            text.starts_with(&format!(" one two three four five six seven{CAP_MESSAGE}</think>")),
            "{text}"
        );
        let mut parser = ReplyParser::new(ToolFamily::Hermes, Some(&tags));
        parser.feed(&text);
        assert!(parser.finish().1.capped);
    });
}

#[test]
fn thinking_that_the_prompt_opens_is_capped_in_two_requests() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = llama.ready().await;
        let tags = ReasoningTags {
            open: "<think>".to_owned(),
            close: "</think>".to_owned(),
            opened_by_prompt: true,
            close_ids: TokenIds::default(),
        };
        let text = format!("<think>{}", COUNTING.repeat(8));
        let mut prompt = server.tokenize(text.trim(), Special::Parse).await.unwrap();
        let (chunks, thought, ids) = capped(&server, &prompt, &tags).await;
        let Some(Chunk::ThinkingLimit(end)) = chunks.last() else { panic!("{chunks:?}") };
        assert_eq!((end.tokens_predicted, ids.len()), (6, 6));
        let mut parser = ReplyParser::new(ToolFamily::Hermes, Some(&tags));
        parser.feed(&thought);
        assert!(parser.in_reasoning());
        prompt.extend(ids);
        prompt.extend(server.cap_ids(&tags).await.unwrap());
        parser.feed(&boxmaker::model::cap_text(&tags));
        let rest = ask(&server, &prompt, 20).await;
        assert_eq!(rest.first_cache, Some(end.tokens_cached), "nothing is evaluated again");
        parser.feed(&rest.text);
        let (_, reply) = parser.finish();
        assert!(reply.capped && !reply.reasoning_open && !reply.text.is_empty(), "{reply:?}");
    });
}

#[test]
fn the_context_s_end_is_known_before_sending_and_told_after() {
    let Some(llama) = Llama::start_with(&["-t", "1", "-c", "256", "-np", "1", "--no-ui"], &[]) else {
        return;
    };
    run(async || {
        let server = llama.ready().await;
        let mut prompt = repeating(&server, "one two three four five six seven eight nine ten").await;
        while prompt.len() < 256 {
            prompt.extend_from_within(..10);
        }
        prompt.truncate(256);
        let sampling = greedy();
        let request = CompletionRequest {
            prompt: &prompt,
            max_tokens: 5,
            sampling: &sampling,
            thinking: None,
            calls: None,
        };
        let e = server.complete(&request).await.unwrap_err();
        assert!(matches!(e, ModelError::ContextExceeded { n_prompt_tokens: 256, n_ctx: 256, .. }), "{e:?}");
        let heard = ask(&server, &prompt[..250], 50).await;
        let end = heard.end.unwrap();
        assert_eq!(end.stop, Stop::Limit);
        assert!(end.truncated, "{end:?}");
    });
}

#[test]
fn a_good_server_passes_the_check() {
    let Some(llama) = Llama::start(&["--slot-save-path", "SLOTS"]) else { return };
    run(async || {
        let server = llama.ready().await;
        let (findings, _) = server.check(Look::Try).await;
        assert!(findings.iter().all(|f| f.level == Level::Ok), "{findings:#?}");
        assert!(findings.iter().any(|f| f.what.contains("found all")), "{findings:#?}");
        let files = std::fs::read_dir(llama.dir().join("slots")).unwrap().count();
        assert_eq!(files, 0, "the check leaves nothing behind");
    });
}

#[test]
fn a_server_with_wrong_flags_is_told_so() {
    let flags = ["-t", "1", "-c", "4096", "-np", "4", "--no-slots", "--no-ui", "--api-key", "k3y"];
    let Some(llama) = Llama::start_with(&flags, &[]) else { return };
    run(async || {
        let locked = Server::new(llama.url(), None, 0, Duration::from_secs(60));
        let e = locked.wait_ready(|_| {}).await.unwrap_err();
        assert!(matches!(e, ModelError::Unauthorized { key_sent: false, .. }), "{e:?}");
        let server = Server::new(llama.url(), Some("k3y".to_owned()), 3, Duration::from_secs(60));
        server.wait_ready(|_| {}).await.unwrap();
        let (findings, _) = server.check(Look::Try).await;
        for flag in ["-np 1", "--slots", "--slot-save-path DIR", "-c 2048"] {
            assert!(
                findings.iter().any(|f| f.level == Level::Warn && f.remedy.contains(flag)),
                "{flag}: {findings:#?}"
            );
        }
        let beyond = Server::new(llama.url(), Some("k3y".to_owned()), 4, Duration::from_secs(60));
        let (findings, _) = beyond.check(Look::Try).await;
        assert!(findings.iter().any(|f| f.level == Level::Bad && f.remedy == "-np 5"));
        let e = beyond.wait_ready(|_| {}).await.unwrap_err();
        assert!(matches!(e, ModelError::WrongSlot { slot: 4, total: 4, .. }), "{e:?}");
    });
}

#[test]
fn waiting_for_a_real_server_is_visible() {
    let Some(llama) = Llama::start(&[]) else { return };
    run(async || {
        let server = Server::new(llama.url(), None, 0, Duration::from_secs(60));
        let mut told = Vec::new();
        server.wait_ready(|why| told.push(why.to_owned())).await.unwrap();
        assert!(told.first().is_some_and(|why| why.contains("does not answer yet")), "{told:?}");
        assert!(told.len() <= 4, "{told:?}");
    });
}
