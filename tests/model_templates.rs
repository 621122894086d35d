//! Framings of chat templates of every family, compiled by a real llama-server's own template engine.
//!
//! The templates are small ones of our own, which do what the families' real ones do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

#[path = "support/llama.rs"]
#[allow(dead_code)]
mod llama;

use boxmaker::model::{ModelError, Server, Special};
use boxmaker::proto::{Framing, ReasoningSettings, TokenId, ToolFamily, ToolResultsBy, ToolsBy};
use llama::{FLAGS, Llama};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool","description":"Search.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}},{"type":"function","function":{"name":"call_tool","description":"Run.","parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name","arguments"]}}}]"#;
const ON: ReasoningSettings = ReasoningSettings { enabled: true };
const OFF: ReasoningSettings = ReasoningSettings { enabled: false };

fn run(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test());
}

/// A server with this template.
fn with(template: &str) -> Option<Llama> {
    Llama::start_with(FLAGS, &["--chat-template", template, "--no-warmup"])
}

/// Whether these ids are those of this text, as the template's own.
async fn is(server: &Server, ids: &[TokenId], text: &str) -> bool {
    server.tokenize(text, Special::Parse).await.unwrap() == ids
}

async fn fragments(server: &Server, framing: &Framing, texts: [&str; 5]) {
    let ids = [
        &framing.user_open,
        &framing.user_close,
        &framing.tool_open,
        &framing.tool_between,
        &framing.tool_close,
    ];
    let names = ["user_open", "user_close", "tool_open", "tool_between", "tool_close"];
    for ((ids, text), name) in ids.into_iter().zip(texts).zip(names) {
        assert!(is(server, ids, text).await, "{name} is not {text:?}: {ids:?}");
    }
}

/// As Qwen 3: tools in the system message, results as user messages, earlier thoughts dropped, an empty
/// thought where none is wanted.
const QWEN: &str = r#"
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Call with <tool_call>
{"name": N, "arguments": A}
</tool_call><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{% if loop.last %}<think>

</think>

{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{% if not loop.first or m.content %}
{% endif %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}{{ '\n' }}<tool_response>
{{ m.content }}
</tool_response>{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"#;

#[test]
fn a_template_as_qwen_s_is_used_as_it_is() {
    let Some(llama) = with(QWEN) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!(framing.tools_by, ToolsBy::Template);
        assert_eq!(framing.tool_results_by, ToolResultsBy::Template);
        assert_eq!(framing.tool_family, ToolFamily::Hermes);
        let end = "<|im_end|>\n<|im_start|>";
        fragments(
            &server,
            &framing,
            [
                &format!("{end}user\n"),
                &format!("{end}assistant\n"),
                &format!("{end}user\n<tool_response>\n"),
                "\n</tool_response>\n<tool_response>\n",
                &format!("\n</tool_response>{end}assistant\n"),
            ],
        )
        .await;
        let tags = framing.reasoning.unwrap();
        assert_eq!((tags.open.as_str(), tags.opened_by_prompt), ("<think>", false));
        assert!(is(&server, &tags.close_ids, "\n</think>\n\n").await);
        let off = server.compile_framing("Be brief.", TOOLS, &OFF).await.unwrap();
        assert!(is(&server, &off.user_close, &format!("{end}assistant\n<think>\n\n</think>\n\n")).await);
        assert_eq!(off.head, framing.head);
    });
}

#[test]
fn a_thought_that_the_prompt_always_opens_is_closed_when_unwanted() {
    let always = QWEN.replace(
        "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
        "<think>\n",
    );
    assert_ne!(always, QWEN);
    let Some(llama) = with(&always) else { return };
    run(async || {
        let server = llama.ready().await;
        let on = server.compile_framing("x", TOOLS, &ON).await.unwrap();
        assert!(on.reasoning.unwrap().opened_by_prompt);
        assert_eq!(on.tool_results_by, ToolResultsBy::Template);
        let off = server.compile_framing("x", TOOLS, &OFF).await.unwrap();
        assert!(!off.reasoning.unwrap().opened_by_prompt);
        let assistant = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert!(is(&server, &off.user_close, assistant).await);
        assert!(is(&server, &off.tool_close, &format!("\n</tool_response>{assistant}")).await);
    });
}

/// As Qwen-Coder: calls as tags.
#[test]
fn calls_as_tags_are_recognised_by_reading_one_back() {
    let call = r#"{"name": "{{ c.function.name }}", "arguments": {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}}"#;
    let tags = "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>";
    let coder = QWEN.replace(call, tags);
    assert_ne!(coder, QWEN);
    let Some(llama) = with(&coder) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!((framing.tool_family, framing.tools_by), (ToolFamily::QwenCoder, ToolsBy::Template));
        assert_eq!(framing.tool_results_by, ToolResultsBy::Template);
    });
}

/// As GLM: no mark at an assistant's end, and call tags of its own.
const GLM: &str = r#"[gMASK]<sop>{% if tools %}<|system|>
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
Write <tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|user|>
{{ m.content }}
{%- elif m.role == 'system' %}<|system|>
{{ m.content }}
{%- elif m.role == 'assistant' %}<|assistant|>
{{ m.content }}{% for c in m.tool_calls or [] %}
<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- elif m.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|observation|>{% endif %}{{ '\n' }}<tool_response>
{{ m.content }}
</tool_response>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"#;

