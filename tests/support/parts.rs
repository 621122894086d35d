//! The model server, models and templates that tests run with: from variables, or where `tests/tools` puts
//! them. Where one is missing, the test is skipped, and counts as skipped.
//!
//! A test that cannot run on this machine calls [`skip`] and returns. It then counts as skipped, with its
//! reason, not as passed: `tests/tools/run-tests` reads the reasons from the file in `$BOXMAKER_SKIPS`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Each variable, the place in the cache where its part is, and what brings it.
const PARTS: [(&str, &str, &str); 5] = [
    ("BOXMAKER_LLAMA_SERVER", "server/llama-server", "get-model-server"),
    ("BOXMAKER_MODEL", "model/SmolLM2-135M-Instruct.Q4_1.gguf", "get-model-server"),
    ("BOXMAKER_SLIDING_MODEL", "sliding/gemma-3-270m-q4_k_m.gguf", "get-test-parts"),
    ("BOXMAKER_HYBRID_MODEL", "hybrid/hybrid.gguf", "get-test-parts"),
    ("BOXMAKER_TEMPLATES", "templates", "get-test-parts"),
];

/// Where the part of this variable is; `None` when the test is skipped.
pub fn part(variable: &str) -> Option<PathBuf> {
    let (_, rest, script) = PARTS.iter().find(|(name, ..)| *name == variable).expect("a known part");
    let cache = std::env::var_os("BOXMAKER_CACHE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache"), PathBuf::from);
    let path =
        std::env::var_os(variable).map_or_else(|| cache.join("model-server").join(rest), PathBuf::from);
    if !path.exists() {
        skip(&format!("there is no {}: run tests/tools/{script}, or set {variable}", path.display()));
        return None;
    }
    Some(path)
}

/// Where the MCP servers that others wrote are; `None` when the test is skipped.
pub fn mcp_servers() -> Option<PathBuf> {
    let servers = std::env::var_os("BOXMAKER_MCP_SERVERS").map(PathBuf::from);
    if servers.is_none() {
        skip("BOXMAKER_MCP_SERVERS is not set: it names the folder that tests/tools/get-mcp-servers fills");
    }
    servers
}

/// Says that the running test cannot run here, and why. The caller returns.
///
/// # Panics
/// In CI, where every test must be able to run, and when the reason cannot be kept.
pub fn skip(reason: &str) {
    let ci = std::env::var_os("CI").is_some();
    assert!(!ci, "{} cannot run, and in CI every test must: {reason}", running());
    skip_everywhere(reason);
}

/// The same for what a machine of CI need not have either.
///
/// # Panics
/// When the reason cannot be kept.
pub fn skip_everywhere(reason: &str) {
    let name = running();
    eprintln!("skipped: {name}: {reason}");
    if let Some(path) = std::env::var_os("BOXMAKER_SKIPS") {
        let line = format!("{name}\t{}\n", reason.replace('\n', " "));
        let mut file =
            OpenOptions::new().append(true).create(true).open(&path).expect("open $BOXMAKER_SKIPS");
        file.write_all(line.as_bytes()).expect("write $BOXMAKER_SKIPS");
    }
}

/// The name of the running test.
fn running() -> String {
    let thread = std::thread::current();
    let name = std::env::var("NEXTEST_TEST_NAME").ok();
    let name = name.as_deref().or(thread.name()).unwrap_or("a test");
    match std::env::var("NEXTEST_BINARY_ID") {
        Ok(binary) => format!("{binary} {name}"),
        Err(_) => name.to_owned(),
    }
}
