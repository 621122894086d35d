//! Chat templates of a server that renders them in odd ways.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

mod model_support;

use boxmaker::model::{ModelError, Special};
use boxmaker::proto::{ReasoningSettings, ToolFamily, ToolResultsBy, ToolsBy};
use model_support::scripted_server::{EOG, ScriptedServer, text_of};
use model_support::{client, run};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool"}},{"type":"function","function":{"name":"call_tool"}}]"#;

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
