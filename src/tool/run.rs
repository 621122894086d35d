//! Running one prepared call: the last line of defence around a tool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::excerpt::{Capture, Excerpt};
use super::{CallContext, Policy, Tool, ToolReply};
use crate::proto::ToolOutcome;

/// How long after its time limit, or after it was cancelled, a tool may still be ending what it began.
/// A tool that takes longer is dropped, which ends the processes of a command tool.
const OVERTIME: Duration = Duration::from_secs(15);

/// How much longer than its limit (bytes) a reply may be, for the words around its output. A tool that says
/// more did not keep to its limit, and is cut.
const WORDS_BYTES: usize = 8 * 1024;

/// A call that has been checked, and not been run. Running consumes it: it can run only once.
pub struct Run {
    tool: Rc<dyn Tool>,
    policy: Policy,
    arguments: String,
}

impl Run {
    pub(super) fn new(tool: Rc<dyn Tool>, policy: Policy, arguments: String) -> Self {
        Self { tool, policy, arguments }
    }

    /// The tool that would run.
    #[must_use]
    pub fn tool(&self) -> &str {
        self.tool.name()
    }

    /// Whether it may; for [`Policy::Ask`], asking is the caller's task.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Its arguments, as the model wrote them.
    #[must_use]
    pub fn arguments(&self) -> &str {
        &self.arguments
    }

    /// Runs it. Always comes back with a reply: a tool that panics, or that does not keep to its limits, is
    /// an error of that tool. Dropping the future ends the call and what it started. One that the policy denies is
    /// not run.
    pub async fn run(self, context: CallContext) -> ToolReply {
        self.within(context, OVERTIME).await
    }

    async fn within(self, context: CallContext, overtime: Duration) -> ToolReply {
        if self.policy == Policy::Deny {
            return ToolReply::denied(self.tool(), "the configuration");
        }
        let began = Instant::now();
        let limits = catch_unwind(AssertUnwindSafe(|| self.tool.limits())).unwrap_or_default();
        let context = limits.apply(context);
        let (seconds, cancel) = (context.seconds, context.cancel.clone());
        let output = usize::try_from(context.output_bytes).unwrap_or(usize::MAX);
        let limit = Duration::from_secs(seconds).saturating_add(overtime);
        let call = Caught::new(|| self.tool.call(&self.arguments, context));
        let mut reply = tokio::select! {
            biased;
            reply = call => reply.unwrap_or_else(|why| {
                ToolReply::error(format!("The tool {} failed: it panicked: {why}", self.tool()))
            }),
            () = tokio::time::sleep(limit) => ToolReply::new(
                ToolOutcome::TimedOut,
                format!("The tool {} did not end within {seconds} seconds and was given up.", self.tool()),
            ),
            () = async { cancel.cancelled().await; tokio::time::sleep(overtime).await } => ToolReply::new(
                ToolOutcome::Interrupted,
                format!("The tool {} was cancelled and did not end; it was given up.", self.tool()),
            ),
        };
        if reply.content.len() > output.saturating_add(WORDS_BYTES) {
            let mut capture = Capture::halves(output);
            capture.push(reply.content.as_bytes());
            let Excerpt { text, left_out, .. } = capture.excerpt(output);
            reply.content = text;
            reply.truncated_bytes = reply.truncated_bytes.saturating_add(left_out);
        }
        reply.millis = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        reply
    }
}

/// A future whose panics are its result.
struct Caught<'a> {
    future: Result<Pin<Box<dyn Future<Output = ToolReply> + 'a>>, String>,
}

impl<'a> Caught<'a> {
    fn new(make: impl FnOnce() -> Pin<Box<dyn Future<Output = ToolReply> + 'a>>) -> Self {
        Self { future: catch_unwind(AssertUnwindSafe(make)).map_err(|panic| words(&*panic)) }
    }
}

impl Future for Caught<'_> {
    type Output = Result<ToolReply, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.future {
            Err(why) => Poll::Ready(Err(std::mem::take(why))),
            Ok(future) => match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(words(&*panic))),
            },
        }
    }
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".to_owned())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::json;

    use super::super::{Cancel, ToolDescription, ToolFuture};
    use super::*;

    /// A tool that keeps to nothing.
    struct Rude {
        dropped: Rc<Cell<bool>>,
        talks: bool,
    }

    struct OnDrop(Rc<Cell<bool>>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }

    impl Tool for Rude {
        fn name(&self) -> &str {
            "rude"
        }
        fn describe(&self) -> ToolDescription {
            ToolDescription { text: String::new(), schema: json!({}) }
        }
        fn call<'a>(&'a self, _arguments: &'a str, _context: CallContext) -> ToolFuture<'a> {
            let dropped = OnDrop(Rc::clone(&self.dropped));
            Box::pin(async move {
                let _dropped = dropped;
                if !self.talks {
                    std::future::pending::<()>().await;
                }
                ToolReply::ok("x".repeat(100_000))
            })
        }
    }

    async fn reply(talks: bool, seconds: u64, cancel: Cancel) -> (ToolReply, bool) {
        let dropped = Rc::new(Cell::new(false));
        let tool = Rc::new(Rude { dropped: Rc::clone(&dropped), talks });
        let context = CallContext { seconds, output_bytes: 100, spill: None, cancel, earlier: None };
        let run = Run::new(tool, Policy::Allow, "{}".to_owned());
        (run.within(context, Duration::from_millis(20)).await, dropped.get())
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_tool_that_does_not_keep_to_its_limits_is_dropped_or_cut() {
        let (late, dropped) = reply(false, 0, Cancel::new()).await;
        assert_eq!((late.outcome, dropped), (ToolOutcome::TimedOut, true));
        assert!(late.millis >= 20);
        let cancel = Cancel::new();
        cancel.cancel();
        let (cancelled, dropped) = reply(false, 3600, cancel).await;
        assert_eq!((cancelled.outcome, dropped), (ToolOutcome::Interrupted, true));
        let (long, _) = reply(true, 1, Cancel::new()).await;
        assert_eq!((long.outcome, long.truncated_bytes), (ToolOutcome::Ok, 99_900));
        assert!(long.content.len() < 200);
    }
}
