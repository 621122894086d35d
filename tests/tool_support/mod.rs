//! What the tests of tools share: a folder for a tool, a command tool and its call, and whether a process runs.

#![allow(dead_code, reason = "each test crate uses its own part of this")]
#![allow(missing_docs, reason = "tests")]

#[allow(clippy::duplicate_mod, reason = "some tests have it by way of support, too")]
#[path = "../support/memory.rs"]
mod process_memory;

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use boxmaker::tool::{
    CallContext, Cancel, CommandSpec, CommandTool, Installed, Policy, Prepared, Reach, Registry, Rlimits,
    Run, SpillTarget, ToolReply,
};
use serde_json::json;

/// A folder for one test: the tool's directory, and where output is spilled.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn sh(&self, script: &str) -> CommandSpec {
        self.program("/bin/sh", &["-c", script])
    }

    pub fn python(&self, script: &str) -> CommandSpec {
        self.program("/usr/bin/env", &["python3", "-c", script])
    }

    pub fn program(&self, program: &str, args: &[&str]) -> CommandSpec {
        CommandSpec {
            name: "tried".to_owned(),
            program: program.into(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            description: "A tool that is tried.".to_owned(),
            schema: json!({"type": "object"}),
            seconds: None,
            output_bytes: None,
            spill_bytes: None,
            directory: self.path("work"),
            // python3 may be found by its own path only
            environment: vec!["PATH".to_owned()],
            rlimits: Rlimits::default(),
            reach: Reach::default(),
        }
    }

    pub fn context(&self, seconds: u64) -> CallContext {
        let spill = SpillTarget { dir: self.path("spill"), stem: "call-1".to_owned(), max_bytes: 1 << 30 };
        CallContext { seconds, output_bytes: 4096, spill: Some(spill), cancel: Cancel::new(), earlier: None }
    }
}

/// A call that is ready to run.
pub fn prepared(spec: CommandSpec, arguments: &str) -> Run {
    let installed = Installed { tool: Rc::new(CommandTool::new(spec)), policy: Policy::Allow };
    match Registry::new(vec![installed]).unwrap().prepare("tried", arguments) {
        Prepared::Run(run) => run,
        Prepared::Answer(reply) => panic!("{}", reply.content),
    }
}

/// A call without arguments, to its end.
pub async fn call(spec: CommandSpec, context: CallContext) -> ToolReply {
    prepared(spec, "{}").run(context).await
}

/// The process whose number a tool has written into a file.
pub fn pid_in(file: &Path) -> i32 {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.trim().parse().unwrap_or_else(|e| panic!("{}: {text:?}: {e}", file.display()))
}

/// Whether a process is still running.
pub fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Waits until a process runs no more; a killed one is gone when it is scheduled next.
pub async fn gone(pid: i32) {
    for _ in 0..100 {
        if !runs(pid) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("process {pid} is left running");
}

/// How much memory this process has by a line of its status, in bytes.
pub fn memory(line: &str) -> u64 {
    process_memory::memory("self", line)
}
