//! Command tools: a program with fixed arguments; the model's arguments as JSON on standard input, the
//! result on standard output.

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;

use super::confine::Reach;
use super::excerpt::Capture;
use super::process::{Pipes, Process, Rlimits, Start};
use super::report::{End, Ended, Report};
use super::spill::Spill;
use super::{CallContext, Tool, ToolDescription, ToolFuture, ToolLimits, ToolReply};

/// How much is read from a pipe at once, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// From TERM to KILL.
const TERM_GRACE: Duration = Duration::from_secs(2);
/// How long a process may take to die of KILL; one that hangs in the kernel longer is left behind.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How long is read on when the direct child has ended but something still holds its pipes.
const DRAIN: Duration = Duration::from_millis(200);

/// A command tool, as configured.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandSpec {
    /// The tool's name.
    pub name: String,
    /// The program, an absolute path.
    pub program: PathBuf,
    /// Its arguments, always the same.
    pub args: Vec<String>,
    /// What the model is told of it.
    pub description: String,
    /// The JSON Schema of the model's arguments.
    pub schema: Value,
    /// How long a call may take, in seconds; the caller's when absent.
    pub seconds: Option<u64>,
    /// How many bytes of output the model is shown; the caller's when absent.
    pub output_bytes: Option<u64>,
    /// How many bytes of longer output are kept; the caller's when absent.
    pub spill_bytes: Option<u64>,
    /// Where it runs, an absolute path, and its `HOME`; made (mode 0700) when only it itself is missing.
    pub directory: PathBuf,
    /// Names of the daemon's environment variables that it gets besides `PATH`, `LANG` and `HOME`.
    pub environment: Vec<String>,
    /// The kernel's limits for each of its processes.
    pub rlimits: Rlimits,
    /// What it can reach.
    pub reach: Reach,
}

/// Runs a [`CommandSpec`]. Output that is spilled needs tokio-uring's runtime.
#[derive(Debug)]
pub struct CommandTool {
    spec: CommandSpec,
}

impl CommandTool {
    /// A tool; nothing is checked and nothing started before it is called.
    #[must_use]
    pub fn new(spec: CommandSpec) -> Self {
        Self { spec }
    }

    async fn run(&self, arguments: &str, context: CallContext) -> ToolReply {
        let (process, pipes) = match self.start() {
            Ok(started) => started,
            Err(why) => return ToolReply::error(why),
        };
        let limit = usize::try_from(context.output_bytes).unwrap_or(usize::MAX);
        let left = Cell::new(context.spill.as_ref().map_or(0, |spill| spill.max_bytes));
        let mut out = Stream::new(Capture::halves(limit), Spill::new(context.spill.as_ref(), &left, ".out"));
        let mut err = Stream::new(Capture::end(limit), Spill::new(context.spill.as_ref(), &left, ".err"));
        let end = {
            let Pipes { stdin, stdout, stderr } = pipes;
            let talk = async { tokio::join!(tell(stdin, arguments), out.read(stdout), err.read(stderr)) };
            watch(
                &process,
                std::pin::pin!(async {
                    talk.await;
                }),
                &context,
            )
            .await
        };
        let dead = tokio::time::timeout(KILL_GRACE, process.exited()).await.is_ok();
        let status = if dead { process.reap().await.ok() } else { None };
        let (out, err) = (out.finish().await, err.finish().await);
        Report { name: &self.spec.name, end, status, seconds: context.seconds, limit }.reply(&out, &err)
    }

    fn start(&self) -> Result<(Process, Pipes), String> {
        let CommandSpec { name, program, args, directory, environment, rlimits, reach, .. } = &self.spec;
        Start { program, args, directory, environment, rlimits: *rlimits, reach }
            .start()
            .map_err(|why| format!("The tool {name} could not be started: {why}"))
    }
}

impl Tool for CommandTool {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn describe(&self) -> ToolDescription {
        ToolDescription { text: self.spec.description.clone(), schema: self.spec.schema.clone() }
    }

    fn limits(&self) -> ToolLimits {
        let CommandSpec { seconds, output_bytes, spill_bytes, .. } = self.spec;
        ToolLimits { seconds, output_bytes, spill_bytes }
    }

    fn call<'a>(&'a self, arguments: &'a str, context: CallContext) -> ToolFuture<'a> {
        Box::pin(self.run(arguments, context))
    }
}

/// Waits for a process's end while `talk` serves its pipes, and ends it and all that it left. When this
/// returns, nothing of it runs that can be found, and what it had written is read.
async fn watch(process: &Process, talk: Pin<&mut dyn Future<Output = ()>>, context: &CallContext) -> End {
    let mut talk = Talk { talk, done: false };
    let limit = Duration::from_secs(context.seconds);
    let end = talk
        .during(async {
            tokio::select! {
                biased;
                () = process.exited() => End::Exit,
                () = context.cancel.cancelled() => End::Cancelled,
                () = tokio::time::sleep(limit) => End::TimeLimit,
            }
        })
        .await;
    if end != End::Exit {
        process.terminate();
        let _late = talk.during(tokio::time::timeout(TERM_GRACE, process.exited())).await;
    }
    // something else may hold the pipes: what a shell's `>(…)` still writes is wanted, a daemon is not waited for
    let _held = tokio::time::timeout(DRAIN, talk.finish()).await;
    talk.during(process.kill()).await;
    let _held = tokio::time::timeout(DRAIN, talk.finish()).await;
    end
}

/// The pipes' traffic, which goes on while something else is waited for.
struct Talk<'a> {
    talk: Pin<&'a mut dyn Future<Output = ()>>,
    done: bool,
}

impl Talk<'_> {
    async fn during<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = std::pin::pin!(wait);
        loop {
            tokio::select! {
                biased;
                value = &mut wait => return value,
                () = &mut self.talk, if !self.done => self.done = true,
            }
        }
    }

    async fn finish(&mut self) {
        if !self.done {
            self.talk.as_mut().await;
            self.done = true;
        }
    }
}

/// Writes the arguments and closes the pipe. A program that does not read them is no error.
async fn tell(stdin: Option<ChildStdin>, arguments: &str) {
    if let Some(mut stdin) = stdin {
        let _unread = stdin.write_all(arguments.as_bytes()).await;
        let _unread = stdin.write_all(b"\n").await;
    }
}

/// One stream of output: what is shown of it, and its spill file.
pub struct Stream<'a> {
    capture: Capture,
    spill: Spill<'a>,
}

impl<'a> Stream<'a> {
    /// Nothing was read yet.
    pub fn new(capture: Capture, spill: Spill<'a>) -> Self {
        Self { capture, spill }
    }

    /// Reads to the end.
    pub async fn read(&mut self, pipe: Option<impl AsyncRead + Unpin>) {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
            let bytes = buffer.get(..count).unwrap_or_default();
            if self.spill.open() && self.capture.overflows(count) {
                if !self.capture.overflows(0) {
                    self.spill.add(self.capture.kept()).await;
                }
                self.spill.add(bytes.to_vec()).await;
            }
            self.capture.push(bytes);
        }
    }

    /// Nothing more comes.
    pub async fn finish(self) -> Ended {
        Ended { capture: self.capture, spilled: self.spill.finish().await }
    }
}