#[test]
fn a_template_as_glm_s_is_used_as_it_is() {
    let Some(llama) = with(GLM) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!((framing.tool_family, framing.tools_by), (ToolFamily::Glm, ToolsBy::Template));
        assert_eq!(framing.tool_results_by, ToolResultsBy::Template);
        fragments(
            &server,
            &framing,
            [
                "<|user|>\n",
                "<|assistant|>\n",
                "<|observation|>\n<tool_response>\n",
                "\n</tool_response>\n<tool_response>\n",
                "\n</tool_response><|assistant|>\n",
            ],
        )
        .await;
    });
}

/// As Mistral's older ones: system prompt and tools before the newest user message, ids in results,
/// strictly alternating roles.
const MISTRAL: &str = r#"{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
{%- set last = loop.last or (rest[loop.index0 + 1:] | selectattr('role', 'equalto', 'user') | list | length == 0) %}
{%- if m.role == 'user' %}
{%- if last and tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] {% if last and system is defined %}{{ system }}

{% endif %}{{ m.content }}[/INST]
{%- elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{"name": "{{ c.function.name }}", "arguments": {% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}, "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>
{%- elif m.role == 'assistant' %} {{ m.content }}</s>
{%- elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- endif %}
{%- endfor %}"#;

#[test]
fn what_a_template_repeats_before_each_message_is_left_out() {
    let Some(llama) = with(MISTRAL) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!((framing.tool_family, framing.tools_by), (ToolFamily::Mistral, ToolsBy::Template));
        assert_eq!(framing.tool_results_by, ToolResultsBy::UserMessage, "its results carry ids");
        fragments(
            &server,
            &framing,
            [
                "</s>[INST] ",
                "[/INST]",
                "</s>[INST] <tool_response>\n",
                "\n</tool_response>\n<tool_response>\n",
                "\n</tool_response>[/INST]",
            ],
        )
        .await;
    });
}

/// As Llama 3: one call a message, which is all of it, and results in quotes.
const LLAMA: &str = r#"{{ bos_token }}<|start_header_id|>system<|end_header_id|>

{% if tools %}Environment: ipython
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer {"name": N, "parameters": P}.
{% endif %}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}<|eot_id|>
{%- for m in messages %}
{%- if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson }}<|eot_id|>
{%- elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('only one call at once') }}{% endif %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|eot_id|>
{%- elif m.role != 'system' %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content }}<|eot_id|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"#;

#[test]
fn a_template_as_llama_s_is_used_as_it_is() {
    let Some(llama) = with(LLAMA) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!((framing.tool_family, framing.tools_by), (ToolFamily::Llama, ToolsBy::Template));
        assert_eq!(framing.tool_results_by, ToolResultsBy::Template);
        let head = |role: &str| format!("<|eot_id|><|start_header_id|>{role}<|end_header_id|>\n\n");
        fragments(
            &server,
            &framing,
            [
                &head("user"),
                &head("assistant"),
                &format!("{}\"", head("ipython")),
                &format!("\"{}\"", head("ipython")),
                &format!("\"{}", head("assistant")),
            ],
        )
        .await;
    });
}

/// As Gemma 2: no system messages, no tools, strictly alternating roles.
const GEMMA: &str = r#"{% for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"#;

#[test]
fn a_strict_template_without_tools_gets_user_messages_only() {
    let Some(llama) = with(GEMMA) else { return };
    run(async || {
        let server = llama.ready().await;
        let framing = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap();
        assert_eq!((framing.tool_family, framing.tools_by), (ToolFamily::Hermes, ToolsBy::SystemPrompt));
        assert_eq!(framing.tool_results_by, ToolResultsBy::UserMessage);
        let turn = "<end_of_turn>\n<start_of_turn>";
        fragments(
            &server,
            &framing,
            [
                &format!("{turn}user\n"),
                &format!("{turn}model\n"),
                &format!("{turn}user\n<tool_response>\n"),
                "\n</tool_response>\n<tool_response>\n",
                &format!("\n</tool_response>{turn}model\n"),
            ],
        )
        .await;
        let start = server.tokenize("<start_of_turn>user\nBe brief.\n", Special::Parse).await.unwrap();
        assert_eq!(framing.head[..start.len() - 1], start[..start.len() - 1]);
    });
}

/// Refused, each with the reason: assistants' messages with a structure (as gpt-oss), a counter before
/// each message, no mark of a message's end.
#[test]
fn templates_that_cannot_keep_the_promise_are_refused() {
    let cases = [
        (
            "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant",
            "structure",
        ),
        (
            "{% for m in messages %}<|im_end|>{{ loop.index }}. {{ m.role }}: {{ m.content }}{% endfor %}<|im_end|>bot: ",
            "earlier messages",
        ),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "where an assistant's message ends"),
        ("{{ messages[-1].content }}", "does not appear"),
    ];
    for (template, why) in cases {
        let Some(llama) = with(template) else { return };
        run(async || {
            let server = llama.ready().await;
            let e = server.compile_framing("Be brief.", TOOLS, &ON).await.unwrap_err();
            assert!(matches!(e, ModelError::Template { .. }), "{e:?}");
            let text = e.to_string();
            assert!(text.contains(why) && text.contains("--chat-template-file"), "{text}");
        });
    }
}
