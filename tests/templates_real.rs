//! What becomes of the chat templates that come with llama.cpp: each is used as it is, used with a fallback, or
//! refused with a reason, and the whole table is known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(missing_docs)]

#[path = "support/llama.rs"]
#[allow(dead_code)]
mod llama;

use std::path::{Path, PathBuf};

use boxmaker::model::ModelError;
use boxmaker::proto::{Framing, ReasoningSettings, ToolResultsBy, ToolsBy};
use llama::parts::part;
use llama::{FLAGS, Llama};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"find_tool","description":"Search.","parameters":{"type":"object","properties":{"query":{"type":"string"}},"required":["query"]}}},{"type":"function","function":{"name":"call_tool","description":"Run.","parameters":{"type":"object","properties":{"name":{"type":"string"},"arguments":{"type":"object"}},"required":["name","arguments"]}}}]"#;

/// What was found out about a template, in a line.
fn describe(compiled: &Result<Framing, ModelError>) -> String {
    let framing = match compiled {
        Ok(framing) => framing,
        Err(ModelError::Template { what, .. }) => return format!("refused: {what}"),
        Err(e) => panic!("the server did not answer as it should: {e}"),
    };
    let tools = match framing.tools_by {
        ToolsBy::Template => "tools by the template",
        ToolsBy::SystemPrompt => "tools in the system prompt",
    };
    let results = match framing.tool_results_by {
        ToolResultsBy::Template => "results by the template",
        ToolResultsBy::UserMessage => "results as user messages",
    };
    let reasoning = match &framing.reasoning {
        None => String::new(),
        Some(tags) if tags.opened_by_prompt => format!(", thinks in {} opened by the prompt", tags.open),
        Some(tags) => format!(", thinks in {}", tags.open),
    };
    format!("{:?}, {tools}, {results}{reasoning}", framing.tool_family)
}

/// The fragments that follow the head.
fn fragments(framing: &Framing) -> [&[u32]; 5] {
    let Framing { user_open, user_close, tool_open, tool_between, tool_close, .. } = framing;
    [user_open, user_close, tool_open, tool_between, tool_close].map(|ids| &ids[..])
}

async fn outcome(template: &Path) -> String {
    let file = template.to_str().unwrap();
    let model = "BOXMAKER_HYBRID_MODEL";
    let llama = Llama::start_model(model, FLAGS, &["--chat-template-file", file, "--no-warmup"]).unwrap();
    let server = llama.ready().await;
    let on = ReasoningSettings { enabled: true };
    let compiled = server.compile_framing("Be brief.", TOOLS, &on).await;
    let described = describe(&compiled);
    if let Ok(framing) = &compiled {
        assert!(framing.user_open.len() > 1 && !framing.user_close.is_empty(), "{file}: {framing:?}");
        // the baseline of another session: only its head may differ
        let longer = "You live on a board.\n\nTell nobody <why>.";
        let other = server.compile_framing(longer, TOOLS, &on).await.unwrap();
        assert_eq!(fragments(framing), fragments(&other), "{file}: a fragment depends on the system prompt");
        assert_ne!(framing.head, other.head, "{file}");
        assert_eq!(describe(&Ok(other)), described, "{file}");
        // without thinking, no prompt leaves a thought open
        let off = ReasoningSettings { enabled: false };
        let quiet = server.compile_framing("Be brief.", TOOLS, &off).await;
        let quiet = quiet.unwrap_or_else(|e| panic!("{file}: with thinking only: {e}"));
        assert!(quiet.reasoning.is_none_or(|tags| !tags.opened_by_prompt), "{file}");
    }
    described
}

#[test]
fn every_template_is_used_or_refused_as_the_table_says() {
    let (Some(folder), Some(_), Some(_)) =
        (part("BOXMAKER_TEMPLATES"), part("BOXMAKER_LLAMA_SERVER"), part("BOXMAKER_HYBRID_MODEL"))
    else {
        return;
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 71, "the templates of the pinned version");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut table = String::new();
        let mut line = |file: &Path, outcome: String| {
            let name = file.file_stem().unwrap().to_str().unwrap();
            table.push_str(&format!("{name}: {outcome}\n"));
        };
        // a server that starts waits for the disk as much as for a core
        for pair in files.chunks(2) {
            match pair {
                [one, other] => {
                    let (first, second) = tokio::join!(outcome(one), outcome(other));
                    line(one, first);
                    line(other, second);
                }
                rest => line(&rest[0], outcome(&rest[0]).await),
            }
        }
        table
    });
    let count = |what: &str| table.lines().filter(|line| line.contains(what)).count();
    let counts = [", results by the template", ", results as user messages", ": refused: "].map(count);
    assert_eq!(counts, [27, 35, 9], "by the template, results as user messages, refused:\n{table}");
    insta::assert_snapshot!(table);
}
