//! The model module against a real llama-server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

#[path = "support/llama.rs"]
#[allow(dead_code)]
mod llama;

use boxmaker::model::{Chunk, Completion, CompletionRequest, Final, Server, Special, Stop};
use boxmaker::proto::{Framing, ReasoningSettings, Sampling, TokenId};
use llama::Llama;

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool","description":"Find tools by words; an empty query lists all.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}},{"type":"function","function":{"name":"call_tool","description":"Call a tool that find_tool named.","parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name","arguments"]}}}]"#;
const SYSTEM: &str = "You are a helpful assistant on a small computer. Answer briefly.";

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
            Chunk::Final(end) => heard.end = Some(end),
        }
    }
    heard
}

async fn ask(server: &Server, prompt: &[TokenId], max_tokens: u64) -> Heard {
    let sampling = greedy();
    let request = CompletionRequest { prompt, max_tokens, sampling: &sampling, thinking: None };
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
