//! The tool part of a turn: started in the log before it is started in the world.

use crate::proto::{EventKind, LogRecord, Timestamp, ToolCall, ToolOutcome, ToolResult, ToolStart};
use crate::tool::{CallContext, Policy, Prepared, ToolReply};

use super::AgentError;
use super::cancel::Cancel;
use super::turn::{End, Pending, Turn};

impl Turn {
    /// Runs the calls in order and records a result for each. Gives the turn's end when it may not go on.
    pub(super) async fn run_tools(
        &mut self,
        calls: Vec<Pending>,
        cancel: &Cancel,
    ) -> Result<Option<End>, AgentError> {
        let mut end = None;
        for Pending { call, problem } in calls {
            end = end.or_else(|| self.may_call(&call, cancel));
            let reply = match (&end, problem) {
                (Some(_), _) => refused("Not run: the turn was ended before this call."),
                (None, Some(problem)) => refused(&problem),
                (None, None) => self.call(&call, cancel).await?,
            };
            self.result(&call, reply).await?;
        }
        Ok(end.or_else(|| cancel.reason().map(End::stopped)))
    }

    /// The limits that a call can meet.
    fn may_call(&mut self, call: &ToolCall, cancel: &Cancel) -> Option<End> {
        if let Some(reason) = cancel.reason() {
            return Some(End::stopped(reason));
        }
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.limits.turn_tool_calls {
            return Some(End::limit(self.limits.reached("turn_tool_calls")));
        }
        let same = Some((call.name.clone(), call.arguments.clone()));
        self.repeats = if self.last_call == same { self.repeats.saturating_add(1) } else { 1 };
        self.last_call = same;
        (self.repeats > self.limits.repeated_calls).then(|| End::limit(self.limits.reached("repeated_calls")))
    }

    async fn call(&self, call: &ToolCall, cancel: &Cancel) -> Result<ToolReply, AgentError> {
        let run = match self.agent.tools.prepare(&call.name, &call.arguments) {
            Prepared::Answer(reply) => return Ok(reply),
            Prepared::Run(run) => run,
        };
        match run.policy() {
            Policy::Allow => {}
            Policy::Ask => return Ok(denied("Denied: this tool needs a person's approval, and nobody can be asked.")),
            Policy::Deny => return Ok(denied("Denied: this tool is not allowed.")),
        }
        let ToolCall { call, name, .. } = call.clone();
        let start = ToolStart { time: Timestamp::now(), turn: self.turn, call, name };
        self.append(vec![LogRecord::ToolStart(start)]).await?;
        let context = CallContext::new(self.limits.tool_seconds, self.limits.tool_output_bytes);
        tokio::select! {
            biased;
            _ = cancel.stopped() => Ok(refused("Stopped: the turn was cancelled while this tool ran; what it had done by then stays done.")),
            reply = run.run(context) => Ok(reply),
        }
    }

    async fn result(&self, call: &ToolCall, reply: ToolReply) -> Result<(), AgentError> {
        let ToolReply { outcome, content, truncated_bytes, millis } = reply;
        let ToolCall { call, name, .. } = call.clone();
        let result = ToolResult {
            time: Timestamp::now(),
            turn: self.turn,
            call,
            name: name.clone(),
            outcome,
            content: content.clone(),
            truncated_bytes,
            millis,
        };
        self.append(vec![LogRecord::ToolResult(result)]).await?;
        self.publish(EventKind::ToolResult { call, name, outcome, content });
        Ok(())
    }
}

fn refused(content: &str) -> ToolReply {
    ToolReply { outcome: ToolOutcome::Error, content: content.to_owned(), truncated_bytes: 0, millis: 0 }
}

fn denied(content: &str) -> ToolReply {
    ToolReply { outcome: ToolOutcome::Denied, content: content.to_owned(), truncated_bytes: 0, millis: 0 }
}
