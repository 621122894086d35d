//! The tool part of a turn: started in the log before it is started in the world.

use std::pin::pin;
use std::rc::Rc;

use tokio::time::Instant;

use crate::config::Limit;
use crate::proto::{EventKind, LogRecord, Timestamp, ToolCall, ToolOutcome, ToolResult, ToolStart};
use crate::tool::{self, CallContext, Policy, Prepared, SpillTarget, ToolReply};

use super::AgentError;
use super::approval::{Verdict, not_decided, not_run};
use super::cancel::Cancel;
use super::earlier::EarlierEpochs;
use super::end::{End, reached};
use super::turn::{Pending, Turn};

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
            let (start, reply) = match (&end, problem) {
                (Some(_), _) => (None, not_run()),
                (None, Some(problem)) => (None, ToolReply::error(problem)),
                (None, None) => self.call(&call, cancel).await?,
            };
            self.result(&call, start, reply).await?;
        }
        Ok(end.or_else(|| self.out_of_time(cancel)))
    }

    /// Whether somebody has asked to stop, or the turn's time is up.
    fn out_of_time(&self, cancel: &Cancel) -> Option<End> {
        let late = || End::limit(reached(&self.limits, Limit::TurnSeconds));
        let stopped = cancel.reason().map(End::stopped);
        stopped.or_else(|| (Instant::now() >= self.deadline).then(late))
    }

    /// The limits that a call can meet.
    fn may_call(&mut self, call: &ToolCall, cancel: &Cancel) -> Option<End> {
        if let Some(end) = self.out_of_time(cancel) {
            return Some(end);
        }
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.limits.turn_tool_calls {
            return Some(End::limit(reached(&self.limits, Limit::TurnToolCalls)));
        }
        let same = Some((call.name.clone(), meaning(&call.arguments)));
        self.repeats = if self.last_call == same { self.repeats.saturating_add(1) } else { 1 };
        self.last_call = same;
        (self.repeats > self.limits.repeated_calls)
            .then(|| End::limit(reached(&self.limits, Limit::RepeatedCalls)))
    }

    /// Runs a call. Gives its result, and with it the record of its start where that is not on the disk yet: of one
    /// that had its answer at once, and did nothing that the log would have to know before.
    async fn call(
        &mut self,
        call: &ToolCall,
        cancel: &Cancel,
    ) -> Result<(Option<LogRecord>, ToolReply), AgentError> {
        let unstarted = |reply| Ok((None, reply));
        let tools = Rc::clone(&self.agent.tools);
        tokio::select! {
            biased;
            _ = cancel.stopped() => return unstarted(not_run()),
            () = tokio::time::sleep_until(self.deadline) => return unstarted(not_run()),
            () = tools.refresh(&call.name, &call.arguments) => {}
        }
        let run = match tools.prepare(&call.name, &call.arguments) {
            // `find_tool` has its answer at once; that it ran is recorded all the same
            Prepared::Answer(reply) => {
                let ran = reply.outcome == ToolOutcome::Ok;
                return Ok((ran.then(|| self.start_record(call)), reply));
            }
            Prepared::Run(run) => run,
        };
        match run.policy() {
            Policy::Allow => self.append(vec![self.start_record(call)]).await?,
            // the start is on the disk with the decision
            Policy::Ask => match self.approved(call, &run, cancel).await? {
                Verdict::Allowed => {}
                Verdict::Denied(reply) => return unstarted(reply),
                Verdict::Stopped => return unstarted(not_decided()),
            },
            Policy::Deny => return unstarted(ToolReply::denied(run.tool(), "the configuration")),
        }
        let (session, turn, tool) = (self.conversation.id(), self.turn, run.tool());
        log::info!(SESSION:% = session, TURN:% = turn, EVENT = "tool_start", TOOL = tool; "turn {turn} of {session} runs the tool {tool}");
        let stop = tool::Cancel::new();
        let (dir, earlier) =
            self.conversation.read(|s| (s.dir().join("tool-output"), EarlierEpochs::of(s))).await;
        let spill =
            SpillTarget { dir, stem: format!("call-{}", call.call), max_bytes: self.limits.tool_spill_bytes };
        let context = CallContext {
            seconds: self.limits.tool_seconds,
            output_bytes: self.limits.tool_output_bytes,
            spill: Some(spill),
            cancel: stop.clone(),
            earlier: Some(earlier),
        };
        let mut reply = pin!(run.run(context));
        tokio::select! {
            biased;
            _ = cancel.stopped() => stop.cancel(),
            () = tokio::time::sleep_until(self.deadline) => stop.cancel(),
            reply = &mut reply => return unstarted(reply),
        }
        unstarted(reply.await)
    }

    pub(super) fn start_record(&self, call: &ToolCall) -> LogRecord {
        let ToolCall { call, name, .. } = call.clone();
        LogRecord::ToolStart(ToolStart { time: Timestamp::now(), turn: self.turn, call, name })
    }

    async fn result(
        &self,
        call: &ToolCall,
        start: Option<LogRecord>,
        reply: ToolReply,
    ) -> Result<(), AgentError> {
        let ToolReply { outcome, content, truncated_bytes, millis } = reply;
        let ToolCall { call, name, .. } = call.clone();
        let (session, turn) = (self.conversation.id(), self.turn);
        let how = format!("{outcome:?}").to_lowercase();
        // the name is the model's text, and no text of a conversation is logged
        let shown = if self.agent.tools.knows(&name) { name.as_str() } else { "an unknown tool" };
        log::info!(SESSION:% = session, TURN:% = turn, EVENT = "tool_result", OUTCOME = how.as_str(), MILLIS = millis; "turn {turn} of {session}: call {call} ({shown}) ended: {how}, {millis} ms");
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
        self.append(start.into_iter().chain([LogRecord::ToolResult(result)]).collect()).await?;
        self.publish(EventKind::ToolResult { call, name, outcome, content });
        Ok(())
    }
}

/// Arguments without what doesn't matter to what they say: a model that runs in circles may change its spaces.
fn meaning(arguments: &str) -> String {
    let read = serde_json::from_str::<serde_json::Value>(arguments);
    read.map_or_else(|_| arguments.to_owned(), |value| value.to_string())
}
